// NVIDIA's run-time compiler (NVRTC) and others of its shape, opened when one is wanted: turns the
// common kernel dialect into machine code for one architecture. Needs no GPU and no driver. Entry
// points and values as in the NVRTC 11 to 13 documentation.
#ifndef TERRACE_DEVICE_CUDA_NVRTC_H_
#define TERRACE_DEVICE_CUDA_NVRTC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::device::cuda {

// What the compiler says of a kernel.
struct KernelReport {
  std::string name;
  uint32_t registers = 0;
  uint32_t stack_bytes = 0;  // of each thread, in local memory
  uint32_t spill_store_bytes = 0;
  uint32_t spill_load_bytes = 0;
};

struct MachineCode {
  std::string image;  // a cubin, as the driver loads it
  std::vector<KernelReport> kernels;
};

// How a maker's compiler is called, and what it is told.
struct CompilerMaker {
  std::string name;                    // "NVRTC"
  std::string prefix;                  // of every function
  std::vector<std::string> libraries;  // tried in this order
  std::string code;                    // the function that gives machine code, without prefix
  std::string prelude;                 // behind dialect_words.h: the dialect in its terms
  std::string architecture_option;     // before the architecture
  std::vector<std::string> options;
};

// Thread-safe.
class Compiler {
 public:
  // NVIDIA's. `library`: a path, or empty for the names that toolkits install. NotFound without it.
  static absl::StatusOr<std::unique_ptr<Compiler>> Open(const std::string& library = "");
  static absl::StatusOr<std::unique_ptr<Compiler>> Open(const CompilerMaker& maker);
  // As Open() without a library would have it.
  static CompilerMaker Nvidia();

  // Compiles `source` (in the dialect, without prelude) with the macros of `defines` ("A=1 B=2")
  // for `architecture`, such as "sm_90". InvalidArgument with the compiler's words if it does not
  // compile.
  absl::StatusOr<MachineCode> Compile(const std::string& source, const std::string& defines,
                                      const std::string& architecture) const;
  // Its name, version, prelude and options: what the machine code depends on beside the source.
  std::string Identity() const;

 private:
  struct Functions {
    int (*Version)(int*, int*) = nullptr;
    int (*CreateProgram)(void**, const char*, const char*, int, const char* const*,
                         const char* const*) = nullptr;
    int (*DestroyProgram)(void**) = nullptr;
    int (*CompileProgram)(void*, int, const char* const*) = nullptr;
    int (*GetCodeSize)(void*, size_t*) = nullptr;
    int (*GetCode)(void*, char*) = nullptr;
    int (*GetProgramLogSize)(void*, size_t*) = nullptr;
    int (*GetProgramLog)(void*, char*) = nullptr;
    const char* (*GetErrorString)(int) = nullptr;
  };

  explicit Compiler(const CompilerMaker& maker) : maker_(maker) {}
  absl::Status Check(int code, const char* call) const;

  const CompilerMaker maker_;
  Functions functions_;
  int major_ = 0;
};

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_NVRTC_H_
