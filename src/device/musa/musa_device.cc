#include "device/musa/musa_device.h"

#include <utility>

#include "base/status.h"
#include "device/cuda/nccl.h"
#include "device/musa/mtml.h"
#include "device/musa/mublas.h"
#include "device/musa/musa_prelude.h"

namespace terrace::device {
namespace musa {

absl::StatusOr<cuda::Driver> LoadDriver(const std::string& library) {
  cuda::DriverNames names{
      "MUSA", "mu", {"libmusa.so.1", "libmusa.so.4", "libmusa.so.5", "libmusa.so"}, true};
  if (!library.empty()) names.libraries = {library};
  ASSIGN_OR_RETURN(cuda::Driver driver, cuda::LoadDriver(names));
  driver.architecture_prefix = "mp_";
  return driver;
}

absl::StatusOr<CollectiveCalls> LoadMccl(const std::string& library) {
  cuda::NcclNames names{"MCCL", "mccl", {"libmccl.so", "libmccl.so.2"}};
  if (!library.empty()) names.libraries = {library};
  return cuda::LoadNccl(names);
}

cuda::CompilerMaker Mtrtc() {
  return {"MTRTC",
          "mtrtc",
          {"libmtrtc.so", "libmtrtc.so.1", "libmtrtc.so.4"},
          "GetFatBin",
          kPrelude,
          "--cuda-gpu-arch=",
          {"-std=c++17", "-ffp-contract=off"}};
}

}  // namespace musa

absl::StatusOr<std::unique_ptr<Device>> CreateMusaDevice(CudaOptions options) {
  options.kind = "musa";
  options.sensors = [ordinal = options.ordinal](const std::string&) {
    return musa::OpenMtml(ordinal);
  };
  options.collectives = [] { return musa::LoadMccl(); };
  options.matrices = [] { return musa::LoadMublas(); };
  ASSIGN_OR_RETURN(const cuda::Driver driver, musa::LoadDriver());
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Compiler> compiler, cuda::Compiler::Open(musa::Mtrtc()));
  return CreateCudaDevice(options, driver, std::move(compiler));
}

}  // namespace terrace::device
