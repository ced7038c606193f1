#include "device/ascend/dcmi.h"

#include <vector>

#include "device/shared_library.h"

namespace terrace::device::ascend {
namespace {

struct Dcmi {
  int (*Init)() = nullptr;
  int (*Find)(int* card, int* device, unsigned logic_id) = nullptr;
  int (*Utilization)(int card, int device, int type, unsigned* percent) = nullptr;
  int (*Temperature)(int card, int device, int* celsius) = nullptr;
  int (*Power)(int card, int device, int* tenths_of_watts) = nullptr;
};

class DcmiSensors final : public Sensors {
 public:
  DcmiSensors(const Dcmi& dcmi, int card, int device) : dcmi_(dcmi), card_(card), device_(device) {}

  Telemetry Read() const override {
    Telemetry out;
    constexpr int kAiCore = 2;
    unsigned percent = 0;
    int value = 0;
    if (dcmi_.Utilization(card_, device_, kAiCore, &percent) == 0) {
      out.utilisation = percent / 100.0;
    }
    if (dcmi_.Temperature(card_, device_, &value) == 0) out.temperature_c = value;
    if (dcmi_.Power(card_, device_, &value) == 0) out.power_w = value / 10.0;
    return out;
  }

 private:
  const Dcmi dcmi_;
  const int card_;
  const int device_;
};

}  // namespace

std::shared_ptr<const Sensors> OpenDcmi(int ordinal, const std::string& library) {
  std::vector<std::string> names = {"libdcmi.so", "/usr/local/dcmi/libdcmi.so"};
  if (!library.empty()) names = {library};
  const auto opened = SharedLibrary::Open("DCMI", names);
  if (!opened.ok()) return nullptr;
  Dcmi dcmi;
  bool whole = true;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened->Find(name));
    whole = whole && *function != nullptr;
  };
  get("dcmi_init", &dcmi.Init);
  get("dcmi_get_card_id_device_id_from_logicid", &dcmi.Find);
  get("dcmi_get_device_utilization_rate", &dcmi.Utilization);
  get("dcmi_get_device_temperature", &dcmi.Temperature);
  get("dcmi_get_device_power_info", &dcmi.Power);
  int card = 0, device = 0;
  if (!whole || dcmi.Init() != 0 ||
      dcmi.Find(&card, &device, static_cast<unsigned>(ordinal)) != 0) {
    return nullptr;
  }
  return std::make_shared<DcmiSensors>(dcmi, card, device);
}

}  // namespace terrace::device::ascend
