#include "ops/ascend/aclnn.h"

#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::ops::ascend {

absl::StatusOr<Aclnn> LoadAclnn(const std::string& library) {
  std::vector<std::string> base_names = {"libnnopbase.so"}, names = {"libopapi.so"};
  if (!library.empty()) base_names = names = {library};
  ASSIGN_OR_RETURN(const device::SharedLibrary base,
                   device::SharedLibrary::Open("aclnn", base_names));
  ASSIGN_OR_RETURN(const device::SharedLibrary operators,
                   device::SharedLibrary::Open("aclnn", names));
  Aclnn acl;
  std::string missing;
  const auto get = [&]<typename F>(const device::SharedLibrary& from, const std::string& name,
                                   F* function) {
    *function = reinterpret_cast<F>(from.Find(name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  const auto get_both = [&]<typename T>(const char* name, T* phases) {
    get(operators, std::string("aclnn") + name + "GetWorkspaceSize", &phases->first);
    get(operators, std::string("aclnn") + name, &phases->second);
  };
  get(base, "aclCreateTensor", &acl.CreateTensor);
  get(base, "aclDestroyTensor", &acl.DestroyTensor);
  get(base, "aclCreateScalar", &acl.CreateScalar);
  get(base, "aclDestroyScalar", &acl.DestroyScalar);
  get(base, "aclSetAclOpExecutorRepeatable", &acl.SetRepeatable);
  get(base, "aclDestroyAclOpExecutor", &acl.DestroyExecutor);
  get_both("Matmul", &acl.Matmul);
  get_both("RmsNorm", &acl.RmsNorm);
  get_both("Cast", &acl.Cast);
  get_both("Silu", &acl.Silu);
  get_both("Gelu", &acl.Gelu);
  get_both("Mul", &acl.Mul);
  get_both("InplaceAdd", &acl.InplaceAdd);
  get_both("InplaceMuls", &acl.InplaceMuls);
  get_both("InplaceZero", &acl.InplaceZero);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("aclnn lacks {}", missing));
  }
  return acl;
}

}  // namespace terrace::ops::ascend
