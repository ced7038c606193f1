#include "ops/verify.h"

#include <set>

#include "gtest/gtest.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

TEST(VerifyTest, EveryVariantAndFormatHasRowsThatHold) {
  ThreadTeam team(2);
  VerifyOptions options;
  options.measure = false;
  const auto rows = VerifyOps(options, &team);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::set<std::string> seen;
  for (const VerifyRow& row : *rows) {
    EXPECT_TRUE(row.holds) << row.variant << " " << row.op << " " << row.dtype << " errs by "
                           << row.worst_error << ", allowed " << row.tolerance;
    EXPECT_GT(row.tolerance, 0);
    EXPECT_TRUE(row.unit.empty());
    seen.insert(row.variant + row.op + row.dtype);
  }
  EXPECT_EQ(seen.size(), rows->size());
  for (const CpuVariant& variant : CpuVariants()) {
    for (const DType dtype : MatrixTypes()) {
      if (!variant.supported) continue;
      EXPECT_TRUE(seen.contains(std::string(variant.name) + "matmul 1 row" +
                                std::string(Info(dtype).name)));
    }
  }
}

TEST(VerifyTest, UnknownVariantIsNotFound) {
  ThreadTeam team(1);
  VerifyOptions options;
  options.variant = "abacus";
  options.measure = false;
  EXPECT_EQ(VerifyOps(options, &team).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace::ops
