#include "device/cambricon/cncl.h"

#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device::cambricon {
namespace {

constexpr int kFloat32 = 0x12;
constexpr int kSum = 0;

}  // namespace

absl::StatusOr<CollectiveCalls> LoadCncl(int ordinal, const std::string& library) {
  std::vector<std::string> names = {"libcncl.so", "/usr/local/neuware/lib64/libcncl.so"};
  if (!library.empty()) names = {library};
  ASSIGN_OR_RETURN(const SharedLibrary opened, SharedLibrary::Open("CNCL", names));
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened.Find(name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  int (*get_id)(void* clique) = nullptr;
  int (*join)(void** groups, int count, const int* devices, const int* ranks, int size,
              const void* clique) = nullptr;
  int (*leave)(void* group) = nullptr;
  int (*reduce)(const void*, void*, size_t, int type, int operation, void* group, void* queue) =
      nullptr;
  get("cnclGetCliqueId", &get_id);
  get("cnclInitComms", &join);
  get("cnclFreeComm", &leave);
  get("cnclAllReduce", &reduce);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("CNCL lacks {}", missing));
  }
  CollectiveCalls calls;
  calls.maker = "CNCL";
  calls.MakeId = [get_id](CollectiveLibrary::GroupId* id) { return get_id(id->data()); };
  // Of this process's members, one a call.
  calls.Join = [join, ordinal](void** group, const CollectiveLibrary::GroupId& id, int rank,
                               int size) {
    return join(group, 1, &ordinal, &rank, size, id.data());
  };
  calls.Leave = leave;
  calls.AllReduce = [reduce](float* values, uint64_t count, void* group, void* queue) {
    return reduce(values, values, count, kFloat32, kSum, group, queue);
  };
  calls.Describe = [](int code) { return fmt::format("error {}", code); };
  return calls;
}

}  // namespace terrace::device::cambricon
