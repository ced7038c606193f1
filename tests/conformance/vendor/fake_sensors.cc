// A stand-in for the makers' libraries that tell what a chip's sensors say: NVML, ROCm SMI, MTML,
// DCMI and CNDev in one, each by its public entry points and in its own units. All tell of the same
// chip: 75% busy, 61 degrees, 250 W.
#include <cstdint>
#include <cstring>

#include "fake_call.h"

using namespace terrace::device;

namespace {
constexpr int kBad = 1;

void* const kDevice = &Fake();
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

// ---- NVML ----

int nvmlInit_v2() {
  Call call(__func__, kBad, kAnywhere);
  return call.result();
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, void** device) {
  Call call(__func__, kBad, kAnywhere);
  if (!call.ok()) return call.result();
  if (std::strcmp(pci, "0000:65:00.0") != 0) return 6;  // NOT_FOUND
  *device = kDevice;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* percent) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == kDevice, "device");
  percent[0] = 75;
  percent[1] = 20;
  return call.result();
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == kDevice && sensor == 0, "sensor");
  *celsius = 61;
  return call.result();
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == kDevice, "device");
  *milliwatts = 250000;
  return call.result();
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* lanes) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == kDevice, "device");
  *lanes = 16;
  return call.result();
}

// ---- ROCm SMI: two cards, of which the second is meant ----

int rsmi_init(uint64_t flags) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(flags == 0, "flags");
  return call.result();
}
int rsmi_num_monitor_devices(uint32_t* count) {
  Call call(__func__, kBad, kAnywhere);
  *count = 2;
  return call.result();
}
int rsmi_dev_pci_id_get(uint32_t index, uint64_t* id) {
  Call call(__func__, kBad, kAnywhere);
  // With a partition, which is no part of the address.
  *id = uint64_t{index == 1 ? 0x6500u : 0x1700u} | uint64_t{2} << 28;
  return call.result();
}
int rsmi_dev_busy_percent_get(uint32_t index, uint32_t* percent) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(index == 1, "index");
  *percent = 75;
  return call.result();
}
// As cards that have a sensor at the junction only.
int rsmi_dev_temp_metric_get(uint32_t index, uint32_t sensor, int metric, int64_t* millicelsius) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(index == 1 && metric == 0, "arguments");
  if (!call.ok()) return call.result();
  if (sensor == 0) return 2;  // NOT_SUPPORTED
  *millicelsius = 61000;
  return 0;
}
int rsmi_dev_power_ave_get(uint32_t index, uint32_t, uint64_t*) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(index == 1, "index");
  return call.ok() ? 2 : call.result();
}
int rsmi_dev_current_socket_power_get(uint32_t index, uint64_t* microwatts) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(index == 1, "index");
  *microwatts = 250000000;
  return call.result();
}

// ---- MTML ----

int mtmlLibraryInit(void** library) {
  Call call(__func__, kBad, kAnywhere);
  call.NewObject(library);
  return call.result();
}
int mtmlLibraryShutDown(void* library) {
  Release call(__func__);
  return call.Done(Fake().objects.erase(library) == 1 && Fake().objects.empty());
}
int mtmlLibraryInitDeviceByIndex(const void* library, unsigned index, void** device) {
  Call call(__func__, kBad, kAnywhere);
  call.NeedObject(library);
  if (call.ok() && index > 0) return 7;  // NOT_FOUND
  call.NewObject(device);
  return call.result();
}
int mtmlLibraryFreeDevice(void* device) {
  Release call(__func__);
  return call.Done(Fake().objects.erase(device) == 1);
}
int mtmlDeviceInitGpu(const void* device, void** gpu) {
  Call call(__func__, kBad, kAnywhere);
  call.NeedObject(device);
  call.NewObject(gpu);
  return call.result();
}
int mtmlDeviceFreeGpu(void* gpu) {
  Release call(__func__);
  return call.Done(Fake().objects.erase(gpu) == 1);
}
int mtmlGpuGetUtilization(const void* gpu, unsigned* percent) {
  Call call(__func__, kBad, kAnywhere);
  call.NeedObject(gpu);
  *percent = 75;
  return call.result();
}
int mtmlGpuGetTemperature(const void* gpu, int* celsius) {
  Call call(__func__, kBad, kAnywhere);
  call.NeedObject(gpu);
  *celsius = 61;
  return call.result();
}
int mtmlDeviceGetPowerUsage(const void* device, unsigned* milliwatts) {
  Call call(__func__, kBad, kAnywhere);
  call.NeedObject(device);
  *milliwatts = 250000;
  return call.result();
}

// ---- DCMI: NPU 0 is device 1 of card 4 ----

int dcmi_init() {
  Call call(__func__, kBad, kAnywhere);
  return call.result();
}
int dcmi_get_card_id_device_id_from_logicid(int* card, int* device, unsigned logic_id) {
  Call call(__func__, kBad, kAnywhere);
  if (call.ok() && logic_id > 0) return -8001;
  *card = 4;
  *device = 1;
  return call.result();
}
int dcmi_get_device_utilization_rate(int card, int device, int type, unsigned* percent) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(card == 4 && device == 1 && type == 2, "arguments");
  *percent = 75;
  return call.result();
}
int dcmi_get_device_temperature(int card, int device, int* celsius) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(card == 4 && device == 1, "arguments");
  *celsius = 61;
  return call.result();
}
int dcmi_get_device_power_info(int card, int device, int* tenths) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(card == 4 && device == 1, "arguments");
  *tenths = 2500;
  return call.result();
}

// ---- CNDev, which takes structures of version 5 only ----

int cndevInit(int32_t reserved) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(reserved == 0, "reserved");
  return call.result();
}
int cndevGetDeviceHandleByIndex(int32_t index, int32_t* handle) {
  Call call(__func__, kBad, kAnywhere);
  if (call.ok() && index > 0) return 6;  // INVALID_DEVICE_ID
  *handle = 9;
  return call.result();
}
int cndevGetDeviceUtilizationInfo(int32_t* info, int32_t device) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == 9, "device");
  if (call.ok() && info[0] != 5) return 3;  // UNSUPPORTED_API_VERSION
  info[1] = 75;
  return call.result();
}
int cndevGetTemperatureInfo(int32_t* info, int32_t device) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == 9, "device");
  if (call.ok() && info[0] != 5) return 3;
  info[1] = 61;
  return call.result();
}
int cndevGetDevicePowerInfo(int32_t* info, int32_t device) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(device == 9, "device");
  info[0] = 250;
  return call.result();
}

}  // extern "C"
#pragma GCC visibility pop
