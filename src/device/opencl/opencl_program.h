// Compiled kernel sources: each once for a device, kept in memory and, with a folder, on disk by a
// digest of source, options, device and driver, so that a restart compiles nothing. Thread-safe.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_PROGRAM_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_PROGRAM_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "device/device.h"
#include "device/kernel_cache.h"
#include "device/opencl/opencl_api.h"

namespace terrace::device::cl {

class Programs {
 public:
  // `identity` names device and driver; `folder` may be empty; `options` are the compiler's, apart
  // from a source's macros. `api` and `context` must outlive it.
  Programs(const Api* api, Context context, DeviceId device, std::string identity,
           std::string folder, std::string options);
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  // The source that says whether a compiler takes what `options` ask for.
  static KernelSource Probe();
  // A new kernel `source.name`. InvalidArgument with the compiler's words if the source does not
  // compile or holds no such kernel.
  absl::StatusOr<KernelHandle> CreateKernel(const KernelSource& source);

 private:
  absl::StatusOr<Program> GetLocked(const KernelSource& source)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Program> Compile(const std::string& text, const std::string& options) const;
  // Null if the driver does not take it (any more).
  Program LoadBinary(std::string_view binary, const std::string& options) const;
  // Empty if the driver does not give it.
  std::string ReadBinary(Program program) const;

  const Api* const api_;
  Context const context_;
  DeviceId const device_;
  const std::string identity_;
  const KernelCache cache_;
  const std::string options_;
  absl::Mutex mutex_;
  std::map<std::string, Program> programs_ ABSL_GUARDED_BY(mutex_);  // by digest
};

}  // namespace terrace::device::cl

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_PROGRAM_H_
