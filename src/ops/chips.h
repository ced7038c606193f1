// The makers' chips that this build knows, each by one line of a table (chips.cc): how one is
// opened, and the operators that run on it.
#ifndef TERRACE_OPS_CHIPS_H_
#define TERRACE_OPS_CHIPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "ops/backend.h"

namespace terrace::ops {

enum class ChipKind : uint8_t {
  kGpu,  // computes the common kernel dialect, compiled at run time
  kNpu,  // has operators of its maker's; the host computes the others
};

struct ChipOptions {
  int ordinal = 0;             // among its maker's chips in this machine
  uint64_t memory_bytes = 0;   // to take; 0: what is free, but for a part that the driver needs
  std::string cache_folder;    // for compiled kernels; empty: none
  bool deterministic = false;  // of GPUs, as CreateKernelBackend takes it
  int32_t library_rows = 0;    // of GPUs, as KernelOptions has it
  // Of NPUs: operators of a library without a public interface, where a trial of them is right.
  bool unproven_operators = false;
  bool graphs = true;  // of GPUs, as DriverDeviceOptions has it
  // Is told what does not work as well as it could, once each, on any thread; may be null.
  std::function<void(const std::string&)> tell;
};

struct Chip {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<Backend> backend;  // uses `device`
  std::string note;                  // which operators it leaves to the host, if any
};

// The first maker's whose driver is here and has a chip of that number. `host` computes what an NPU
// does not; null for GPUs. NotFound tells of each maker why there is none.
absl::StatusOr<Chip> OpenChip(ChipKind kind, const ChipOptions& options,
                              std::unique_ptr<Backend> host);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_CHIPS_H_
