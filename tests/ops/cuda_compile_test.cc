// Every kernel of the common dialect compiles for NVIDIA's architectures with its run-time
// compiler, and none of the decode kernels spills registers to local memory. Needs no GPU: the
// compiler comes with PyPI's nvidia-cuda-nvrtc (TERRACE_NVRTC names its library), or from the
// system.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/nvrtc.h"
#include "device/musa/musa_device.h"
#include "ops/opencl/kernel_sources.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

// The named library, one in the checkout's own Python environment, or the system's (empty).
std::string CompilerLibrary() {
  if (const char* named = std::getenv("TERRACE_NVRTC")) return named;
  std::error_code error;
  const std::filesystem::path venv = std::string(TERRACE_SOURCE_DIR) + "/.venv/lib";
  for (std::filesystem::recursive_directory_iterator it(venv, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with("libnvrtc.so.")) return it->path();
  }
  return "";
}

class CudaCompileTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened = device::cuda::Compiler::Open(CompilerLibrary());
    if (absl::IsNotFound(opened.status())) GTEST_SKIP() << opened.status();
    ASSERT_TRUE(opened.ok()) << opened.status();
    compiler_ = *std::move(opened);
  }

  // Compiles and checks that exactly `kernels` are in it, none with spills or a stack.
  void Check(const char* source, const std::string& defines, const std::set<std::string>& kernels) {
    SCOPED_TRACE(defines);
    auto code = compiler_->Compile(source, defines, GetParam());
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(code->image.substr(0, 4),
              "\x7f"
              "ELF");
    std::set<std::string> names;
    for (const device::cuda::KernelReport& kernel : code->kernels) {
      names.insert(kernel.name);
      EXPECT_EQ(kernel.spill_store_bytes, 0u) << kernel.name;
      EXPECT_EQ(kernel.spill_load_bytes, 0u) << kernel.name;
      EXPECT_EQ(kernel.stack_bytes, 0u) << kernel.name;
      EXPECT_GT(kernel.registers, 0u) << kernel.name;
      // More would leave fewer than 4 groups of 128 items on a multiprocessor.
      EXPECT_LE(kernel.registers, 128u) << kernel.name;
    }
    EXPECT_EQ(names, kernels);
  }

  std::unique_ptr<device::cuda::Compiler> compiler_;
};

TEST_P(CudaCompileTest, Elementwise) {
  Check(kElementwiseSource, "",
        {"rms_norm", "rope", "glu", "add", "add_bias", "scale_or_cap", "fill", "gather_rows",
         "add_scaled_rows", "gelu_erf", "scale_by_sigmoid", "layer_norm", "pool", "attend_all"});
}

TEST_P(CudaCompileTest, MatricesOfEveryFormat) {
  for (const DType dtype : MatrixTypes()) {
    SCOPED_TRACE(Info(dtype).name);
    Check(kMatMulSource, MatMulDefines(dtype),
          {"matmul_1", "matmul_8", "embed", "unpack", "to_bf16"});
  }
}

TEST_P(CudaCompileTest, TheTileProductOfEveryFormat) {
  for (const DType dtype : MatrixTypes()) {
    SCOPED_TRACE(Info(dtype).name);
    Check(kMatMulSource, MatMulDefines(dtype) + " TILE_PRODUCT=1", {"matmul_tiles"});
  }
}

TEST_P(CudaCompileTest, AttentionOfTheArchitecturesGeometries) {
  for (const char* dims : {"KEY_DIM=64 VALUE_DIM=64", "KEY_DIM=128 VALUE_DIM=128",
                           "KEY_DIM=256 VALUE_DIM=256", "KEY_DIM=576 VALUE_DIM=512"}) {
    for (const char* kind : {" KV_KIND=0", " KV_KIND=1", " KV_KIND=2"}) {
      Check(kAttentionSource, std::string(dims) + kind, {"attention", "store_kv"});
    }
  }
}

TEST_P(CudaCompileTest, WhatDoesNotCompileSaysWhere) {
  auto code = compiler_->Compile("KERNEL(broken)(int n) {\n  undeclared(n);\n}", "", GetParam());
  EXPECT_EQ(code.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(code.status().message().find("undeclared"), absl::string_view::npos);
}

// Another maker's words for the dialect, which are CUDA's but for its assembler: what its own
// compiler says is not known, but it is C++ that computes what it should.
TEST_P(CudaCompileTest, TheDialectInMusasWords) {
  device::cuda::CompilerMaker maker = device::cuda::Compiler::Nvidia();
  if (const std::string library = CompilerLibrary(); !library.empty()) maker.libraries = {library};
  maker.prelude = device::musa::Mtrtc().prelude;
  compiler_ = device::cuda::Compiler::Open(maker).value();
  for (const DType dtype : {DType::kF16, DType::kQ4_K, DType::kMXFP4}) {
    Check(kMatMulSource, MatMulDefines(dtype),
          {"matmul_1", "matmul_8", "embed", "unpack", "to_bf16"});
  }
  Check(kAttentionSource, "KEY_DIM=128 VALUE_DIM=128 KV_KIND=0", {"attention", "store_kv"});
  EXPECT_TRUE(compiler_->Compile(kElementwiseSource, "", GetParam()).ok());
}

INSTANTIATE_TEST_SUITE_P(Architectures, CudaCompileTest,
                         testing::Values("sm_80", "sm_90", "sm_100"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::ops
