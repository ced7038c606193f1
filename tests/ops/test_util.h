// What operator tests share: operands, views, backends.
#ifndef TERRACE_TESTS_OPS_TEST_UTIL_H_
#define TERRACE_TESTS_OPS_TEST_UTIL_H_

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cpu/thread_team.h"
#include "gtest/gtest.h"
#include "operands.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"
#include "staged_backend.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace terrace::ops {

inline Matrix View(std::vector<float>& data, int rows, int cols, int64_t stride = 0) {
  return {data.data(), rows, cols, stride == 0 ? cols : stride};
}

// What results are filled with before they are computed.
inline constexpr float kUntouched = 12345.0f;

// Whether nothing was written between the rows of `out`, which lie `stride` apart.
inline testing::AssertionResult NothingPastRows(const std::vector<float>& out, int rows, int cols,
                                                int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = cols; c < stride; ++c) {
      const float value = out[static_cast<size_t>(r * stride + c)];
      if (value == kUntouched) continue;
      return testing::AssertionFailure() << "row " << r << ", column " << c << " is " << value;
    }
  }
  return testing::AssertionSuccess();
}

// Variants that this machine runs: the processor's, and "kernels" of the common dialect where it
// has a device that compiles them.
inline std::vector<std::string> SupportedVariants() {
  std::vector<std::string> names;
  for (const CpuVariant& v : CpuVariants()) {
    if (v.supported) names.push_back(v.name);
  }
  if (HaveKernelDevice()) names.insert(names.end(), {"kernels", "scalar", "subgroups"});
  return names;
}

inline std::unique_ptr<Backend> MustCreate(const std::string& variant, ThreadTeam* team,
                                           bool deterministic = false) {
  if (variant == "kernels") return CreateStagedBackend(Items::kVectors);
  if (variant == "scalar") return CreateStagedBackend(Items::kLanes);
  if (variant == "subgroups") return CreateStagedBackend(Items::kLanesWithSubgroups);
  auto backend = CreateCpuBackend(variant, team, {.deterministic = deterministic});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? std::move(backend).value() : nullptr;
}

}  // namespace terrace::ops

#endif  // TERRACE_TESTS_OPS_TEST_UTIL_H_
