#include "device/cuda/cuda_device.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "device/cuda/cublas.h"
#include "device/cuda/cuda_driver.h"
#include "device/cuda/nccl.h"
#include "device/cuda/nvml.h"
#include "device/driver_device.h"

namespace terrace::device {
namespace {

class CudaCompiler final : public DriverCompiler {
 public:
  CudaCompiler(std::unique_ptr<cuda::Compiler> compiler, std::string architecture)
      : compiler_(std::move(compiler)), architecture_(std::move(architecture)) {}

  std::string Identity() const override { return architecture_ + ' ' + compiler_->Identity(); }
  absl::StatusOr<std::string> Compile(const std::string& source,
                                      const std::string& defines) const override {
    ASSIGN_OR_RETURN(cuda::MachineCode code, compiler_->Compile(source, defines, architecture_));
    return std::move(code.image);
  }

 private:
  const std::unique_ptr<cuda::Compiler> compiler_;
  const std::string architecture_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& asked) {
  CudaOptions options = asked;
  options.sensors = [](const std::string& pci_bus_id) { return cuda::OpenNvml(pci_bus_id); };
  options.collectives = [] { return cuda::LoadNccl(); };
  options.matrices = [] { return cuda::LoadCublas(); };
  ASSIGN_OR_RETURN(const cuda::Driver driver, cuda::LoadDriver());
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Compiler> compiler, cuda::Compiler::Open());
  return CreateCudaDevice(options, driver, std::move(compiler));
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options,
                                                         const cuda::Driver& driver,
                                                         std::unique_ptr<cuda::Compiler> compiler) {
  ASSIGN_OR_RETURN(cuda::OpenedDriver opened, cuda::OpenDriver(driver, options.ordinal));
  std::unique_ptr<DriverCompiler> own;
  if (compiler != nullptr) {
    own = std::make_unique<CudaCompiler>(std::move(compiler), opened.architecture);
  }
  DriverDeviceOptions device;
  device.info.name = options.name;
  device.info.kind = options.kind;
  device.info.description = fmt::format("{} ({})", opened.chip, opened.architecture);
  device.info.max_group_items = opened.max_group_items;
  device.info.tile_product = opened.tile_product;
  if (options.sensors != nullptr) device.sensors = options.sensors(opened.pci_bus_id);
  device.memory_bytes = options.memory_bytes;
  device.cache_folder = options.cache_folder;
  device.collectives = options.collectives;
  device.matrices = options.matrices;
  device.graphs = options.graphs;
  device.tell = options.tell;
  return DriverDevice::Create(std::move(device), std::move(opened.api), std::move(own));
}

}  // namespace terrace::device
