#include "storage/disk/block_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "os/direct_file.h"
#include "storage/block_frame.h"

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kHeaderBytes = BlockStore::kDataOffset;
constexpr std::string_view kSuffix = ".kv";
constexpr std::string_view kPartial = ".partial";
constexpr double kAverageWeight = 0.2;

// Memory that direct I/O takes, for a header.
struct Page {
  alignas(kHeaderBytes) std::byte bytes[kHeaderBytes] = {};
};

// Folds what a transfer of `bytes` in `took_us` got into a moving average.
void Average(uint64_t bytes, int64_t took_us, double* average) {
  const double rate =
      static_cast<double>(bytes) * 1e6 / static_cast<double>(std::max<int64_t>(took_us, 1));
  *average = *average == 0 ? rate : *average * (1 - kAverageWeight) + rate * kAverageWeight;
}

uint64_t FileBytes(uint64_t data_bytes) { return kHeaderBytes + data_bytes; }

std::optional<BlockKey> KeyFromName(std::string_view name) {
  if (name.size() != 32 + kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  BlockKey key;
  for (size_t i = 0; i < 16; ++i) {
    unsigned value = 0;
    for (char c : name.substr(2 * i, 2)) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit && !(c >= 'a' && c <= 'f')) return std::nullopt;
      value = value * 16 + static_cast<unsigned>(digit ? c - '0' : c - 'a' + 10);
    }
    key.bytes[i] = static_cast<uint8_t>(value);
  }
  return key;
}

}  // namespace

BlockStore::BlockStore(const BlockStoreOptions& options, const Clock* clock)
    : options_(options), clock_(clock) {}

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Open(const BlockStoreOptions& options,
                                                             const Clock* clock) {
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) return ErrnoStatus(error.value(), "creating " + options.folder);
  std::unique_ptr<BlockStore> store(new BlockStore(options, clock));
  RETURN_IF_ERROR(store->Lock());
  RETURN_IF_ERROR(store->Scan());
  return store;
}

BlockStore::~BlockStore() {
  if (lock_fd_ >= 0) close(lock_fd_);  // which gives up the lock
}

absl::Status BlockStore::Lock() {
  const std::string path = options_.folder + "/lock";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0) return ErrnoStatus(errno, "opening " + path);
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "locking " + path);
  return absl::UnavailableError(fmt::format("another process keeps its KV in {}", options_.folder));
}

absl::Status BlockStore::Scan() {
  struct Found {
    fs::file_time_type time;
    BlockKey key;
    uint64_t bytes;
  };
  std::vector<Found> found;
  std::error_code error;
  for (fs::directory_iterator it(options_.folder, error), end; it != end; it.increment(error)) {
    if (error) break;
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    std::optional<BlockKey> key = KeyFromName(name);
    const bool ours = key.has_value() || name.ends_with(kPartial);
    if (!ours || !it->is_regular_file(ignored)) continue;
    const uint64_t bytes = it->file_size(ignored);
    if (!key.has_value() || bytes <= kHeaderBytes || bytes % kHeaderBytes != 0) {
      fs::remove(it->path(), ignored);
      continue;
    }
    found.push_back({it->last_write_time(ignored), *key, bytes});
  }
  if (error) return ErrnoStatus(error.value(), "reading " + options_.folder);
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.time < b.time; });
  absl::MutexLock lock(&mutex_);
  for (const Found& file : found) {
    order_.push_back(file.key);
    index_[file.key] = {file.bytes, std::prev(order_.end())};
    state_.bytes += file.bytes;
  }
  while (state_.bytes > options_.cap_bytes && !order_.empty()) RemoveLocked(order_.front());
  return absl::OkStatus();
}

std::string BlockStore::PathOf(const BlockKey& key) const {
  return fmt::format("{}/{}{}", options_.folder, key.Hex(), kSuffix);
}

bool BlockStore::Contains(const BlockKey& key) const {
  absl::MutexLock lock(&mutex_);
  return index_.contains(key);
}

void BlockStore::RemoveLocked(const BlockKey& key) {
  auto it = index_.find(key);
  if (it == index_.end()) return;
  std::error_code ignored;
  // A reader that has the file open goes on reading it; the bytes are free when it closes.
  fs::remove(PathOf(key), ignored);
  state_.bytes -= it->second.file_bytes;
  order_.erase(it->second.order);
  index_.erase(it);
}

void BlockStore::Remove(const BlockKey& key) {
  absl::MutexLock lock(&mutex_);
  RemoveLocked(key);
}

bool BlockStore::MakeRoomLocked(uint64_t bytes) {
  if (bytes > options_.cap_bytes) return false;
  const auto cap = static_cast<double>(options_.cap_bytes);
  const uint64_t used = state_.bytes + reserved_bytes_;
  if (static_cast<double>(used + bytes) <= cap * options_.watermark) return true;
  const auto batch = static_cast<uint64_t>(cap * options_.evict_share);
  uint64_t freed = 0;
  while (!order_.empty() &&
         (freed < batch || state_.bytes + reserved_bytes_ + bytes > options_.cap_bytes)) {
    freed += index_[order_.front()].file_bytes;
    RemoveLocked(order_.front());
  }
  return state_.bytes + reserved_bytes_ + bytes <= options_.cap_bytes;
}

