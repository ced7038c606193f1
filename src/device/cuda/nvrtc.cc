#include "device/cuda/nvrtc.h"

#include <charconv>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/status.h"
#include "device/cuda/cuda_prelude.h"
#include "device/cuda/dialect_words.h"
#include "device/shared_library.h"

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

CompilerMaker Compiler::Nvidia() {
  return {"NVRTC",
          "nvrtc",
          {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"},
          "GetCUBIN",
          kPrelude,
          "--gpu-architecture=",
          {"--std=c++17", "--fmad=false", "--ptxas-options=-v"}};
}

absl::StatusOr<std::unique_ptr<Compiler>> Compiler::Open(const std::string& library) {
  CompilerMaker maker = Nvidia();
  if (!library.empty()) maker.libraries = {library};
  return Open(maker);
}

absl::StatusOr<std::unique_ptr<Compiler>> Compiler::Open(const CompilerMaker& maker) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(maker.name, maker.libraries));
  std::unique_ptr<Compiler> compiler(new Compiler(maker));
  std::string missing;
  const auto get = [&]<typename F>(const std::string& name, F* function) {
    *function = reinterpret_cast<F>(library.Find(maker.prefix + name));
    if (*function == nullptr && missing.empty()) missing = maker.prefix + name;
  };
  Functions& f = compiler->functions_;
  get("Version", &f.Version);
  get("CreateProgram", &f.CreateProgram);
  get("DestroyProgram", &f.DestroyProgram);
  get("CompileProgram", &f.CompileProgram);
  get(maker.code + "Size", &f.GetCodeSize);
  get(maker.code, &f.GetCode);
  get("GetProgramLogSize", &f.GetProgramLogSize);
  get("GetProgramLog", &f.GetProgramLog);
  get("GetErrorString", &f.GetErrorString);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("{} lacks {}", maker.name, missing));
  }
  int minor = 0;
  RETURN_IF_ERROR(compiler->Check(f.Version(&compiler->major_, &minor), "Version"));
  return compiler;
}

std::string Compiler::Identity() const {
  return fmt::format("{} {} {}\n{}{}", maker_.name, major_, fmt::join(maker_.options, " "),
                     kDialectWords, maker_.prelude);
}

absl::Status Compiler::Check(int code, const char* call) const {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{} {}: {} ({})", maker_.name, call, functions_.GetErrorString(code), code));
}

absl::StatusOr<MachineCode> Compiler::Compile(const std::string& source, const std::string& defines,
                                              const std::string& architecture) const {
  const std::string text = kDialectWords + maker_.prelude + source;
  std::vector<std::string> options = maker_.options;
  options.push_back(maker_.architecture_option + architecture);
  options.push_back("-DVECTOR_ITEMS=0");
  std::istringstream words(defines);
  for (std::string define; words >> define;) options.push_back("-D" + define);
  std::vector<const char*> list;
  for (const std::string& option : options) list.push_back(option.c_str());

  const Functions& f = functions_;
  ProgramScope program(f.DestroyProgram);
  RETURN_IF_ERROR(
      Check(f.CreateProgram(program.address(), text.c_str(), "kernels.cu", 0, nullptr, nullptr),
            "CreateProgram"));
  const int compiled = f.CompileProgram(program.get(), static_cast<int>(list.size()), list.data());
  size_t log_bytes = 0;
  RETURN_IF_ERROR(Check(f.GetProgramLogSize(program.get(), &log_bytes), "GetProgramLogSize"));
  std::string log(log_bytes, '\0');
  RETURN_IF_ERROR(Check(f.GetProgramLog(program.get(), log.data()), "GetProgramLog"));
  constexpr int kCompilationError = 6;
  if (compiled == kCompilationError) {
    return absl::InvalidArgumentError(
        fmt::format("the kernels do not compile for {}: {}", architecture, log.c_str()));
  }
  RETURN_IF_ERROR(Check(compiled, "CompileProgram"));
  MachineCode code;
  size_t bytes = 0;
  RETURN_IF_ERROR(Check(f.GetCodeSize(program.get(), &bytes), "code size"));
  code.image.resize(bytes);
  RETURN_IF_ERROR(Check(f.GetCode(program.get(), code.image.data()), "code"));
  code.kernels = ReadReport(log);
  return code;
}

}  // namespace terrace::device::cuda
