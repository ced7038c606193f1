// Host memory that is pinned for a device's copies while this lives, if the device does that.
#ifndef TERRACE_DEVICE_PINNED_RANGE_H_
#define TERRACE_DEVICE_PINNED_RANGE_H_

#include <cstddef>
#include <span>
#include <utility>

#include "device/device.h"

namespace terrace::device {

// Move-only; must go before the memory and the device do.
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(Device* device, std::span<std::byte> memory)
      : device_(device->Pin(memory) ? device : nullptr), memory_(memory) {}
  PinnedRange(PinnedRange&& other) noexcept { *this = std::move(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~PinnedRange() { Reset(); }

  bool pinned() const { return device_ != nullptr; }
  void Reset() {
    if (device_ != nullptr) device_->Unpin(memory_);
    device_ = nullptr;
  }

 private:
  Device* device_ = nullptr;  // null: not pinned
  std::span<std::byte> memory_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_PINNED_RANGE_H_
