#include "device/opencl/opencl_api.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace terrace::device::cl {
namespace {

template <typename F>
bool Resolve(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(::dlsym(library, name));
  return *function != nullptr;
}

const char* ErrorName(Int code) {
  switch (code) {
    case kDeviceNotFound:
      return "no device found";
    case kDeviceNotAvailable:
      return "the device is not available";
    case -3:
      return "no compiler is available";
    case kMemObjectAllocationFailure:
      return "memory could not be allocated";
    case kOutOfResources:
      return "out of resources";
    case kOutOfHostMemory:
      return "out of host memory";
    case -8:
      return "source and target of a copy overlap";
    case -11:
      return "the program does not compile";
    case -14:
      return "an operation that was waited for failed";
    case -42:
      return "not a binary for this device";
    case -46:
      return "no kernel has that name";
    case kInvalidKernelArgs:
      return "not as many arguments as the kernel has parameters";
    case -54:
      return "work-groups of that size are not possible";
    case -61:
      return "not a possible buffer size";
    case kPlatformNotFound:
      return "no platform is installed";
    default:
      return "error";
  }
}

}  // namespace

absl::StatusOr<Api> LoadApi(const std::string& library) {
  void* handle = nullptr;
  for (const char* name : {"libOpenCL.so.1", "libOpenCL.so"}) {
    handle = ::dlopen(library.empty() ? name : library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return absl::NotFoundError(fmt::format("OpenCL's loader could not be opened: {}",
                                           why != nullptr ? why : "unknown reason"));
  }
  Api api;
  const char* missing = nullptr;
  const auto get = [&](const char* name, auto* function) {
    if (!Resolve(handle, name, function) && missing == nullptr) missing = name;
  };
  get("clGetPlatformIDs", &api.GetPlatformIDs);
  get("clGetPlatformInfo", &api.GetPlatformInfo);
  get("clGetDeviceIDs", &api.GetDeviceIDs);
  get("clGetDeviceInfo", &api.GetDeviceInfo);
  get("clCreateContext", &api.CreateContext);
  get("clReleaseContext", &api.ReleaseContext);
  get("clCreateCommandQueue", &api.CreateCommandQueue);
  get("clReleaseCommandQueue", &api.ReleaseCommandQueue);
  get("clCreateBuffer", &api.CreateBuffer);
  get("clReleaseMemObject", &api.ReleaseMemObject);
  get("clEnqueueWriteBuffer", &api.EnqueueWriteBuffer);
  get("clEnqueueReadBuffer", &api.EnqueueReadBuffer);
  get("clEnqueueCopyBuffer", &api.EnqueueCopyBuffer);
  get("clCreateProgramWithSource", &api.CreateProgramWithSource);
  get("clCreateProgramWithBinary", &api.CreateProgramWithBinary);
  get("clBuildProgram", &api.BuildProgram);
  get("clGetProgramInfo", &api.GetProgramInfo);
  get("clGetProgramBuildInfo", &api.GetProgramBuildInfo);
  get("clReleaseProgram", &api.ReleaseProgram);
  get("clCreateKernel", &api.CreateKernel);
  get("clSetKernelArg", &api.SetKernelArg);
  get("clGetKernelInfo", &api.GetKernelInfo);
  get("clReleaseKernel", &api.ReleaseKernel);
  get("clEnqueueNDRangeKernel", &api.EnqueueNDRangeKernel);
  get("clEnqueueMarkerWithWaitList", &api.EnqueueMarkerWithWaitList);
  get("clEnqueueBarrierWithWaitList", &api.EnqueueBarrierWithWaitList);
  get("clWaitForEvents", &api.WaitForEvents);
  get("clGetEventInfo", &api.GetEventInfo);
  get("clReleaseEvent", &api.ReleaseEvent);
  get("clFlush", &api.Flush);
  get("clFinish", &api.Finish);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("OpenCL's loader lacks {}", missing));
  }
  return api;
}

absl::Status ToStatus(Int code, const char* call) {
  if (code == kSuccess) return absl::OkStatus();
  const std::string text = fmt::format("{}: {} ({})", call, ErrorName(code), code);
  switch (code) {
    case kMemObjectAllocationFailure:
    case kOutOfResources:
    case kOutOfHostMemory:
      return absl::ResourceExhaustedError(text);
    case kDeviceNotFound:
    case kPlatformNotFound:
      return absl::NotFoundError(text);
    case kDeviceNotAvailable:
      return absl::UnavailableError(text);
    case kInvalidValue:
      return absl::InvalidArgumentError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace terrace::device::cl
