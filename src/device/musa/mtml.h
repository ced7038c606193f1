// What a Moore Threads GPU says of itself, through MTML (libmtml.so), if that is there.
#ifndef TERRACE_DEVICE_MUSA_MTML_H_
#define TERRACE_DEVICE_MUSA_MTML_H_

#include <memory>
#include <string>

#include "device/driver_device.h"

namespace terrace::device::musa {

// The GPU of a number. Null without the library, its functions or the GPU.
std::shared_ptr<const Sensors> OpenMtml(int ordinal, const std::string& library = "");

}  // namespace terrace::device::musa

#endif  // TERRACE_DEVICE_MUSA_MTML_H_
