// Kernels with sub-groups, as drivers that report those are given them, compile: to the
// intermediate language that Clang makes of OpenCL C for a device with 64-bit addresses. The driver
// of the machines where tests run has none; by their definition they are computed in the tests of
// operators, as the variant "subgroups". And: what a driver must report for them to be used.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "device/opencl/opencl_device.h"
#include "device/opencl/opencl_prelude.h"
#include "ops/opencl/kernel_sources.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

const std::vector<size_t> kIntelSizes = {8, 16, 32};

TEST(SubgroupOptionsTest, AreUsedWhereTheDriverReportsThem) {
  using device::SubgroupOptions;
  const char* intel = "cl_khr_fp16 cl_intel_subgroups cl_intel_required_subgroup_size";
  EXPECT_EQ(SubgroupOptions(intel, kIntelSizes, "OpenCL C 1.2 "),
            "-cl-std=CL1.2 -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_intel_subgroups "
            "-DSUBGROUP_BLOCKS=1");
  // No sub-groups of 16, or none that can be asked for: reductions alone.
  EXPECT_EQ(SubgroupOptions(intel, {}, "OpenCL C 1.2 "),
            "-cl-std=CL1.2 -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_intel_subgroups");
  EXPECT_EQ(SubgroupOptions("cl_intel_subgroups", kIntelSizes, "OpenCL C 1.2 "),
            "-cl-std=CL1.2 -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_intel_subgroups");
  EXPECT_EQ(SubgroupOptions("cl_khr_subgroups cl_khr_fp64", {}, "OpenCL C 2.0 x"),
            "-cl-std=CL2.0 -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_khr_subgroups");
  EXPECT_EQ(SubgroupOptions("cl_khr_fp64 cl_khr_subgroups", {}, "OpenCL C 3.0"),
            "-cl-std=CL3.0 -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_khr_subgroups");
  // The language lacks them, they are not there, or it is another extension.
  EXPECT_EQ(SubgroupOptions("cl_khr_subgroups", {}, "OpenCL C 1.2"), "");
  EXPECT_EQ(SubgroupOptions("cl_khr_fp64", {}, "OpenCL C 3.0"), "");
  EXPECT_EQ(SubgroupOptions("cl_khr_subgroups_x cl_intel_subgroups_short", {}, "OpenCL C 3.0"), "");
}

std::string Clang() {
  for (const char* name : {"clang-19", "clang"}) {
    const std::string look = std::string("command -v ") + name + " >/dev/null 2>&1";
    if (std::system(look.c_str()) == 0) return name;
  }
  return "";
}

class OpenClCompileTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    clang_ = Clang();
    if (clang_.empty()) GTEST_SKIP() << "no Clang, which `./dev setup lint` installs";
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-cl-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  std::string Compile(const char* source, const std::string& defines) {
    SCOPED_TRACE(defines);
    const std::string text = folder_ + "/kernels.cl", code = folder_ + "/kernels.ll";
    std::ofstream(text) << device::cl::kPrelude << source;
    std::string options = GetParam();
    std::istringstream words(defines);
    for (std::string word; words >> word;) options += " -D" + word;
    // What Intel adds is in the header alone, not among the functions that Clang knows by itself.
    const bool intel = options.find("cl_intel_subgroups") != std::string::npos;
    if (intel) options += " -cl-no-stdinc -Dcl_intel_subgroups";
    const std::string command = clang_ + " -x cl -target spir64 -Xclang -finclude-default-header " +
                                options + " -w -S -emit-llvm " + text + " -o " + code;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    std::ifstream file(code);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string clang_;
  std::string folder_;
};

TEST_P(OpenClCompileTest, ReductionsAreOfSubgroups) {
  for (const std::string& code :
       {Compile(kElementwiseSource, ""),
        Compile(kAttentionSource, "KEY_DIM=128 VALUE_DIM=128 KV_KIND=0")}) {
    EXPECT_NE(code.find("sub_group_reduce_add"), std::string::npos);
  }
}

TEST_P(OpenClCompileTest, WeightsAreReadInBlocks) {
  const bool blocks = GetParam().find("SUBGROUP_BLOCKS") != std::string::npos;
  for (const DType dtype : MatrixTypes()) {
    SCOPED_TRACE(Info(dtype).name);
    const std::string code = Compile(kMatMulSource, MatMulDefines(dtype));
    EXPECT_NE(code.find("matmul_1"), std::string::npos);
    const bool words = dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kF8E4M3 &&
                       dtype != DType::kF8E5M2;
    EXPECT_EQ(code.find("intel_sub_group_block_read") != std::string::npos, blocks && words);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, OpenClCompileTest,
    testing::Values(device::SubgroupOptions("cl_intel_subgroups cl_intel_required_subgroup_size",
                                            kIntelSizes, "OpenCL C 1.2"),
                    device::SubgroupOptions("cl_khr_subgroups", {}, "OpenCL C 2.0"),
                    device::SubgroupOptions("cl_khr_subgroups", {}, "OpenCL C 3.0")),
    [](const auto& info) {
      return std::string(info.index == 0 ? "intel" : info.index == 1 ? "khr_2" : "khr_3");
    });

}  // namespace
}  // namespace terrace::ops
