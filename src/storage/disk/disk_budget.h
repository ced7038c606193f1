// What the program's files may take of a disk: a cap that fails closed. What counts is what the
// file system says is taken, so that whatever lies in the folders counts, whoever wrote it, after a
// crash as before.
#ifndef TERRACE_STORAGE_DISK_DISK_BUDGET_H_
#define TERRACE_STORAGE_DISK_DISK_BUDGET_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace terrace::storage {

// Bytes of disk that the files below `folder` take (allocated blocks, not lengths). A folder that
// is not there takes none; so do files that vanish meanwhile.
uint64_t PhysicalBytes(const std::string& folder);
// The same of one file; 0 if it is not there.
uint64_t FileBytesOnDisk(const std::string& path);

class DiskBudget;

// A move-only promise of room, until the files it was made for are there themselves. Must not
// outlive its budget.
class DiskClaim {
 public:
  DiskClaim() = default;
  DiskClaim(DiskClaim&& other) noexcept { *this = std::move(other); }
  DiskClaim& operator=(DiskClaim&& other) noexcept;
  ~DiskClaim() { Release(); }
  uint64_t bytes() const { return bytes_; }
  void Release();

 private:
  friend class DiskBudget;
  DiskClaim(DiskBudget* budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {}
  DiskBudget* budget_ = nullptr;
  uint64_t bytes_ = 0;
};

// Thread-safe.
class DiskBudget {
 public:
  DiskBudget(std::vector<std::string> folders, uint64_t cap_bytes)
      : folders_(std::move(folders)), cap_bytes_(cap_bytes) {}

  // Room for `bytes` more. While they do not fit, `reclaim` is asked to remove something; false:
  // there is nothing left to remove. ResourceExhausted then says what is taken and by `what`.
  absl::StatusOr<DiskClaim> Claim(uint64_t bytes, std::string_view what,
                                  const std::function<bool()>& reclaim);
  uint64_t cap_bytes() const { return cap_bytes_; }
  // On disk and claimed.
  uint64_t used_bytes() const;

 private:
  friend class DiskClaim;
  uint64_t OnDisk() const;
  void Return(uint64_t bytes);

  const std::vector<std::string> folders_;
  const uint64_t cap_bytes_;
  mutable absl::Mutex mutex_;
  uint64_t claimed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_DISK_DISK_BUDGET_H_
