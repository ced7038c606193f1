// Lets a group sum in its members' devices, by the library of those devices' maker, where all have
// that; else sums go through host memory.
#ifndef TERRACE_PARALLEL_DEVICE_SUMS_H_
#define TERRACE_PARALLEL_DEVICE_SUMS_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "parallel/communicator.h"

namespace terrace::parallel {

// Called by all members of `group`, each with its own device. From then on
// Communicator::sums_on_device() says whether sums are the devices'; if not, returns why: the
// reason of this member, or that another has one. Errors are the group's. `device` must outlive the
// group's use of it: until set_device_sums(nullptr).
absl::StatusOr<std::string> JoinDeviceSums(Communicator* group, const device::Device& device);

}  // namespace terrace::parallel

#endif  // TERRACE_PARALLEL_DEVICE_SUMS_H_
