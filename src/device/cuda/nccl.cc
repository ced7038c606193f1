#include "device/cuda/nccl.h"

#include <cstring>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device::cuda {
namespace {

struct UniqueId {
  char bytes[128];
};
constexpr int kFloat32 = 7;
constexpr int kSum = 0;

}  // namespace

absl::StatusOr<CollectiveCalls> LoadNccl(const std::string& library) {
  NcclNames names{"NCCL", "nccl", {"libnccl.so.2", "libnccl.so"}};
  if (!library.empty()) names.libraries = {library};
  return LoadNccl(names);
}

absl::StatusOr<CollectiveCalls> LoadNccl(const NcclNames& names) {
  ASSIGN_OR_RETURN(const SharedLibrary opened, SharedLibrary::Open(names.maker, names.libraries));
  std::string missing;
  const auto get = [&]<typename F>(const char* name, F* function) {
    const std::string full = names.prefix + name;
    *function = reinterpret_cast<F>(opened.Find(full));
    if (*function == nullptr && missing.empty()) missing = full;
  };
  int (*get_id)(UniqueId*) = nullptr;
  int (*join)(void**, int, UniqueId, int) = nullptr;
  int (*leave)(void*) = nullptr;
  int (*reduce)(const void*, void*, size_t, int, int, void*, void*) = nullptr;
  const char* (*describe)(int) = nullptr;
  get("GetUniqueId", &get_id);
  get("CommInitRank", &join);
  get("CommDestroy", &leave);
  get("AllReduce", &reduce);
  get("GetErrorString", &describe);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("{} lacks {}", names.maker, missing));
  }
  CollectiveCalls calls;
  calls.maker = names.maker;
  calls.MakeId = [get_id](CollectiveLibrary::GroupId* id) {
    return get_id(reinterpret_cast<UniqueId*>(id->data()));
  };
  calls.Join = [join](void** group, const CollectiveLibrary::GroupId& id, int rank, int size) {
    UniqueId unique = {};
    std::memcpy(&unique, id.data(), sizeof(unique));
    return join(group, size, unique, rank);
  };
  calls.Leave = leave;
  calls.AllReduce = [reduce](float* values, uint64_t count, void* group, void* stream) {
    return reduce(values, values, count, kFloat32, kSum, group, stream);
  };
  calls.Describe = [describe](int code) {
    const char* text = describe(code);
    return std::string(text != nullptr ? text : "unknown error");
  };
  return calls;
}

}  // namespace terrace::device::cuda
