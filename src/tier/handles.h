// What the tier manager hands out: pins of segments and pieces of memory. Each is move-only, gives
// back what it holds when it is destroyed, and must not outlive the manager.
#ifndef TERRACE_TIER_HANDLES_H_
#define TERRACE_TIER_HANDLES_H_

#include <cstddef>
#include <cstdint>

#include "tier/ledger.h"
#include "tier/pinned_arena.h"
#include "tier/types.h"

namespace terrace::tier {

class TierManagerImpl;

// A move-only handle that keeps a segment resident and yields its device address. Destroying it
// unpins. Must not outlive the manager.
class Pin {
 public:
  Pin() = default;
  Pin(Pin&& other) noexcept;
  Pin& operator=(Pin&& other) noexcept;
  ~Pin();

  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return manager_ != nullptr; }
  void Release();

 private:
  friend class TierManagerImpl;
  TierManagerImpl* manager_ = nullptr;
  ModelId model_ = 0;
  uint32_t segment_ = 0;
  const std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A move-only piece of device memory with its reservation; destroying it gives both back. Must not
// outlive the manager.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const Owner& owner() const { return owner_; }
  explicit operator bool() const { return manager_ != nullptr; }
  void Release();

 private:
  friend class TierManagerImpl;
  TierManagerImpl* manager_ = nullptr;
  Owner owner_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A move-only piece of host memory with its reservation in the host tier; destroying it gives both
// back. Must not outlive the manager.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(HostBuffer&&) = default;
  HostBuffer& operator=(HostBuffer&&) = default;

  std::byte* data() const { return memory_.data(); }
  uint64_t bytes() const { return bytes_; }

 private:
  friend class TierManagerImpl;
  Reservation reservation_;  // outlives the memory: what is held is booked
  PinnedArena::Piece memory_;
  uint64_t bytes_ = 0;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_HANDLES_H_
