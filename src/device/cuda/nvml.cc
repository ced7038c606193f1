#include "device/cuda/nvml.h"

#include <optional>

#include "device/shared_library.h"

namespace terrace::device::cuda {
namespace {

using NvmlDevice = struct NvmlDeviceObject*;
struct Utilization {
  unsigned gpu, memory;  // percent
};

struct Nvml {
  int (*Init)() = nullptr;
  int (*GetHandle)(const char*, NvmlDevice*) = nullptr;
  int (*GetUtilization)(NvmlDevice, Utilization*) = nullptr;
  int (*GetTemperature)(NvmlDevice, int sensor, unsigned* celsius) = nullptr;
  int (*GetPower)(NvmlDevice, unsigned* milliwatts) = nullptr;
  int (*GetLinkWidth)(NvmlDevice, unsigned* lanes) = nullptr;
};

class NvmlSensors final : public Sensors {
 public:
  NvmlSensors(const Nvml& nvml, NvmlDevice device) : nvml_(nvml), device_(device) {}

  Telemetry Read() const override {
    Telemetry out;
    Utilization utilization = {};
    if (nvml_.GetUtilization(device_, &utilization) == 0) out.utilisation = utilization.gpu / 100.0;
    unsigned value = 0;
    constexpr int kOfTheChip = 0;
    if (nvml_.GetTemperature(device_, kOfTheChip, &value) == 0) out.temperature_c = value;
    if (nvml_.GetPower(device_, &value) == 0) out.power_w = value / 1000.0;
    if (nvml_.GetLinkWidth(device_, &value) == 0) out.link_width = value;
    return out;
  }

 private:
  const Nvml nvml_;
  const NvmlDevice device_;
};

}  // namespace

std::shared_ptr<const Sensors> OpenNvml(const std::string& pci_bus_id, const std::string& library) {
  const auto opened =
      SharedLibrary::Open("NVML", {library.empty() ? "libnvidia-ml.so.1" : library});
  if (!opened.ok()) return nullptr;
  Nvml nvml;
  bool whole = true;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened->Find(name));
    whole = whole && *function != nullptr;
  };
  get("nvmlInit_v2", &nvml.Init);
  get("nvmlDeviceGetHandleByPciBusId_v2", &nvml.GetHandle);
  get("nvmlDeviceGetUtilizationRates", &nvml.GetUtilization);
  get("nvmlDeviceGetTemperature", &nvml.GetTemperature);
  get("nvmlDeviceGetPowerUsage", &nvml.GetPower);
  get("nvmlDeviceGetCurrPcieLinkWidth", &nvml.GetLinkWidth);
  NvmlDevice device = nullptr;
  if (!whole || nvml.Init() != 0 || nvml.GetHandle(pci_bus_id.c_str(), &device) != 0) {
    return nullptr;
  }
  return std::make_shared<NvmlSensors>(nvml, device);
}

}  // namespace terrace::device::cuda
