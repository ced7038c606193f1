// What an AMD GPU or a Hygon DCU says of itself, through ROCm SMI (librocm_smi64.so), if that is
// there.
#ifndef TERRACE_DEVICE_HIP_ROCM_SMI_H_
#define TERRACE_DEVICE_HIP_ROCM_SMI_H_

#include <memory>
#include <string>

#include "device/driver_device.h"

namespace terrace::device::hip {

// The card at a PCI address ("0000:65:00.0"). Null without the library, the functions or the card.
std::shared_ptr<const Sensors> OpenRocmSmi(const std::string& pci_bus_id,
                                           const std::string& library = "");

}  // namespace terrace::device::hip

#endif  // TERRACE_DEVICE_HIP_ROCM_SMI_H_
