// Device memory that a driver gave and what of it is given out: mapped from pages where the driver
// has those, else carved from one allocation, or each range an allocation of its own. Thread-safe.
#ifndef TERRACE_DEVICE_DRIVER_MEMORY_H_
#define TERRACE_DEVICE_DRIVER_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "device/driver_api.h"
#include "device/range_allocator.h"
#include "device/virtual_arena.h"

namespace terrace::device {

class DriverMemory {
 public:
  // Every address is a multiple of this and every range takes a multiple.
  static constexpr uint64_t kAlignment = 4096;

  // Gives out `bytes` at most (whole pages of them). With `arena` they are taken from the driver at
  // once; else each range when it is asked for, for drivers that put something behind every
  // allocation. `api` must outlive this.
  static absl::StatusOr<std::unique_ptr<DriverMemory>> Create(const DriverApi* api,
                                                              std::string device, uint64_t bytes,
                                                              bool arena);
  ~DriverMemory();

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes);
  void Free(const std::byte* data);
  uint64_t bytes() const { return bytes_; }
  uint64_t allocated() const;
  // True if [data, data + bytes) lies in one range that is given out.
  bool Holds(const std::byte* data, uint64_t bytes) const;

 private:
  DriverMemory(const DriverApi* api, std::string device, uint64_t bytes);
  absl::Status Refuse(uint64_t bytes, uint64_t allocated, uint64_t largest) const;

  struct Own {
    uint64_t bytes = 0;
    uint64_t address = 0;  // as the driver gave it
  };

  const DriverApi* const api_;
  const std::string device_;
  const uint64_t bytes_;
  uint64_t arena_ = 0;  // as the driver gave it; 0: none
  uint64_t base_ = 0;   // of the arena's first range
  mutable absl::Mutex mutex_;
  RangeAllocator ranges_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Own> own_ ABSL_GUARDED_BY(mutex_);  // by address; without an arena
  uint64_t own_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<VirtualArena> pages_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_MEMORY_H_
