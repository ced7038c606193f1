#include "parallel/mpi.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::parallel {
namespace {

// Handles are pointers in one binary interface and integers in the other; both fit, and both are
// passed in a register.
using Handle = uintptr_t;
constexpr int kData = 1, kGaveUp = 2;  // tags of messages
// Room for a status or a request of either interface.
struct alignas(16) Opaque {
  std::array<std::byte, 64> bytes{};
};

// The entry points of the standard's C interface that are used here.
struct Library {
  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*initialized)(int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*comm_rank)(Handle, int*) = nullptr;
  int (*comm_size)(Handle, int*) = nullptr;
  int (*set_errhandler)(Handle, Handle) = nullptr;
  int (*isend)(const void*, int, Handle, int, int, Handle, void*) = nullptr;
  int (*irecv)(void*, int, Handle, int, int, Handle, void*) = nullptr;
  int (*test)(void*, int*, void*) = nullptr;
  int (*iprobe)(int, int, Handle, int*, void*) = nullptr;
  int (*get_count)(const void*, Handle, int*) = nullptr;
  Handle world = 0, byte = 0, errors_return = 0;
};

absl::StatusOr<Library> Load() {
  ASSIGN_OR_RETURN(const device::SharedLibrary library,
                   device::SharedLibrary::Open(
                       "MPI", {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so"}));
  Library mpi;
  std::string missing;
  auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(library.Find(name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  find("MPI_Init_thread", &mpi.init_thread);
  find("MPI_Initialized", &mpi.initialized);
  find("MPI_Finalize", &mpi.finalize);
  find("MPI_Comm_rank", &mpi.comm_rank);
  find("MPI_Comm_size", &mpi.comm_size);
  find("MPI_Comm_set_errhandler", &mpi.set_errhandler);
  find("MPI_Isend", &mpi.isend);
  find("MPI_Irecv", &mpi.irecv);
  find("MPI_Test", &mpi.test);
  find("MPI_Iprobe", &mpi.iprobe);
  find("MPI_Get_count", &mpi.get_count);
  if (!missing.empty()) {
    return absl::NotFoundError(fmt::format("the MPI library has no {}", missing));
  }
  if (void* world = library.Find("ompi_mpi_comm_world"); world != nullptr) {
    mpi.world = reinterpret_cast<Handle>(world);
    mpi.byte = reinterpret_cast<Handle>(library.Find("ompi_mpi_byte"));
    mpi.errors_return = reinterpret_cast<Handle>(library.Find("ompi_mpi_errors_return"));
  } else {  // the numbers of MPICH's binary interface
    mpi.world = 0x44000000;
    mpi.byte = 0x4c00010d;
    mpi.errors_return = 0x54000001;
  }
  return mpi;
}

class MpiGroup final : public Communicator {
 public:
  MpiGroup(const Library& mpi, int32_t rank, int32_t size, absl::Duration patience)
      : mpi_(mpi), rank_(rank), size_(size), patience_(patience) {}
  ~MpiGroup() override {
    // With messages under way it would wait for who is gone.
    if (broken_.ok()) mpi_.finalize();
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  void GiveUp(const absl::Status& why) override {
    if (!broken_.ok()) return;
    broken_ = absl::UnavailableError(
        fmt::format("member {} of the group gave up: {}", rank_, Message(why)));
    notice_ = std::string(Message(broken_)).substr(0, kMostNotice);
    for (int32_t to = 0; to < size_; ++to) {
      if (to == rank_) continue;
      mpi_.isend(notice_.data(), static_cast<int>(notice_.size()), mpi_.byte, to, kGaveUp,
                 mpi_.world, &notices_.emplace_back());
    }
    // Messages go on their way while the library is called.
    const absl::Time deadline = absl::Now() + absl::Seconds(1);
    for (Opaque& request : notices_) {
      while (absl::Now() < deadline) {
        absl::StatusOr<bool> done = Done(&request, nullptr);
        if (!done.ok() || *done) break;
        absl::SleepFor(absl::Microseconds(50));
      }
    }
  }

 protected:
  absl::Status Exchange(int32_t to, std::span<const std::byte> send, int32_t from,
                        std::span<std::byte> receive, bool endless) override {
    if (!broken_.ok()) return broken_;
    const absl::Status status = Transfer(to, send, from, receive, endless);
    if (!status.ok() && broken_.ok()) broken_ = status;
    return status;
  }

 private:
  static constexpr size_t kMostNotice = 500;

  absl::Status Transfer(int32_t to, std::span<const std::byte> send, int32_t from,
                        std::span<std::byte> receive, bool endless) {
    constexpr size_t kMost = std::numeric_limits<int>::max();
    if (send.size() > kMost || receive.size() > kMost) {
      return absl::InvalidArgumentError("a message of 2 GiB or more");
    }
    Opaque sending, receiving, received;
    if (from != kNobody && mpi_.irecv(receive.data(), static_cast<int>(receive.size()), mpi_.byte,
                                      from, kData, mpi_.world, &receiving) != 0) {
      return absl::UnavailableError(fmt::format("MPI cannot receive from member {}", from));
    }
    if (to != kNobody && mpi_.isend(send.data(), static_cast<int>(send.size()), mpi_.byte, to,
                                    kData, mpi_.world, &sending) != 0) {
      return absl::UnavailableError(fmt::format("MPI cannot send to member {}", to));
    }
    bool sent = to == kNobody, got = from == kNobody;
    const absl::Time start = absl::Now();
    for (uint64_t polls = 1; !sent || !got; ++polls) {
      if (!sent) {
        ASSIGN_OR_RETURN(sent, Done(&sending, nullptr));
      }
      if (!got) {
        ASSIGN_OR_RETURN(got, Done(&receiving, &received));
      }
      if (polls % kPollsATurn == 0 && (!sent || !got)) {
        RETURN_IF_ERROR(Pause(start, sent ? from : to, endless));
      }
    }
    int count = 0;
    if (from != kNobody && (mpi_.get_count(&received, mpi_.byte, &count) != 0 ||
                            static_cast<size_t>(count) != receive.size())) {
      return absl::InternalError(fmt::format("member {} sent {} bytes where member {} expected {}",
                                             from, count, rank_, receive.size()));
    }
    return absl::OkStatus();
  }

  static constexpr uint64_t kPollsATurn = 64;

  absl::StatusOr<bool> Done(Opaque* request, Opaque* status) const {
    int done = 0;
    Opaque ignored;
    if (mpi_.test(request, &done, status == nullptr ? &ignored : status) != 0) {
      return absl::UnavailableError("a message between members of the group failed in MPI");
    }
    return done != 0;
  }

  // Looks whether somebody has given up, and leaves the processor to others; longer, the longer
  // there was nothing.
  absl::Status Pause(absl::Time start, int32_t other, bool endless) {
    RETURN_IF_ERROR(LookForNotices());
    const absl::Duration waited = absl::Now() - start;
    if (!endless && waited > patience_) {
      return absl::DeadlineExceededError(
          fmt::format("member {} waited {} for member {} of the group", rank_,
                      absl::FormatDuration(patience_), other));
    }
    absl::SleepFor(waited < absl::Milliseconds(1)    ? absl::Microseconds(1)
                   : waited < absl::Milliseconds(50) ? absl::Microseconds(50)
                                                     : absl::Milliseconds(1));
    return absl::OkStatus();
  }

  absl::Status LookForNotices() {
    for (int32_t from = 0; from < size_; ++from) {
      int there = 0, count = 0;
      Opaque status, request;
      if (from == rank_ || mpi_.iprobe(from, kGaveUp, mpi_.world, &there, &status) != 0 ||
          there == 0 || mpi_.get_count(&status, mpi_.byte, &count) != 0 || count < 0) {
        continue;
      }
      std::string text(static_cast<size_t>(count), ' ');
      bool got =
          mpi_.irecv(text.data(), count, mpi_.byte, from, kGaveUp, mpi_.world, &request) == 0;
      for (int i = 0; got && i < 1000; ++i) {
        ASSIGN_OR_RETURN(const bool done, Done(&request, nullptr));
        if (done) break;
        absl::SleepFor(absl::Microseconds(50));
      }
      return absl::UnavailableError(text);
    }
    return absl::OkStatus();
  }

  const Library mpi_;
  const int32_t rank_, size_;
  const absl::Duration patience_;
  absl::Status broken_;
  std::string notice_;          // stays while it is sent
  std::deque<Opaque> notices_;  // requests of the sends
};

// The first of the environment's variables that is a number.
int32_t Number(std::initializer_list<const char*> names, int32_t otherwise) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    int32_t number = 0;
    if (value != nullptr && absl::SimpleAtoi(value, &number) && number >= 0) return number;
  }
  return otherwise;
}

}  // namespace

int32_t MpiProcesses() { return Number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1); }
int32_t MpiRank() { return Number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0); }
int32_t MpiLocalRank() { return Number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, 0); }

absl::StatusOr<std::unique_ptr<Communicator>> JoinMpiGroup(absl::Duration patience) {
  ASSIGN_OR_RETURN(const Library mpi, Load());
  constexpr int kSerialized = 2;  // calls from any thread, one at a time
  int before = 0, provided = 0, rank = 0, size = 0;
  if (mpi.initialized(&before) != 0 || before != 0) {
    return absl::FailedPreconditionError("this process has joined an MPI group already");
  }
  if (mpi.init_thread(nullptr, nullptr, kSerialized, &provided) != 0 ||
      mpi.comm_rank(mpi.world, &rank) != 0 || mpi.comm_size(mpi.world, &size) != 0) {
    return absl::UnavailableError("MPI cannot be started");
  }
  mpi.set_errhandler(mpi.world, mpi.errors_return);
  if (provided < kSerialized) {
    mpi.finalize();
    return absl::UnimplementedError("this MPI library cannot be called from more than one thread");
  }
  return std::make_unique<MpiGroup>(mpi, rank, size, patience);
}

}  // namespace terrace::parallel
