#include "weights/object_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "os/atomic_file.h"
#include "storage/disk/disk_budget.h"
#include "storage/object/http_store.h"
#include "storage/object/object_download.h"
#include "storage/object/s3_store.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;

// What has come is told apart in pieces of the first size; the largest request is of the second.
constexpr uint64_t kRangeBytes = kMiB;
constexpr uint64_t kRequestBytes = 8 * kMiB;
// How long a start waits for a store before it takes the file that is there.
constexpr int64_t kStatTimeoutUs = 5'000'000;
// Between two looks.
constexpr int64_t kMostPauseUs = 2'000'000;
// For a look where the file of an earlier start is there.
constexpr int64_t kKnownPatienceUs = 3'000'000;

// What of `info` tells one state of an object from another.
std::string StateOf(const storage::ObjectInfo& info) {
  return info.version.empty() ? info.etag : info.version;
}

// The file of one state of an object, and the name that all states share.
std::string FilePrefix(const std::string& name) { return fmt::format("{:016x}-", Hash64(name)); }
std::string FileName(const std::string& name, const storage::ObjectInfo& info) {
  const std::string state =
      fmt::format("{} {} {}", StateOf(info), info.bytes, info.Pinned() ? "" : info.last_modified);
  return fmt::format("{}{:016x}.gguf", FilePrefix(name), Hash64(state));
}

// Beside a whole file: the state it is of, a line a field.
constexpr std::string_view kStateSuffix = ".state";

std::string WriteState(const storage::ObjectInfo& info) {
  return fmt::format("{}\n{}\n{}\n{}\n", info.bytes, info.etag, info.version, info.last_modified);
}

std::optional<storage::ObjectInfo> ReadState(const std::string& path) {
  std::ifstream in(path);
  storage::ObjectInfo info;
  std::string bytes;
  if (!std::getline(in, bytes) || !std::getline(in, info.etag) || !std::getline(in, info.version) ||
      !std::getline(in, info.last_modified)) {
    return std::nullopt;
  }
  auto [end, error] = std::from_chars(bytes.data(), bytes.data() + bytes.size(), info.bytes);
  if (error != std::errc() || end != bytes.data() + bytes.size()) return std::nullopt;
  return info;
}

class ObjectSource final : public format::ByteSource {
 public:
  ObjectSource(ObjectPlace place, ObjectSourceOptions options, storage::ObjectInfo info)
      // The name tells states apart, so that an image made from one is never taken for another's.
      : ByteSource(fmt::format("{}#{}", place.name, StateOf(info)), info.bytes, 0),
        place_(std::move(place)),
        options_(std::move(options)),
        info_(std::move(info)),
        path_(options_.folder + "/" + FileName(place_.name, info_)),
        landed_((info_.bytes + kRangeBytes - 1) / kRangeBytes) {}

  ~ObjectSource() override {
    stop_ = true;
    std::thread thread;
    {
      absl::MutexLock lock(&mutex_);
      thread = std::move(thread_);
    }
    if (thread.joinable()) thread.join();
  }

