// A stand-in accelerator: computes on the CPU's cores, but has an arena of its own of a set size
// and links of set bandwidth and latency. For tests, benches and capacity studies. In stepped mode
// it has no threads and moves on only when told, so that a simulator with a manual clock is
// repeatable.
#ifndef TERRACE_DEVICE_SIM_SIM_DEVICE_H_
#define TERRACE_DEVICE_SIM_SIM_DEVICE_H_

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"

namespace terrace {
class Clock;
}

namespace terrace::device {

struct SimLink {
  double bytes_per_s = 0;  // 0: as fast as memory
  int64_t latency_us = 0;
};

struct SimDeviceOptions {
  std::string name = "sim:0";
  uint64_t memory_bytes = uint64_t{1} << 30;
  SimLink to_device;
  SimLink to_host;
  SimLink on_device;
  bool stepped = false;
  // Called for each copy before its bytes move: an error fails the copy; it may be null.
  std::function<absl::Status(CopyDirection)> before_copy;
  // Called with the bytes that arrived (to spoil them); may be null.
  std::function<void(CopyDirection, std::span<std::byte>)> after_copy;
};

class SimDevice : public Device {
 public:
  // Stepped mode: runs every stream's operations whose time has come; true if any ran.
  virtual bool Step() = 0;
};

// `clock` must outlive the device. Not stepped, it must be a clock that runs by itself.
absl::StatusOr<std::unique_ptr<SimDevice>> CreateSimDevice(const SimDeviceOptions& options,
                                                           const Clock* clock);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_SIM_SIM_DEVICE_H_
