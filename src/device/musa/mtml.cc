#include "device/musa/mtml.h"

#include <vector>

#include "device/shared_library.h"

namespace terrace::device::musa {
namespace {

struct Mtml {
  int (*LibraryInit)(void** library) = nullptr;
  int (*LibraryShutDown)(void* library) = nullptr;
  int (*InitDevice)(const void* library, unsigned index, void** device) = nullptr;
  int (*FreeDevice)(void* device) = nullptr;
  int (*InitGpu)(const void* device, void** gpu) = nullptr;
  int (*FreeGpu)(void* gpu) = nullptr;
  int (*Utilization)(const void* gpu, unsigned* percent) = nullptr;
  int (*Temperature)(const void* gpu, int* celsius) = nullptr;
  int (*Power)(const void* device, unsigned* milliwatts) = nullptr;
};

class MtmlSensors final : public Sensors {
 public:
  explicit MtmlSensors(const Mtml& mtml) : mtml_(mtml) {}
  ~MtmlSensors() override {
    if (gpu_ != nullptr) mtml_.FreeGpu(gpu_);
    if (device_ != nullptr) mtml_.FreeDevice(device_);
    if (library_ != nullptr) mtml_.LibraryShutDown(library_);
  }
  MtmlSensors(const MtmlSensors&) = delete;
  MtmlSensors& operator=(const MtmlSensors&) = delete;

  bool Open(int ordinal) {
    return mtml_.LibraryInit(&library_) == 0 &&
           mtml_.InitDevice(library_, static_cast<unsigned>(ordinal), &device_) == 0 &&
           mtml_.InitGpu(device_, &gpu_) == 0;
  }

  Telemetry Read() const override {
    Telemetry out;
    unsigned value = 0;
    int celsius = 0;
    if (mtml_.Utilization(gpu_, &value) == 0) out.utilisation = value / 100.0;
    if (mtml_.Temperature(gpu_, &celsius) == 0) out.temperature_c = celsius;
    if (mtml_.Power(device_, &value) == 0) out.power_w = value / 1000.0;
    return out;
  }

 private:
  const Mtml mtml_;
  void* library_ = nullptr;
  void* device_ = nullptr;
  void* gpu_ = nullptr;
};

}  // namespace

std::shared_ptr<const Sensors> OpenMtml(int ordinal, const std::string& library) {
  std::vector<std::string> names = {"libmtml.so", "libmtml.so.1"};
  if (!library.empty()) names = {library};
  const auto opened = SharedLibrary::Open("MTML", names);
  if (!opened.ok()) return nullptr;
  Mtml mtml;
  bool whole = true;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened->Find(name));
    whole = whole && *function != nullptr;
  };
  get("mtmlLibraryInit", &mtml.LibraryInit);
  get("mtmlLibraryShutDown", &mtml.LibraryShutDown);
  get("mtmlLibraryInitDeviceByIndex", &mtml.InitDevice);
  get("mtmlLibraryFreeDevice", &mtml.FreeDevice);
  get("mtmlDeviceInitGpu", &mtml.InitGpu);
  get("mtmlDeviceFreeGpu", &mtml.FreeGpu);
  get("mtmlGpuGetUtilization", &mtml.Utilization);
  get("mtmlGpuGetTemperature", &mtml.Temperature);
  get("mtmlDeviceGetPowerUsage", &mtml.Power);
  if (!whole) return nullptr;
  auto sensors = std::make_shared<MtmlSensors>(mtml);
  if (!sensors->Open(ordinal)) return nullptr;
  return sensors;
}

}  // namespace terrace::device::musa
