#include "storage/object/object_download.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "storage/object/range_file.h"

namespace terrace::storage {
namespace {

constexpr int64_t kLookUs = 50000;  // between looks at `cancel` and the time limit

// One call of DownloadObject: the pinned object, the threads that fetch its ranges, and the calling
// thread, which watches them, hashes what has come without a gap, and keeps the note.
class Download {
 public:
  Download(ObjectStore& store, const std::string& key, RangeFile& file,
           const DownloadOptions& options, const DownloadContext& context)
      : store_(store),
        key_(key),
        name_(store.NameOf(key)),
        file_(file),
        options_(options),
        context_(context),
        deadline_us_(options.time_limit_us > 0 ? context.clock.NowUs() + options.time_limit_us
                                               : 0) {}

  absl::StatusOr<DownloadResult> Run();

 private:
  // Ranges that are asked for at once.
  struct Piece {
    uint64_t first = 0, count = 0;
  };
  absl::Status Once();
  absl::Status Prepare();
  void Work();
  absl::Status Watch();
  absl::Status HashNext(bool* behind);
  void Finish(const Piece& piece, const absl::Status& status);
  // Taken now; none if all are.
  Piece Take(std::optional<uint64_t> wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fetch(const Piece& piece);
  // Runs `attempt` until it succeeds, fails for good, has been tried often enough, or `stop` is
  // set.
  absl::Status Repeat(const std::atomic<bool>& stop,
                      const std::function<absl::Status(const RequestControl&)>& attempt);
  // OK, Cancelled or DeadlineExceeded.
  absl::Status CheckTime() const;
  bool UserCancelled() const { return options_.cancel != nullptr && options_.cancel->load(); }
  uint64_t BytesOf(uint64_t range) const {
    return std::min(options_.range_bytes, info_.bytes - range * options_.range_bytes);
  }
  uint64_t BytesOf(const Piece& piece) const {
    const uint64_t begin = piece.first * options_.range_bytes;
    return std::min(piece.count * options_.range_bytes, info_.bytes - begin);
  }

  ObjectStore& store_;
  const std::string& key_;
  const std::string name_;
  RangeFile& file_;
  const DownloadOptions& options_;
  const DownloadContext& context_;
  const int64_t deadline_us_;  // 0: none

  // Written while no worker runs.
  ObjectInfo info_;
  std::atomic<bool> stop_{false};  // what workers obey: failure, cancel, time limit
  DownloadResult result_;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash_{nullptr, &EVP_MD_CTX_free};
  uint64_t hashed_ = 0;  // ranges, from the first

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<bool> done_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> taken_ ABSL_GUARDED_BY(mutex_);  // done, or somebody fetches it
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;        // no range before it waits to be fetched
  uint64_t done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t untaken_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int retries_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Download::CheckTime() const {
  if (UserCancelled()) return absl::CancelledError(fmt::format("'{}': cancelled", name_));
  if (deadline_us_ == 0 || context_.clock.NowUs() < deadline_us_) return absl::OkStatus();
  return absl::DeadlineExceededError(fmt::format("'{}': not there within the time limit of {} s",
                                                 name_, options_.time_limit_us / 1e6));
}

absl::Status Download::Repeat(const std::atomic<bool>& stop,
                              const std::function<absl::Status(const RequestControl&)>& attempt) {
  int64_t backoff_us = options_.backoff_us;
  for (int attempts = 1;; ++attempts) {
    RETURN_IF_ERROR(CheckTime());
    int64_t retry_after_us = 0;
    RequestControl control{&stop, 0, &retry_after_us};
    if (deadline_us_ > 0) {
      control.timeout_us = std::max<int64_t>(deadline_us_ - context_.clock.NowUs(), 1);
    }
    absl::Status status = attempt(control);
    if (status.ok() || !absl::IsUnavailable(status)) return status;
    absl::Status time = CheckTime();
    if (!time.ok()) return WithContext(time, Message(status));
    if (attempts >= options_.attempts) {
      return WithContext(status, fmt::format("giving up after {} attempts", attempts));
    }
    int64_t wait_us = 0;
    {
      absl::MutexLock lock(&mutex_);
      ++retries_;
      // Half is random, so that ranges refused together don't come back together.
      wait_us = backoff_us / 2 + static_cast<int64_t>(context_.random.Uniform() *
                                                      static_cast<double>(backoff_us) / 2);
    }
    wait_us = std::max(wait_us, retry_after_us);
    if (deadline_us_ > 0 && context_.clock.NowUs() + wait_us >= deadline_us_) {
      return absl::DeadlineExceededError(
          fmt::format("the time limit of {} s leaves no further attempt: {}",
                      options_.time_limit_us / 1e6, Message(status)));
    }
    context_.sleeper.SleepUs(wait_us, stop);
    backoff_us = std::min(backoff_us * 2, options_.max_backoff_us);
  }
}

absl::Status Download::Fetch(const Piece& piece) {
  return Repeat(stop_, [&](const RequestControl& control) {
    return store_.StreamRange(key_, piece.first * options_.range_bytes, BytesOf(piece), info_,
                              control, [&](uint64_t offset, std::span<const std::byte> data) {
                                if (options_.came) options_.came();
                                return file_.WriteAt(offset, data);
                              });
  });
}

Download::Piece Download::Take(std::optional<uint64_t> wanted) {
  while (next_ < taken_.size() && taken_[next_]) ++next_;
  if (next_ == taken_.size()) return {};
  Piece piece{next_, 0};
  if (wanted && *wanted / options_.range_bytes < taken_.size() &&
      !taken_[*wanted / options_.range_bytes]) {
    piece.first = *wanted / options_.range_bytes;
  }
  const auto parallel = static_cast<uint64_t>(std::max(options_.parallel, 1));
  const uint64_t most = std::min({options_.request_bytes / options_.range_bytes,
                                  piece.first / parallel, untaken_ / (2 * parallel)});
  do {
    taken_[piece.first + piece.count] = true;
    --untaken_;
    ++piece.count;
  } while (piece.count < most && piece.first + piece.count < taken_.size() &&
           !taken_[piece.first + piece.count]);
  return piece;
}

void Download::Work() {
  while (!stop_.load()) {
    const std::optional<uint64_t> wanted = options_.wanted ? options_.wanted() : std::nullopt;
    Piece piece;
    {
      absl::MutexLock lock(&mutex_);
      piece = Take(wanted);
    }
    if (piece.count == 0) break;
    Finish(piece, Fetch(piece));
  }
  absl::MutexLock lock(&mutex_);
  --running_;
  changed_.Signal();
}

void Download::Finish(const Piece& piece, const absl::Status& status) {
  if (status.ok() && options_.landed) {
    options_.landed(piece.first * options_.range_bytes, BytesOf(piece));
  }
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    for (uint64_t i = 0; i < piece.count; ++i) done_[piece.first + i] = true;
    done_bytes_ += BytesOf(piece);
  } else {
    if (failure_.ok()) failure_ = status;  // later ones are mostly its consequence
    stop_ = true;
  }
  changed_.Signal();
}

// Hashes the next range if it has come; `*behind` says whether a further one has.
absl::Status Download::HashNext(bool* behind) {
  *behind = false;
  {
    absl::MutexLock lock(&mutex_);
    if (hashed_ == done_.size() || !done_[hashed_]) return absl::OkStatus();
  }
  uint64_t start = hashed_ * options_.range_bytes, bytes = BytesOf(hashed_);
  std::vector<std::byte> buffer(std::min<uint64_t>(kMiB, bytes));
  for (uint64_t at = 0; at < bytes;) {
    RETURN_IF_ERROR(CheckTime());
    auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), bytes - at));
    RETURN_IF_ERROR(file_.ReadAt(start + at, piece));
    EVP_DigestUpdate(hash_.get(), piece.data(), piece.size());
    at += piece.size();
  }
  ++hashed_;
  absl::MutexLock lock(&mutex_);
  *behind = hashed_ < done_.size() && done_[hashed_];
  return absl::OkStatus();
}