  // The file is there already.
  absl::Status UseFile() {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(OpenLocked(path_));
    std::fill(landed_.begin(), landed_.end(), true);
    return absl::OkStatus();
  }
  void Fetch() {
    absl::MutexLock lock(&mutex_);
    BeginLocked();
  }

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset) {
      return absl::DataLossError(fmt::format("'{}' ends at byte {}; {} wanted from {}", name(),
                                             size(), out.size(), offset));
    }
    if (out.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::shared_ptr<const File> file, Await(offset, out.size()));
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t n =
          pread(file->fd, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, fmt::format("reading '{}'", path_));
      if (n == 0) return absl::DataLossError(fmt::format("'{}' has become shorter", path_));
      done += static_cast<size_t>(n);
    }
    return absl::OkStatus();
  }

  Waiting waiting() const override {
    if (readers_ == 0) return {};
    return {place_.name, std::max<int64_t>(0, clock_.NowUs() - came_us_)};
  }

  absl::Status CheckUnchanged() const override {
    absl::MutexLock lock(&mutex_);
    return absl::IsFailedPrecondition(failure_) ? failure_ : absl::OkStatus();
  }

 private:
  // Shared between the source and the reads under way, which may outlast it here: a fetch that
  // begins from nothing has another file.
  struct File {
    explicit File(int descriptor) : fd(descriptor) {}
    ~File() { close(fd); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    const int fd;
  };

  // The file, once bytes [offset, offset + bytes) are in it. Readers may come from many threads, on
  // a source that is const to them, hence the mutable fields below.
  absl::StatusOr<std::shared_ptr<const File>> Await(uint64_t offset, uint64_t bytes) const {
    const uint64_t first = offset / kRangeBytes, last = (offset + bytes - 1) / kRangeBytes;
    absl::MutexLock lock(&mutex_);
    bool tried = false;
    for (uint64_t range = first; range <= last;) {
      if (landed_[range]) {
        ++range;
        continue;
      }
      if (absl::IsFailedPrecondition(failure_)) return failure_;
      if (!running_) {
        // An earlier fetch has failed. One more try for each reader that comes now.
        if (tried) return failure_;
        tried = true;
        BeginLocked();
      }
      tried = true;  // whoever waited for a fetch is told how it ended
      wanted_ = range * kRangeBytes;
      if (readers_++ == 0) came_us_ = clock_.NowUs();
      changed_.Wait(&mutex_);
      --readers_;
    }
    return file_;
  }

  absl::Status OpenLocked(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, fmt::format("opening '{}'", path));
    file_ = std::make_shared<const File>(fd);
    std::fill(landed_.begin(), landed_.end(), false);
    return absl::OkStatus();
  }

  void BeginLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (thread_.joinable()) thread_.join();  // it has said that it ends, and holds no lock then
    running_ = true;
    failure_ = absl::OkStatus();
    thread_ = std::thread([this] { Run(); });
  }

  // The fetching thread.
  void Run() const {
    absl::Status status = FetchAll();
    if (!status.ok() && !stop_ && options_.notice) {
      options_.notice(fmt::format("fetching the model: {}", Message(status)));
    }
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(status);
    running_ = false;
    changed_.SignalAll();
  }

  absl::Status FetchAll() const {
    storage::DiskClaim claim;
    if (options_.disk != nullptr) {
      const uint64_t there = storage::FileBytesOnDisk(path_ + ".partial");
      ASSIGN_OR_RETURN(claim,
                       options_.disk->Claim(size() - std::min(there, size()),
                                            fmt::format("the file of {}", place_.name), nullptr));
    }
    storage::DownloadOptions download;
    download.range_bytes = kRangeBytes;
    download.request_bytes = kRequestBytes;
    download.parallel = options_.parallel;
    download.attempts = options_.attempts;
    download.backoff_us = options_.backoff_us;
    download.restarts = 0;
    download.sha256 = options_.sha256;
    download.cancel = &stop_;
    download.begun = [&](const storage::ObjectInfo& info) -> absl::Status {
      claim.Release();  // its room is taken on disk now
      if (info != info_) {
        return absl::FailedPreconditionError(
            fmt::format("'{}' has changed in its store", place_.name));
      }
      absl::MutexLock lock(&mutex_);
      return OpenLocked(path_ + ".partial");
    };
    download.landed = [&](uint64_t offset, uint64_t bytes) {
      if (!options_.sha256.empty()) return;  // not before the check
      absl::MutexLock lock(&mutex_);
      for (uint64_t at = offset; at < offset + bytes; at += kRangeBytes) {
        landed_[at / kRangeBytes] = true;
      }
      changed_.SignalAll();
    };
    download.came = [&] { came_us_ = clock_.NowUs(); };
    download.wanted = [&] {
      absl::MutexLock lock(&mutex_);
      return std::exchange(wanted_, std::nullopt);
    };
    RealClock clock;
    Random random(static_cast<uint64_t>(clock.WallUs()));
    storage::RealSleeper sleeper;
    const absl::Status status = storage::DownloadObject(*place_.store, place_.key, path_, download,
                                                        {clock, random, sleeper})
                                    .status();
    if (absl::IsAborted(status)) return absl::FailedPreconditionError(std::string(Message(status)));
    RETURN_IF_ERROR(status);
    {
      absl::MutexLock lock(&mutex_);
      std::fill(landed_.begin(), landed_.end(), true);
      changed_.SignalAll();
    }
    // For starts without the store.
    return os::WriteFileAtomically(path_ + std::string(kStateSuffix), WriteState(info_));
  }

  const ObjectPlace place_;
  const ObjectSourceOptions options_;
  const storage::ObjectInfo info_;
  const std::string path_;
  const RealClock clock_;
  mutable std::atomic<bool> stop_{false};
  mutable std::atomic<int> readers_{0};      // that wait now
  mutable std::atomic<int64_t> came_us_{0};  // when something last came, or a first one waited
  mutable absl::Mutex mutex_;
  mutable absl::CondVar changed_;
  mutable std::shared_ptr<const File> file_ ABSL_GUARDED_BY(mutex_);  // once a fetch has begun
  mutable std::vector<bool> landed_ ABSL_GUARDED_BY(mutex_);
  mutable std::optional<uint64_t> wanted_ ABSL_GUARDED_BY(mutex_);
  mutable bool running_ ABSL_GUARDED_BY(mutex_) = false;
  mutable absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // of the last fetch
  mutable std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

