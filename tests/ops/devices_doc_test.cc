// The formats that docs/DEVICES.md lists are those that kernels take: no more, no fewer.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "ops/cpu/packing.h"
#include "ops/opencl/kernel_sources.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

TEST(DevicesDocTest, ListsTheFormatsThatKernelsTake) {
  std::string floats, blocks;
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(cpu::Packable(dtype), !MatMulDefines(dtype).empty()) << Info(dtype).name;
    if (!cpu::Packable(dtype)) continue;
    std::string& list = Info(dtype).quantised ? blocks : floats;
    list += (list.empty() ? "" : " ") + std::string(Info(dtype).name);
  }
  std::ifstream file(TERRACE_SOURCE_DIR "/docs/DEVICES.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const std::string& list : {floats, blocks}) {
    EXPECT_NE(text.find("| matmul, embedding | " + list + " | native | native"), std::string::npos)
        << "docs/DEVICES.md needs a row of: " << list;
  }
}

}  // namespace
}  // namespace terrace::ops
