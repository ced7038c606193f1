#include "device/opencl/opencl_program.h"

#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/status.h"

namespace terrace::device::cl {
namespace {

// The common kernel dialect (src/ops/opencl/kernels/) in terms of OpenCL C. An address parameter is
// a buffer and an offset; addresses read from tables are a buffer's number and an offset.
constexpr std::string_view kPrelude = R"cl(
#define KERNEL(name) __kernel void name
#define GLOBAL __global
#define LOCAL __local
#define SHARED __local
#define schar char
#define CONSTANT __constant
#define FUNCTION static inline
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define GROUP(d) ((int)get_group_id(d))
#define ITEM(d) ((int)get_local_id(d))
#define ITEMS(d) ((int)get_local_size(d))
#define MEM(p) __global uchar *p##_base, ulong p##_at
#define PTR(T, p) ((__global T *)(p##_base + p##_at))
#define SPACE __global uchar *space0, __global uchar *space1, __global uchar *space2, \
              __global uchar *space3
#define RESOLVE(address) resolve_address(space0, space1, space2, space3, address)
#define LOAD_HALF(p) vload_half(0, (const __global half *)(p))
#define STORE_HALF(x, p) vstore_half_rte(x, 0, (__global half *)(p))
#define AS_FLOAT(x) as_float(x)
#define EXACT_STEPS _Pragma("OPENCL FP_CONTRACT OFF")
#define ROUND_EVEN(x) rint(x)
#define AS_UINT(x) as_uint(x)
// The tile product by its definition (matmul.cl): slow, but kernels that use it are tested by it.
#define TILE_STORAGE(count) __local uint tile_words[count][32][6];
#define MULTIPLY_TILES(d, a, b) \
  do { \
    __local uint *mine = tile_words[ITEM(1)][ITEM(0)]; \
    for (int word = 0; word < 4; ++word) mine[word] = a[word]; \
    mine[4] = b[0]; \
    mine[5] = b[1]; \
    BARRIER(); \
    multiply_tiles(d, tile_words[ITEM(1)][0], ITEM(0)); \
    BARRIER(); \
  } while (0)
static inline float bf16_of(const __local uint *words, int item, int word, int half_at) {
  const uint both = words[item * 6 + word];
  return as_float(half_at ? both & 0xffff0000U : both << 16);
}
static inline void multiply_tiles(float *d, const __local uint *words, int item) {
  for (int i = 0; i < 4; ++i) {
    const int row = item / 4 + i / 2 * 8;
    const int column = item % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const float a = bf16_of(words, row % 8 * 4 + pair, row / 8 + k / 8 * 2, k % 2);
      const float b = bf16_of(words, column * 4 + pair, 4 + k / 8, k % 2);
      d[i] = fma(a, b, d[i]);
    }
  }
}
static inline __global uchar *resolve_address(__global uchar *space0, __global uchar *space1,
                                              __global uchar *space2, __global uchar *space3,
                                              ulong address) {
  const uint number = (uint)(address >> 48);
  __global uchar *base = number == 0   ? space0
                         : number == 1 ? space1
                         : number == 2 ? space2
                                       : space3;
  return base + (address & 0xffffffffffffUL);
}
#line 1
)cl";

std::string Options(const KernelSource& source, bool vector_items) {
  std::string options = "-cl-std=CL1.2";
  if (vector_items) options += " -DVECTOR_ITEMS=1";
  std::istringstream defines(source.defines);
  for (std::string define; defines >> define;) options += " -D" + define;
  return options;
}

}  // namespace

Programs::Programs(const Api* api, Context context, DeviceId device, std::string identity,
                   std::string folder, bool vector_items)
    : api_(api),
      context_(context),
      device_(device),
      identity_(std::move(identity)),
      cache_(std::move(folder)),
      vector_items_(vector_items) {}

Programs::~Programs() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [digest, program] : programs_) api_->ReleaseProgram(program);
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
  const std::string options = Options(source, vector_items_);
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