// The state of the object whose file is whole in `folder`; there is one at most.
std::optional<storage::ObjectInfo> StateOnDisk(const std::string& folder, const std::string& name) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(FilePrefix(name)) || !file.ends_with(kStateSuffix)) continue;
    std::optional<storage::ObjectInfo> info = ReadState(entry.path().string());
    if (info && fs::exists(fmt::format("{}/{}", folder, FileName(name, *info)), error)) return info;
  }
  return std::nullopt;
}

// Files of states that are no more.
void RemoveOtherStates(const std::string& folder, const std::string& name,
                       const std::string& keep) {
  std::vector<fs::path> doomed;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with(FilePrefix(name)) && !file.starts_with(keep)) {
      doomed.push_back(entry.path());
    }
  }
  for (const fs::path& path : doomed) fs::remove(path, error);
}

// The object's state; asked again with growing pauses while the store is unavailable, for
// `patience_us` in all.
absl::StatusOr<storage::ObjectInfo> StatPatiently(const ObjectPlace& place, int64_t patience_us,
                                                  const ObjectSourceOptions& options) {
  const RealClock clock;
  Random random(static_cast<uint64_t>(clock.WallUs()));
  storage::RealSleeper sleeper;
  const std::atomic<bool> never{false};
  const int64_t begin_us = clock.NowUs();
  int64_t backoff_us = options.backoff_us;
  for (int tries = 1;; ++tries) {
    const int64_t left_us = std::max<int64_t>(1, begin_us + patience_us - clock.NowUs());
    int64_t asked_us = 0;  // by the store
    absl::StatusOr<storage::ObjectInfo> info = place.store->Stat(
        place.key, {.timeout_us = std::min(left_us, kStatTimeoutUs), .retry_after_us = &asked_us});
    if (info.ok() || !absl::IsUnavailable(info.status())) return info;
    const auto half = static_cast<double>(backoff_us) / 2;
    const int64_t wait_us =
        std::max(static_cast<int64_t>(half + random.Uniform() * half), asked_us);
    const int64_t spent_us = clock.NowUs() - begin_us;
    if (spent_us + wait_us >= patience_us) {
      return WithContext(info.status(), fmt::format("no answer in {} tries over {:.1f} s", tries,
                                                    static_cast<double>(spent_us) * 1e-6));
    }
    sleeper.SleepUs(wait_us, never);
    backoff_us = std::min<int64_t>(2 * backoff_us, kMostPauseUs);
  }
}

}  // namespace

bool IsObject(std::string_view source) {
  return source.starts_with("s3://") || source.starts_with("http://") ||
         source.starts_with("https://");
}

absl::StatusOr<ObjectPlace> FindObject(
    const std::string& source, const std::function<std::string(std::string_view)>& environment,
    const Clock& clock) {
  ObjectPlace place;
  if (source.starts_with("s3://")) {
    ASSIGN_OR_RETURN(storage::S3Location location, storage::ParseS3Url(source));
    ASSIGN_OR_RETURN(storage::S3Settings settings, storage::S3SettingsFrom(environment));
    ASSIGN_OR_RETURN(place.store,
                     storage::S3Store::Create(std::move(settings), location.bucket, {}, clock));
    place.key = location.key;
  } else if (IsObject(source)) {
    place.store = std::make_shared<storage::HttpStore>("", storage::HttpOptions());
    place.key = source;
  } else {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is no s3:, http: or https: source", source));
  }
  place.name = place.store->NameOf(place.key);
  return place;
}

absl::StatusOr<std::unique_ptr<format::ByteSource>> OpenObject(const ObjectPlace& place,
                                                               const ObjectSourceOptions& options) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("creating '{}'", options.folder));
  std::optional<storage::ObjectInfo> known = StateOnDisk(options.folder, place.name);
  // A store's first answers after a pause are often those that are lost; with nothing to fall back
  // on there is more patience.
  absl::StatusOr<storage::ObjectInfo> info = StatPatiently(
      place, known ? std::min(kKnownPatienceUs, options.patience_us) : options.patience_us,
      options);
  if (absl::IsUnavailable(info.status())) {
    if (known) {
      if (options.notice) {
        options.notice(
            fmt::format("{}; the file of an earlier start is read", Message(info.status())));
      }
      info = *std::move(known);
    }
  }
  RETURN_IF_ERROR(info.status());
  const std::string file = FileName(place.name, *info);
  RemoveOtherStates(options.folder, place.name, file);
  auto source = std::make_unique<ObjectSource>(place, options, *info);
  if (fs::exists(options.folder + "/" + file, error)) {
    RETURN_IF_ERROR(source->UseFile());
  } else {
    source->Fetch();
  }
  return std::unique_ptr<format::ByteSource>(std::move(source));
}

}  // namespace terrace::weights
