// What a Cambricon MLU says of itself, through CNDev (libcndev.so), if that is there.
#ifndef TERRACE_DEVICE_CAMBRICON_CNDEV_H_
#define TERRACE_DEVICE_CAMBRICON_CNDEV_H_

#include <memory>
#include <string>

#include "device/driver_device.h"

namespace terrace::device::cambricon {

// The MLU of a number. Null without the library, its functions or the MLU.
std::shared_ptr<const Sensors> OpenCndev(int ordinal, const std::string& library = "");

}  // namespace terrace::device::cambricon

#endif  // TERRACE_DEVICE_CAMBRICON_CNDEV_H_