absl::Status BlockStore::Write(const BlockKey& key, std::span<const std::byte> data) {
  const uint64_t bytes = FileBytes(data.size());
  if (data.empty() || data.size() % kHeaderBytes != 0) {
    return absl::InvalidArgumentError("a stored block must be a multiple of 4 KiB");
  }
  {
    absl::MutexLock lock(&mutex_);
    if (index_.contains(key)) return absl::OkStatus();
    if (state_.read_only) return absl::UnavailableError("the KV store is read-only");
    if (!MakeRoomLocked(bytes)) {
      ++state_.refused;
      return absl::ResourceExhaustedError(fmt::format("a KV block of {} does not fit the cap of {}",
                                                      FormatBytes(bytes),
                                                      FormatBytes(options_.cap_bytes)));
    }
    reserved_bytes_ += bytes;
  }
  const std::string partial =
      fmt::format("{}/{}{}", options_.folder, next_temporary_.fetch_add(1), kPartial);
  auto write = [&]() -> absl::Status {
    Page page;
    const BlockFrame frame = MakeFrame(key, data);
    std::memcpy(page.bytes, &frame, sizeof(frame));
    ASSIGN_OR_RETURN(std::unique_ptr<os::DirectFile> file, os::DirectFile::Create(partial));
    RETURN_IF_ERROR(file->WriteAt(0, page.bytes));
    RETURN_IF_ERROR(file->WriteAt(kHeaderBytes, data));
    std::error_code error;
    fs::rename(partial, PathOf(key), error);
    return error ? ErrnoStatus(error.value(), "renaming " + partial) : absl::OkStatus();
  };
  const int64_t start_us = clock_->NowUs();
  const absl::Status status = write();
  const int64_t took_us = clock_->NowUs() - start_us;
  if (!status.ok()) return WriteFailed(partial, bytes, status);
  absl::MutexLock lock(&mutex_);
  reserved_bytes_ -= bytes;
  if (index_.contains(key)) return absl::OkStatus();  // another thread wrote the same block
  order_.push_back(key);
  index_[key] = {bytes, std::prev(order_.end())};
  state_.bytes += bytes;
  ++state_.written;
  Average(data.size(), took_us, &state_.write_bytes_per_s);
  return absl::OkStatus();
}

absl::Status BlockStore::WriteFailed(const std::string& partial, uint64_t bytes,
                                     const absl::Status& status) {
  std::error_code ignored;
  fs::remove(partial, ignored);
  bool first = false;
  {
    absl::MutexLock lock(&mutex_);
    reserved_bytes_ -= bytes;
    ++state_.refused;
    first = !std::exchange(state_.read_only, true);
  }
  if (first && options_.notice) {
    options_.notice(fmt::format(
        "nothing is written to the disk any more, what is there is read: {}", Message(status)));
  }
  return status;
}

absl::Status BlockStore::ReadChecked(const BlockKey& key, std::span<std::byte> out) const {
  ASSIGN_OR_RETURN(std::unique_ptr<os::DirectFile> file, os::DirectFile::OpenForRead(PathOf(key)));
  if (file->size() != FileBytes(out.size())) {
    return absl::DataLossError(
        fmt::format("{} has {} bytes, not {}", file->path(), file->size(), FileBytes(out.size())));
  }
  Page page;
  RETURN_IF_ERROR(file->ReadAt(0, page.bytes));
  RETURN_IF_ERROR(file->ReadAt(kHeaderBytes, out));
  BlockFrame frame;
  std::memcpy(&frame, page.bytes, sizeof(frame));
  return CheckFrame(frame, key, out, file->path());
}

absl::Status BlockStore::Read(const BlockKey& key, std::span<std::byte> out) {
  {
    absl::MutexLock lock(&mutex_);
    auto it = index_.find(key);
    if (it == index_.end()) return absl::NotFoundError("the block is not stored");
    order_.splice(order_.end(), order_, it->second.order);
  }
  const absl::Status status = ReadChecked(key, out);
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    if (absl::IsDataLoss(status)) ++state_.damaged;
    RemoveLocked(key);
    return absl::NotFoundError(std::string(Message(status)));
  }
  ++state_.read;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<os::DirectFile>> BlockStore::Open(const BlockKey& key,
                                                                 uint64_t data_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    auto it = index_.find(key);
    if (it == index_.end()) return absl::NotFoundError("the block is not stored");
    order_.splice(order_.end(), order_, it->second.order);
  }
  absl::StatusOr<std::unique_ptr<os::DirectFile>> file = os::DirectFile::OpenForRead(PathOf(key));
  if (file.ok() && (*file)->size() == FileBytes(data_bytes)) return file;
  absl::MutexLock lock(&mutex_);
  if (file.ok()) ++state_.damaged;
  RemoveLocked(key);
  return absl::NotFoundError("the block's file is gone or has another size");
}

absl::Status BlockStore::CheckRead(const BlockKey& key, std::span<const std::byte> header,
                                   uint64_t data_bytes, uint64_t data_hash) {
  BlockFrame frame;
  std::memcpy(&frame, header.data(), sizeof(frame));
  RETURN_IF_ERROR(CheckFrameHash(frame, key, data_bytes, data_hash, PathOf(key)));
  absl::MutexLock lock(&mutex_);
  ++state_.read;
  return absl::OkStatus();
}

BlockStoreState BlockStore::State() const {
  absl::MutexLock lock(&mutex_);
  BlockStoreState state = state_;
  state.blocks = index_.size();
  return state;
}

absl::Status BlockStore::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const auto& [key, entry] : index_) bytes += entry.file_bytes;
  if (bytes != state_.bytes || order_.size() != index_.size()) {
    return absl::InternalError(
        fmt::format("the index counts {} bytes, its entries {}", state_.bytes, bytes));
  }
  uint64_t on_disk = 0;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(options_.folder, error)) {
    std::error_code ignored;
    on_disk += file.file_size(ignored);
  }
  if (on_disk > options_.cap_bytes) {
    return absl::InternalError(
        fmt::format("{} bytes on disk pass the cap of {}", on_disk, options_.cap_bytes));
  }
  return absl::OkStatus();
}

}  // namespace terrace::storage
