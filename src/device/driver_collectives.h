// What makers' libraries for sums over chips have in common, over a DriverApi: a folder for each
// maker maps it to the entry points of its library.
#ifndef TERRACE_DEVICE_DRIVER_COLLECTIVES_H_
#define TERRACE_DEVICE_DRIVER_COLLECTIVES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/collectives.h"
#include "device/driver_api.h"

namespace terrace::device {

// Codes are the library's; 0 is success.
struct CollectiveCalls {
  std::string maker;  // the name of the library, for messages
  std::function<int(CollectiveLibrary::GroupId*)> MakeId;
  std::function<int(void** group, const CollectiveLibrary::GroupId&, int rank, int size)> Join;
  std::function<int(void* group)> Leave;
  std::function<int(float* values, uint64_t count, void* group, void* stream)> AllReduce;
  std::function<std::string(int code)> Describe;
};

// `api` must outlive the library and what it makes.
std::unique_ptr<CollectiveLibrary> MakeCollectiveLibrary(const DriverApi* api,
                                                         CollectiveCalls calls);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_COLLECTIVES_H_
