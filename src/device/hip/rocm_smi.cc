#include "device/hip/rocm_smi.h"

#include <cstdint>
#include <cstdio>
#include <vector>

#include "device/shared_library.h"

namespace terrace::device::hip {
namespace {

struct RocmSmi {
  int (*Init)(uint64_t flags) = nullptr;
  int (*Count)(uint32_t*) = nullptr;
  int (*PciId)(uint32_t, uint64_t*) = nullptr;
  int (*Busy)(uint32_t, uint32_t* percent) = nullptr;
  int (*Temperature)(uint32_t, uint32_t sensor, int metric, int64_t* millicelsius) = nullptr;
  int (*AveragePower)(uint32_t, uint32_t sensor, uint64_t* microwatts) = nullptr;
  int (*SocketPower)(uint32_t, uint64_t* microwatts) = nullptr;  // newer cards; may be null
};

class RocmSensors final : public Sensors {
 public:
  RocmSensors(const RocmSmi& smi, uint32_t index) : smi_(smi), index_(index) {}

  Telemetry Read() const override {
    Telemetry out;
    uint32_t percent = 0;
    if (smi_.Busy(index_, &percent) == 0) out.utilisation = percent / 100.0;
    constexpr uint32_t kEdge = 0, kJunction = 1;
    constexpr int kCurrent = 0;
    int64_t millicelsius = 0;
    // Some cards have a sensor at the junction only.
    if (smi_.Temperature(index_, kEdge, kCurrent, &millicelsius) == 0 ||
        smi_.Temperature(index_, kJunction, kCurrent, &millicelsius) == 0) {
      out.temperature_c = static_cast<double>(millicelsius) / 1e3;
    }
    uint64_t microwatts = 0;
    if (smi_.AveragePower(index_, 0, &microwatts) == 0 ||
        (smi_.SocketPower != nullptr && smi_.SocketPower(index_, &microwatts) == 0)) {
      out.power_w = static_cast<double>(microwatts) / 1e6;
    }
    return out;
  }

 private:
  const RocmSmi smi_;
  const uint32_t index_;
};

// "0000:65:00.0" as the library has it; of what it adds in bits 28 to 31 (a partition) nothing.
uint64_t PciNumber(const std::string& pci_bus_id) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (std::sscanf(pci_bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    return ~uint64_t{0};
  }
  return uint64_t{domain} << 32 | uint64_t{bus} << 8 | uint64_t{slot} << 3 | function;
}

}  // namespace

std::shared_ptr<const Sensors> OpenRocmSmi(const std::string& pci_bus_id,
                                           const std::string& library) {
  std::vector<std::string> names = {"librocm_smi64.so.7", "librocm_smi64.so.6",
                                    "librocm_smi64.so.5", "librocm_smi64.so"};
  if (!library.empty()) names = {library};
  const auto opened = SharedLibrary::Open("ROCm SMI", names);
  if (!opened.ok()) return nullptr;
  RocmSmi smi;
  bool whole = true;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened->Find(name));
    whole = whole && *function != nullptr;
  };
  get("rsmi_init", &smi.Init);
  get("rsmi_num_monitor_devices", &smi.Count);
  get("rsmi_dev_pci_id_get", &smi.PciId);
  get("rsmi_dev_busy_percent_get", &smi.Busy);
  get("rsmi_dev_temp_metric_get", &smi.Temperature);
  get("rsmi_dev_power_ave_get", &smi.AveragePower);
  uint32_t count = 0;
  if (!whole || smi.Init(0) != 0 || smi.Count(&count) != 0) return nullptr;
  get("rsmi_dev_current_socket_power_get", &smi.SocketPower);
  for (uint32_t i = 0; i < count; ++i) {
    constexpr uint64_t kPartition = uint64_t{15} << 28;
    uint64_t id = 0;
    if (smi.PciId(i, &id) == 0 && (id & ~kPartition) == PciNumber(pci_bus_id)) {
      return std::make_shared<RocmSensors>(smi, i);
    }
  }
  return nullptr;
}

}  // namespace terrace::device::hip
