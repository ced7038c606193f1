#include "device/cuda/nvrtc.h"

#include <dlfcn.h>

#include <charconv>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "base/status.h"
#include "device/cuda/cuda_prelude.h"

namespace terrace::device::cuda {
namespace {

// The number that stands before `words` in `line`; 0 if there is none.
uint32_t NumberBefore(std::string_view line, std::string_view words) {
  const size_t end = line.find(words);
  if (end == std::string_view::npos) return 0;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  uint32_t number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

// The assembler's report: a line that names the function, then its stack and spills, then its
// registers.
std::vector<KernelReport> ReadReport(const std::string& log) {
  std::vector<KernelReport> kernels;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kName = "Function properties for ";
    if (const size_t at = line.find(kName); at != std::string::npos) {
      kernels.emplace_back();
      kernels.back().name = line.substr(at + kName.size());
    } else if (!kernels.empty() && line.find("bytes stack frame") != std::string::npos) {
      kernels.back().stack_bytes = NumberBefore(line, " bytes stack frame");
      kernels.back().spill_store_bytes = NumberBefore(line, " bytes spill stores");
      kernels.back().spill_load_bytes = NumberBefore(line, " bytes spill loads");
    } else if (!kernels.empty() && line.find("registers") != std::string::npos) {
      kernels.back().registers = NumberBefore(line, " registers");
    }
  }
  return kernels;
}

// A program of the compiler, destroyed at the end.
class ProgramScope {
 public:
  explicit ProgramScope(int (*destroy)(void**)) : destroy_(destroy) {}
  ~ProgramScope() {
    if (program_ != nullptr) destroy_(&program_);
  }
  ProgramScope(const ProgramScope&) = delete;
  ProgramScope& operator=(const ProgramScope&) = delete;
  void** address() { return &program_; }
  void* get() const { return program_; }

 private:
  int (*destroy_)(void**);
  void* program_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Compiler>> Compiler::Open(const std::string& library) {
  void* handle = nullptr;
  if (!library.empty()) {
    handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  } else {
    for (const char* name :
         {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"}) {
      handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) break;
    }
  }
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return absl::NotFoundError(
        fmt::format("NVRTC could not be opened: {}", why != nullptr ? why : "unknown reason"));
  }
  std::unique_ptr<Compiler> compiler(new Compiler());
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(::dlsym(handle, name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  Functions& f = compiler->functions_;
  get("nvrtcVersion", &f.Version);
  get("nvrtcCreateProgram", &f.CreateProgram);
  get("nvrtcDestroyProgram", &f.DestroyProgram);
  get("nvrtcCompileProgram", &f.CompileProgram);
  get("nvrtcGetCUBINSize", &f.GetCUBINSize);
  get("nvrtcGetCUBIN", &f.GetCUBIN);
  get("nvrtcGetProgramLogSize", &f.GetProgramLogSize);
  get("nvrtcGetProgramLog", &f.GetProgramLog);
  get("nvrtcGetErrorString", &f.GetErrorString);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("NVRTC lacks {}", missing));
  }
  int minor = 0;
  RETURN_IF_ERROR(compiler->Check(f.Version(&compiler->major_, &minor), "nvrtcVersion"));
  return compiler;
}

absl::Status Compiler::Check(int code, const char* call) const {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{}: {} ({})", call, functions_.GetErrorString(code), code));
}

absl::StatusOr<MachineCode> Compiler::Compile(const std::string& source, const std::string& defines,
                                              const std::string& architecture) const {
  const std::string text = std::string(kPrelude) + source;
  std::vector<std::string> options = {"--gpu-architecture=" + architecture, "--std=c++17",
                                      "--fmad=false", "--ptxas-options=-v", "-DVECTOR_ITEMS=0"};
  std::istringstream words(defines);
  for (std::string define; words >> define;) options.push_back("-D" + define);
  std::vector<const char*> list;
  for (const std::string& option : options) list.push_back(option.c_str());

  const Functions& f = functions_;
  ProgramScope program(f.DestroyProgram);
  RETURN_IF_ERROR(
      Check(f.CreateProgram(program.address(), text.c_str(), "kernels.cu", 0, nullptr, nullptr),
            "nvrtcCreateProgram"));
  const int compiled = f.CompileProgram(program.get(), static_cast<int>(list.size()), list.data());
  size_t log_bytes = 0;
  RETURN_IF_ERROR(Check(f.GetProgramLogSize(program.get(), &log_bytes), "nvrtcGetProgramLogSize"));
  std::string log(log_bytes, '\0');
  RETURN_IF_ERROR(Check(f.GetProgramLog(program.get(), log.data()), "nvrtcGetProgramLog"));
  constexpr int kCompilationError = 6;
  if (compiled == kCompilationError) {
    return absl::InvalidArgumentError(
        fmt::format("the kernels do not compile for {}: {}", architecture, log.c_str()));
  }
  RETURN_IF_ERROR(Check(compiled, "nvrtcCompileProgram"));
  MachineCode code;
  size_t bytes = 0;
  RETURN_IF_ERROR(Check(f.GetCUBINSize(program.get(), &bytes), "nvrtcGetCUBINSize"));
  code.image.resize(bytes);
  RETURN_IF_ERROR(Check(f.GetCUBIN(program.get(), code.image.data()), "nvrtcGetCUBIN"));
  code.kernels = ReadReport(log);
  return code;
}

}  // namespace terrace::device::cuda
