#include "ops/cambricon/cnnl.h"

#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::ops::cambricon {

absl::StatusOr<Cnnl> LoadCnnl(const std::string& library) {
  std::vector<std::string> names = {"libcnnl.so", "/usr/local/neuware/lib64/libcnnl.so"};
  if (!library.empty()) names = {library};
  ASSIGN_OR_RETURN(const device::SharedLibrary opened, device::SharedLibrary::Open("CNNL", names));
  Cnnl cnnl;
  std::string missing;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened.Find(std::string("cnnl") + name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  get("Create", &cnnl.Create);
  get("Destroy", &cnnl.Destroy);
  get("SetQueue", &cnnl.SetQueue);
  get("GetErrorString", &cnnl.GetErrorString);
  get("CreateTensorDescriptor", &cnnl.CreateTensorDescriptor);
  get("DestroyTensorDescriptor", &cnnl.DestroyTensorDescriptor);
  get("SetTensorDescriptorEx", &cnnl.SetTensorDescriptorEx);
  get("MatMulDescCreate", &cnnl.MatMulDescCreate);
  get("MatMulDescDestroy", &cnnl.MatMulDescDestroy);
  get("SetMatMulDescAttr", &cnnl.SetMatMulDescAttr);
  get("MatMulAlgoCreate", &cnnl.MatMulAlgoCreate);
  get("MatMulAlgoDestroy", &cnnl.MatMulAlgoDestroy);
  get("CreateMatMulHeuristicResult", &cnnl.CreateMatMulHeuristicResult);
  get("DestroyMatMulHeuristicResult", &cnnl.DestroyMatMulHeuristicResult);
  get("GetMatMulAlgoHeuristic", &cnnl.GetMatMulAlgoHeuristic);
  get("GetMatMulHeuristicResult", &cnnl.GetMatMulHeuristicResult);
  get("MatMul_v2", &cnnl.MatMul_v2);
  get("GetRmsNormOpWorkspaceSize", &cnnl.GetRmsNormOpWorkspaceSize);
  get("RmsNormForward", &cnnl.RmsNormForward);
  get("CreateOpTensorDescriptor", &cnnl.CreateOpTensorDescriptor);
  get("DestroyOpTensorDescriptor", &cnnl.DestroyOpTensorDescriptor);
  get("SetOpTensorDescriptor", &cnnl.SetOpTensorDescriptor);
  get("GetOpTensorWorkspaceSize", &cnnl.GetOpTensorWorkspaceSize);
  get("OpTensor", &cnnl.OpTensor);
  get("CastDataType", &cnnl.CastDataType);
  get("Fill_v3", &cnnl.Fill_v3);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("CNNL lacks cnnl{}", missing));
  }
  return cnnl;
}

}  // namespace terrace::ops::cambricon
