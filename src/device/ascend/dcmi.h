// What an Ascend NPU says of itself, through DCMI (libdcmi.so), if that is there. In containers it
// needs the device node of the cards' manager.
#ifndef TERRACE_DEVICE_ASCEND_DCMI_H_
#define TERRACE_DEVICE_ASCEND_DCMI_H_

#include <memory>
#include <string>

#include "device/driver_device.h"

namespace terrace::device::ascend {

// The NPU of a number. Null without the library, its functions or the NPU.
std::shared_ptr<const Sensors> OpenDcmi(int ordinal, const std::string& library = "");

}  // namespace terrace::device::ascend

#endif  // TERRACE_DEVICE_ASCEND_DCMI_H_