// Until all workers have ended and all is hashed. Hashing keeps up with them, for the digest is
// wanted anyway and this thread would only wait.
absl::Status Download::Watch() {
  absl::Status own;
  uint64_t saved_bytes = result_.resumed_at_bytes;
  bool behind = false;
  for (bool running = true; running || (behind && own.ok());) {
    std::vector<bool> done;
    uint64_t done_bytes = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (running_ > 0 && !behind) {
        changed_.WaitWithTimeout(&mutex_, absl::Microseconds(kLookUs));
      }
      running = running_ > 0;
      done_bytes = done_bytes_;
      if (done_bytes - saved_bytes >= options_.save_bytes) done = done_;
    }
    if (options_.progress) options_.progress({done_bytes, info_.bytes});
    if (own.ok()) own = CheckTime();
    if (own.ok() && !done.empty()) {
      own = file_.Save(done);
      saved_bytes = done_bytes;
    }
    behind = false;
    if (own.ok() && !stop_.load()) own = HashNext(&behind);
    if (!own.ok()) stop_ = true;
  }
  absl::MutexLock lock(&mutex_);
  // What a worker met says more than that the time is over, and a cancelled worker says nothing.
  return failure_.ok() || (absl::IsCancelled(failure_) && !own.ok()) ? own : failure_;
}

