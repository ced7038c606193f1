#include "device/ascend/hccl.h"

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device::ascend {
namespace {

constexpr size_t kRootInfoBytes = 4108;
static_assert(sizeof(CollectiveLibrary::GroupId) >= kRootInfoBytes);
constexpr int kFloat32 = 4;
constexpr int kSum = 0;

}  // namespace

absl::StatusOr<CollectiveCalls> LoadHccl(const std::string& library) {
  ASSIGN_OR_RETURN(const SharedLibrary opened,
                   SharedLibrary::Open("HCCL", {library.empty() ? "libhccl.so" : library}));
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened.Find(name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  int (*get_root)(void* info) = nullptr;
  int (*join)(uint32_t size, const void* info, uint32_t rank, void** group) = nullptr;
  int (*leave)(void* group) = nullptr;
  int (*reduce)(void*, void*, uint64_t, int type, int operation, void* group, void* stream) =
      nullptr;
  get("HcclGetRootInfo", &get_root);
  get("HcclCommInitRootInfo", &join);
  get("HcclCommDestroy", &leave);
  get("HcclAllReduce", &reduce);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("HCCL lacks {}", missing));
  }
  CollectiveCalls calls;
  calls.maker = "HCCL";
  calls.MakeId = [get_root](CollectiveLibrary::GroupId* id) { return get_root(id->data()); };
  calls.Join = [join](void** group, const CollectiveLibrary::GroupId& id, int rank, int size) {
    return join(static_cast<uint32_t>(size), id.data(), static_cast<uint32_t>(rank), group);
  };
  calls.Leave = leave;
  calls.AllReduce = [reduce](float* values, uint64_t count, void* group, void* stream) {
    return reduce(values, values, count, kFloat32, kSum, group, stream);
  };
  calls.Describe = [](int code) { return fmt::format("error {}", code); };
  return calls;
}

}  // namespace terrace::device::ascend
