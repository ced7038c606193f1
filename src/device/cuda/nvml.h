// What an NVIDIA GPU says of itself, through NVML (libnvidia-ml.so.1), if that is there.
#ifndef TERRACE_DEVICE_CUDA_NVML_H_
#define TERRACE_DEVICE_CUDA_NVML_H_

#include <memory>
#include <string>

#include "device/driver_device.h"

namespace terrace::device::cuda {

// The GPU at a PCI address ("0000:65:00.0"). Null without the library, the functions or the GPU.
std::shared_ptr<const Sensors> OpenNvml(const std::string& pci_bus_id,
                                        const std::string& library = "");

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_NVML_H_
