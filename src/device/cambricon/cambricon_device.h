// A Cambricon MLU through CNRT, found at run time. It has no compiler for the common kernel
// dialect: operators come from the maker's library (ops/cambricon).
#ifndef TERRACE_DEVICE_CAMBRICON_CAMBRICON_DEVICE_H_
#define TERRACE_DEVICE_CAMBRICON_CAMBRICON_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/driver_device.h"

namespace terrace::device {

struct CambriconOptions {
  std::string name = "cambricon:0";
  int ordinal = 0;
  // Memory to take; 0: what is free, but for a part that the runtime needs.
  uint64_t memory_bytes = 0;
  // The runtime's library; empty: where its maker installs it.
  std::string library;
  std::string collective_library;  // the same for the one that sums over chips
};

// NotFound without the runtime or an MLU of that number; ResourceExhausted without the memory.
absl::StatusOr<std::unique_ptr<DriverDevice>> CreateCambriconDevice(
    const CambriconOptions& options);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_CAMBRICON_CAMBRICON_DEVICE_H_
