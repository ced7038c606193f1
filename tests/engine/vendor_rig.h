// An engine on a chip whose vendor's library is a stand-in (tests/conformance/vendor). What the
// chip leaves to the host is the reference backend's.
#ifndef TERRACE_TESTS_ENGINE_VENDOR_RIG_H_
#define TERRACE_TESTS_ENGINE_VENDOR_RIG_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "conformance/vendor_library.h"
#include "device/ascend/ascend_device.h"
#include "device/cambricon/cambricon_device.h"
#include "engine/testing.h"
#include "ops/ascend/ascend_backend.h"
#include "ops/cambricon/cambricon_backend.h"

namespace terrace::engine {

inline bool IsVendor(const std::string& variant) {
  return variant == "ascend" || variant == "cambricon" || variant == "cnnl";
}

// `variant` and `deterministic` as Rig takes them, or a vendor. `team` must outlive the rig.
inline std::unique_ptr<Rig> MakeRig(const std::string& variant, uint64_t budget_bytes,
                                    ThreadTeam* team, bool deterministic = false) {
  if (!IsVendor(variant) && variant != "tiles") {
    return std::make_unique<Rig>(variant, budget_bytes, 2, deterministic);
  }
  if (variant == "tiles") {
    // As GPUs with a tile product run kernels, emulated.
    device::OpenClOptions options;
    options.memory_bytes = 4 * budget_bytes;
    options.scalar_items = options.tile_product = true;
    auto device = device::CreateOpenClDevice(options);
    EXPECT_TRUE(device.ok()) << device.status();
    auto backend = ops::CreateKernelBackend(device->get());
    EXPECT_TRUE(backend.ok()) << backend.status();
    return std::make_unique<Rig>(*std::move(device), *std::move(backend), budget_bytes);
  }
  const bool cnnl = variant == "cnnl";
  const std::string vendor = cnnl ? "cambricon" : variant;
  device::FakeOf(vendor)->Arm(0, 0);
  auto host = ops::CreateRefBackend(team);
  const std::string library = device::FakeLibrary(vendor);
  absl::StatusOr<std::unique_ptr<device::DriverDevice>> device;
  absl::StatusOr<std::unique_ptr<ops::Backend>> backend;
  if (variant == "ascend") {
    device::AscendOptions options;
    options.library = library;
    device = device::CreateAscendDevice(options);
    EXPECT_TRUE(device.ok()) << device.status();
    backend = ops::CreateAscendBackend(device->get(), std::move(host), library);
  } else {
    device::CambriconOptions options;
    options.library = library;
    device = device::CreateCambriconDevice(options);
    EXPECT_TRUE(device.ok()) << device.status();
    // "cnnl": with the operators of its library.
    auto made = ops::CreateCambriconBackend(device->get(), std::move(host),
                                            {.library = cnnl, .library_name = library});
    EXPECT_TRUE(made.ok()) << made.status();
    backend = std::move(made->backend);
  }
  EXPECT_TRUE(backend.ok()) << backend.status();
  return std::make_unique<Rig>(*std::move(device), *std::move(backend), budget_bytes);
}

}  // namespace terrace::engine

#endif  // TERRACE_TESTS_ENGINE_VENDOR_RIG_H_
