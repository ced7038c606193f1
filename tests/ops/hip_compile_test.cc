// Kernels of the common dialect in HIP's words compile to machine code for AMD's and Hygon's
// architectures, and none of them spills registers. Needs no GPU and none of ROCm: Clang has the
// target; what HIP's headers would bring beside it is declared here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "device/cuda/dialect_words.h"
#include "device/hip/hip_prelude.h"
#include "ops/opencl/kernel_sources.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

// The words of HIP's headers that the dialect uses.
constexpr const char* kHeaders = R"hip(
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
struct Index { unsigned x, y, z; };
#define INDEX(of) (Index{of##_x(), of##_y(), of##_z()})
#define threadIdx INDEX(__builtin_amdgcn_workitem_id)
#define blockIdx INDEX(__builtin_amdgcn_workgroup_id)
#define blockDim INDEX(__builtin_amdgcn_workgroup_size)
#define HELPER static __device__ __forceinline__
HELPER void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
  __builtin_amdgcn_s_barrier();
}
HELPER float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
HELPER unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
HELPER float sqrt(float x) { return __builtin_sqrtf(x); }
HELPER float fabs(float x) { return __builtin_fabsf(x); }
HELPER float rintf(float x) { return __builtin_rintf(x); }
HELPER float exp(float x) { return __builtin_expf(x); }
HELPER float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HELPER float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
extern "C" __device__ float tanhf(float);
extern "C" __device__ float erff(float);
HELPER float tanh(float x) { return tanhf(x); }
HELPER float erf(float x) { return erff(x); }
)hip";

std::string Clang() {
  for (const char* name : {"clang++-19", "clang++"}) {
    const std::string look = std::string("command -v ") + name + " >/dev/null 2>&1";
    if (std::system(look.c_str()) == 0) return name;
  }
  return "";
}

class HipCompileTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    clang_ = Clang();
    if (clang_.empty()) GTEST_SKIP() << "no Clang, which `./dev setup lint` installs";
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-hip-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // The machine code, as text.
  std::string Check(const char* source, const std::string& defines,
                    const std::set<std::string>& kernels) {
    SCOPED_TRACE(defines);
    const std::string text = folder_ + "/kernels.hip", code = folder_ + "/kernels.s";
    std::ofstream(text) << kHeaders << device::cuda::kDialectWords << device::hip::kPrelude
                        << source;
    std::string options = " -DVECTOR_ITEMS=0";
    std::istringstream words(defines);
    for (std::string word; words >> word;) options += " -D" + word;
    const std::string command = clang_ + " -x hip --offload-arch=" + GetParam() +
                                " --cuda-device-only -nogpuinc -nogpulib -std=c++17 -O3" +
                                " -ffp-contract=off" + options + " -S " + text + " -o " + code;
    const int rc = std::system(command.c_str());
    EXPECT_EQ(rc, 0) << command;
    if (rc != 0) return "";
    std::ifstream file(code);
    const std::string out{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(Find(out, R"(\.amdhsa_kernel (\w+))"), kernels);
    const std::set<std::string> none = {"0"};
    EXPECT_EQ(Find(out, R"(\.vgpr_spill_count: +(\d+))"), none);
    EXPECT_EQ(Find(out, R"(\.private_segment_fixed_size: +(\d+))"), none);
    return out;
  }

  static std::set<std::string> Find(const std::string& text, const char* pattern) {
    std::set<std::string> found;
    const std::regex expression(pattern);
    for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
      found.insert((*it)[1]);
    }
    return found;
  }

  std::string clang_, folder_;
};

TEST_P(HipCompileTest, Elementwise) {
  Check(kElementwiseSource, "",
        {"rms_norm", "rope", "glu", "add", "add_bias", "scale_or_cap", "fill", "gather_rows",
         "add_scaled_rows", "gelu_erf", "scale_by_sigmoid", "layer_norm", "pool", "attend_all"});
}

TEST_P(HipCompileTest, MatricesOfEachKindOfFormat) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kQ4_K, DType::kQ8_0,
                            DType::kIQ3_S, DType::kMXFP4, DType::kW8A8}) {
    Check(kMatMulSource, MatMulDefines(dtype),
          {"matmul_1", "matmul_8", "embed", "unpack", "to_bf16"});
  }
}

// Chips before CDNA 2 have no instruction for it.
TEST_P(HipCompileTest, TheTileProductOfEveryFormatOnMatrixCores) {
  if (GetParam() == "gfx906") GTEST_SKIP() << "has no matrix cores";
  for (const DType dtype : MatrixTypes()) {
    if (dtype == DType::kF32) continue;
    const std::string out =
        Check(kMatMulSource, MatMulDefines(dtype) + " TILE_PRODUCT=1", {"matmul_tiles"});
    EXPECT_NE(out.find("v_mfma_f32_16x16x16"), std::string::npos) << Info(dtype).name;
  }
}

TEST_P(HipCompileTest, Attention) {
  for (const char* defines :
       {"KEY_DIM=64 VALUE_DIM=64 KV_KIND=0", "KEY_DIM=128 VALUE_DIM=128 KV_KIND=1",
        "KEY_DIM=256 VALUE_DIM=256 KV_KIND=0", "KEY_DIM=576 VALUE_DIM=512 KV_KIND=0"}) {
    Check(kAttentionSource, defines, {"attention", "store_kv"});
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, HipCompileTest,
                         testing::Values("gfx906", "gfx90a", "gfx942"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::ops
