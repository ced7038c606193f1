#include "storage/disk/disk_budget.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "base/units.h"

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kStatBlock = 512;  // the unit of st_blocks

}  // namespace

uint64_t FileBytesOnDisk(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_blocks) * kStatBlock;
}

uint64_t PhysicalBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    bytes += FileBytesOnDisk(it->path().string());
  }
  return bytes;
}

DiskClaim& DiskClaim::operator=(DiskClaim&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DiskClaim::Release() {
  if (budget_ != nullptr) std::exchange(budget_, nullptr)->Return(std::exchange(bytes_, 0));
}

absl::StatusOr<DiskClaim> DiskBudget::Claim(uint64_t bytes, std::string_view what,
                                            const std::function<bool()>& reclaim) {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    const uint64_t used = OnDisk() + claimed_;
    if (used <= cap_bytes_ && bytes <= cap_bytes_ - used) break;
    // What cannot fit at all costs nobody anything.
    if (bytes <= cap_bytes_ && reclaim && reclaim()) continue;
    return absl::ResourceExhaustedError(
        fmt::format("{} needs {} of disk; {} of the {} that storage.disk.size allows are taken",
                    what, FormatBytes(bytes), FormatBytes(used), FormatBytes(cap_bytes_)));
  }
  claimed_ += bytes;
  return DiskClaim(this, bytes);
}

uint64_t DiskBudget::used_bytes() const {
  absl::MutexLock lock(&mutex_);
  return OnDisk() + claimed_;
}

uint64_t DiskBudget::OnDisk() const {
  uint64_t bytes = 0;
  for (const std::string& folder : folders_) bytes += PhysicalBytes(folder);
  return bytes;
}

void DiskBudget::Return(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  claimed_ -= bytes;
}

}  // namespace terrace::storage