// Pins the object's present state and finds what is there of it.
absl::Status Download::Prepare() {
  stop_ = false;
  const std::atomic<bool>& stop = options_.cancel != nullptr ? *options_.cancel : stop_;
  RETURN_IF_ERROR(Repeat(stop, [&](const RequestControl& control) -> absl::Status {
    ASSIGN_OR_RETURN(info_, store_.Stat(key_, control));
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(std::vector<bool> done, file_.Begin(name_, info_, options_.range_bytes));
  hash_.reset(EVP_MD_CTX_new());
  EVP_DigestInit_ex(hash_.get(), EVP_sha256(), nullptr);
  hashed_ = 0;
  if (options_.begun) RETURN_IF_ERROR(options_.begun(info_));
  for (uint64_t i = 0; options_.landed && i < done.size(); ++i) {
    if (done[i]) options_.landed(i * options_.range_bytes, BytesOf(i));
  }
  absl::MutexLock lock(&mutex_);
  done_ = std::move(done);
  taken_ = done_;
  next_ = done_bytes_ = 0;
  untaken_ = static_cast<uint64_t>(std::count(taken_.begin(), taken_.end(), false));
  failure_ = absl::OkStatus();
  for (uint64_t i = 0; i < done_.size(); ++i) {
    if (done_[i]) done_bytes_ += BytesOf(i);
  }
  result_.bytes = info_.bytes;
  result_.resumed_at_bytes = done_bytes_;
  return absl::OkStatus();
}

absl::Status Download::Once() {
  RETURN_IF_ERROR(Prepare());
  std::vector<std::thread> workers;
  {
    absl::MutexLock lock(&mutex_);
    uint64_t waiting = static_cast<uint64_t>(std::count(done_.begin(), done_.end(), false));
    running_ = static_cast<int>(
        std::min<uint64_t>(static_cast<uint64_t>(std::max(options_.parallel, 1)), waiting));
    for (int i = 0; i < running_; ++i) workers.emplace_back([this] { Work(); });
  }
  absl::Status status = Watch();
  for (std::thread& worker : workers) worker.join();
  return status;
}

absl::StatusOr<DownloadResult> Download::Run() {
  absl::Status status = Once();
  while (absl::IsAborted(status) && result_.restarts < options_.restarts) {
    ++result_.restarts;
    status = Once();  // finds that the note, if there is one, is of another state
  }
  absl::MutexLock lock(&mutex_);
  result_.retries = retries_;
  if (!status.ok()) {
    bool any = std::find(done_.begin(), done_.end(), true) != done_.end();
    bool gone = absl::IsAborted(status) || absl::IsNotFound(status) || !info_.Pinned();
    if (!any || gone || !file_.Save(done_).ok()) file_.Discard();
    return status;
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(hash_.get(), digest, &size);
  result_.sha256 = fmt::format("{:02x}", fmt::join(digest, digest + size, ""));
  if (!options_.sha256.empty() && result_.sha256 != options_.sha256) {
    file_.Discard();
    return absl::DataLossError(
        fmt::format("'{}' has SHA-256 {}, not {}", name_, result_.sha256, options_.sha256));
  }
  RETURN_IF_ERROR(file_.Commit());
  return result_;
}

}  // namespace

void RealSleeper::SleepUs(int64_t us, const std::atomic<bool>& stop) {
  for (; us > 0 && !stop.load(); us -= kLookUs) {
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(us, kLookUs)));
  }
}

absl::StatusOr<DownloadResult> DownloadObject(ObjectStore& store, const std::string& key,
                                              const std::string& destination,
                                              const DownloadOptions& options,
                                              const DownloadContext& context) {
  ASSIGN_OR_RETURN(std::unique_ptr<RangeFile> file, RangeFile::Open(destination));
  return Download(store, key, *file, options, context).Run();
}

}  // namespace terrace::storage
