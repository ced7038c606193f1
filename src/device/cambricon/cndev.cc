#include "device/cambricon/cndev.h"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/shared_library.h"

namespace terrace::device::cambricon {
namespace {

// Structures differ in size between releases of the library, which writes as much as its own has.
using Record = std::array<int32_t, 1024>;
using Get = int (*)(Record*, int32_t device);

struct Cndev {
  int (*Init)(int32_t reserved) = nullptr;
  int (*Handle)(int32_t index, int32_t* device) = nullptr;
  Get Utilization = nullptr;  // version, average percent, ...
  Get Temperature = nullptr;  // version, board in degrees, ...
  Get Power = nullptr;        // watts, ...
};

// The number at `index` of a record whose first word says which release of it is wanted.
std::optional<double> Versioned(Get get, int32_t device, size_t index) {
  constexpr int kOtherVersion = 3;
  for (const int32_t version : {6, 5}) {
    Record record = {};
    record[0] = version;
    const int code = get(&record, device);
    if (code == 0) return record[index];
    if (code != kOtherVersion) break;
  }
  return std::nullopt;
}

class CndevSensors final : public Sensors {
 public:
  CndevSensors(const Cndev& cndev, int32_t device) : cndev_(cndev), device_(device) {}

  Telemetry Read() const override {
    Telemetry out;
    if (const auto percent = Versioned(cndev_.Utilization, device_, 1)) {
      out.utilisation = *percent / 100.0;
    }
    out.temperature_c = Versioned(cndev_.Temperature, device_, 1);
    Record record = {};
    if (cndev_.Power(&record, device_) == 0) out.power_w = record[0];
    return out;
  }

 private:
  const Cndev cndev_;
  const int32_t device_;
};

}  // namespace

std::shared_ptr<const Sensors> OpenCndev(int ordinal, const std::string& library) {
  std::vector<std::string> names = {"libcndev.so", "/usr/local/neuware/lib64/libcndev.so"};
  if (!library.empty()) names = {library};
  const auto opened = SharedLibrary::Open("CNDev", names);
  if (!opened.ok()) return nullptr;
  Cndev cndev;
  bool whole = true;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened->Find(name));
    whole = whole && *function != nullptr;
  };
  get("cndevInit", &cndev.Init);
  get("cndevGetDeviceHandleByIndex", &cndev.Handle);
  get("cndevGetDeviceUtilizationInfo", &cndev.Utilization);
  get("cndevGetTemperatureInfo", &cndev.Temperature);
  get("cndevGetDevicePowerInfo", &cndev.Power);
  int32_t device = 0;
  if (!whole || cndev.Init(0) != 0 || cndev.Handle(ordinal, &device) != 0) return nullptr;
  return std::make_shared<CndevSensors>(cndev, device);
}

}  // namespace terrace::device::cambricon
