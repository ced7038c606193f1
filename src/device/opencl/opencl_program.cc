#include "device/opencl/opencl_program.h"

#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/status.h"
#include "device/opencl/opencl_prelude.h"

namespace terrace::device::cl {
namespace {

std::string Options(const KernelSource& source, const std::string& given) {
  std::string options = given;
  std::istringstream defines(source.defines);
  for (std::string define; defines >> define;) options += " -D" + define;
  return options;
}

}  // namespace

Programs::Programs(const Api* api, Context context, DeviceId device, std::string identity,
                   std::string folder, std::string options)
    : api_(api),
      context_(context),
      device_(device),
      identity_(std::move(identity)),
      cache_(std::move(folder)),
      options_(std::move(options)) {}

Programs::~Programs() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [digest, program] : programs_) api_->ReleaseProgram(program);
}

KernelSource Programs::Probe() {
  return {"probe", nullptr,
          "KERNEL(probe)(MEM(x)) {\n"
          "#if SUBGROUPS\n"
          "  SHARED float scratch[64];\n"
          "  float sum = SUBGROUP_SUM(scratch, PTR(float, x)[ITEM(0)]);\n"
          "  sum += SUBGROUP_MAX(scratch, sum);\n"
          "  if (FIRST_OF_SUBGROUP()) PTR(float, x)[SUBGROUP()] = sum + (float)SUBGROUP_COUNT();\n"
          "#endif\n"
          "#ifdef BLOCK_READ_WORDS\n"
          "  PTR(uint, x)[64 + ITEM(0)] = BLOCK_READ_WORDS(PTR(uint, x));\n"
          "#endif\n"
          "}\n"};
}

absl::StatusOr<KernelHandle> Programs::CreateKernel(const KernelSource& source) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Program program, GetLocked(source));
  Int code = kSuccess;
  KernelHandle kernel = api_->CreateKernel(program, source.name.c_str(), &code);
  if (code == kSuccess) return kernel;
  constexpr Int kInvalidKernelName = -46;
  const absl::Status status = ToStatus(code, "clCreateKernel");
  if (code != kInvalidKernelName) return status;
  return absl::InvalidArgumentError(fmt::format("kernel {}: {}", source.name, Message(status)));
}

absl::StatusOr<Program> Programs::GetLocked(const KernelSource& source) {
  const std::string options = Options(source, options_);
  const std::string text = std::string(kPrelude) + source.source;
  const std::string_view parts[] = {identity_, options, text};
  const std::string digest = DigestParts(parts).Hex();
  if (auto found = programs_.find(digest); found != programs_.end()) return found->second;
  Program program = nullptr;
  if (std::optional<std::string> kept = cache_.Load(digest); kept.has_value()) {
    program = LoadBinary(*kept, options);
  }
  if (program == nullptr) {
    absl::StatusOr<Program> compiled = Compile(text, options);
    if (!compiled.ok()) {
      return WithContext(compiled.status(), fmt::format("kernel {}", source.name));
    }
    program = *compiled;
    if (cache_.keeps()) {
      const std::string binary = ReadBinary(program);
      if (!binary.empty()) cache_.Store(digest, binary);
    }
  }
  programs_.emplace(digest, program);
  return program;
}

absl::StatusOr<Program> Programs::Compile(const std::string& text,
                                          const std::string& options) const {
  const char* lines = text.c_str();
  const size_t length = text.size();
  Int code = kSuccess;
  Program program = api_->CreateProgramWithSource(context_, 1, &lines, &length, &code);
  RETURN_IF_ERROR(ToStatus(code, "clCreateProgramWithSource"));
  code = api_->BuildProgram(program, 1, &device_, options.c_str(), nullptr, nullptr);
  if (code == kSuccess) return program;
  size_t bytes = 0;
  std::string log;
  if (api_->GetProgramBuildInfo(program, device_, kProgramBuildLog, 0, nullptr, &bytes) ==
      kSuccess) {
    log.resize(bytes);
    api_->GetProgramBuildInfo(program, device_, kProgramBuildLog, bytes, log.data(), nullptr);
    log.resize(log.find_last_not_of(std::string_view("\0\n ", 3)) + 1);
  }
  api_->ReleaseProgram(program);
  constexpr Int kBuildProgramFailure = -11;
  const absl::Status status = ToStatus(code, "clBuildProgram");
  if (code != kBuildProgramFailure) return status;
  return absl::InvalidArgumentError(fmt::format("{}: {}", Message(status), log));
}

Program Programs::LoadBinary(std::string_view binary, const std::string& options) const {
  const auto* data = reinterpret_cast<const unsigned char*>(binary.data());
  const size_t length = binary.size();
  Int of_binary = kSuccess, code = kSuccess;
  Program program =
      api_->CreateProgramWithBinary(context_, 1, &device_, &length, &data, &of_binary, &code);
  if (code != kSuccess) return nullptr;
  if (of_binary == kSuccess &&
      api_->BuildProgram(program, 1, &device_, options.c_str(), nullptr, nullptr) == kSuccess) {
    return program;
  }
  api_->ReleaseProgram(program);
  return nullptr;
}

std::string Programs::ReadBinary(Program program) const {
  size_t bytes = 0;
  if (api_->GetProgramInfo(program, kProgramBinarySizes, sizeof(bytes), &bytes, nullptr) !=
      kSuccess) {
    return "";
  }
  std::string binary(bytes, '\0');
  char* data = binary.data();
  if (api_->GetProgramInfo(program, kProgramBinaries, sizeof(data), &data, nullptr) != kSuccess) {
    return "";
  }
  return binary;
}

}  // namespace terrace::device::cl
