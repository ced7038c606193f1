// The kernel for chips with a tile product, which the driver emulates by the definition of PTX: for
// every format against exact sums, within what rounding to bfloat16 can do and no more.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "operands.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

class TilesTest : public testing::TestWithParam<std::tuple<DType, Items>> {
 protected:
  void SetUp() override {
    if (!HaveKernelDevice()) GTEST_SKIP() << "no device compiles kernels here";
    backend_ = CreateStagedBackend(std::get<1>(GetParam()));
    ASSERT_NE(backend_, nullptr);
  }

  static DType Type() { return std::get<0>(GetParam()); }
  // All formats but this have 8 significant bits or fewer; float32 is not computed by tiles.
  static bool WeightsAreExact() { return Type() != DType::kF16; }

  // `exact_x`: x of numbers that bfloat16 holds, so that nothing but sums is rounded.
  void Check(int rows, int cols, int n, bool with_bias, bool exact_x, uint64_t seed) {
    SCOPED_TRACE(testing::Message() << rows << "x" << cols << " n " << n << " seed " << seed);
    const DType dtype = Type();
    Random random(seed);
    const std::vector<std::byte> plain = RandomWeight(dtype, rows, cols, random);
    const int64_t stride = cols + 3;
    std::vector<float> x = RandomFloats(static_cast<size_t>(n * stride), random);
    if (exact_x) {
      for (float& value : x) value = Bf16ToFloat(FloatToBf16(value));
    }
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(rows), random);
    std::vector<std::byte> weight(backend_->PackedBytes(Layout::kRows16, dtype, rows, cols));
    ASSERT_TRUE(backend_->Pack(Layout::kRows16, dtype, rows, cols, plain, weight).ok());
    const int64_t out_stride = rows + 5;
    std::vector<float> out(static_cast<size_t>(n * out_stride), kUntouched);
    MatMulTarget target;
    target.weight = {dtype, Layout::kRows16, rows, cols, weight.data()};
    if (with_bias) target.bias = {bias.data(), rows};
    target.out = View(out, n, rows, out_stride);
    const absl::Status status = backend_->MatMul(View(x, n, cols, stride), {&target, 1});
    ASSERT_TRUE(status.ok()) << status;

    std::vector<float> w(static_cast<size_t>(cols));
    for (int r = 0; r < rows; ++r) {
      DequantizeRow(
          dtype,
          plain.data() + RowBytes(dtype, static_cast<uint64_t>(cols)) * static_cast<uint64_t>(r),
          w);
      for (int i = 0; i < n; ++i) {
        double want = with_bias ? double{bias[static_cast<size_t>(r)]} : 0.0;
        double products = 0, sum = 0, top = 0;
        for (int c = 0; c < cols; ++c) {
          const double value = x[static_cast<size_t>(i * stride + c)];
          const double weight_value = w[static_cast<size_t>(c)];
          want += weight_value * value;
          products += std::fabs(weight_value * value);
          sum += std::fabs(value);
          top = std::max(top, std::fabs(weight_value));
        }
        // Each factor that is rounded to 8 bits is off by 2^-8 of itself at most, each of the sums
        // (one a column, and one a sub-block) by 2^-24 of what may have been summed: a code times
        // its scale is a weight without its minimum, at most the whole range of weights.
        const double rounding = (exact_x ? 0 : 0x1p-8) + (WeightsAreExact() ? 0 : 0x1p-8);
        const double tolerance = 1.01 * rounding * products + 2 * cols * 0x1p-24 * 2 * top * sum +
                                 2 * 0x1p-24 * std::fabs(want);
        ASSERT_NEAR(out[static_cast<size_t>(i * out_stride + r)], want, tolerance)
            << "feature " << r << " row " << i;
      }
    }
    EXPECT_TRUE(NothingPastRows(out, n, rows, out_stride));
  }

  int Columns(int multiple) const {
    return multiple * static_cast<int>(std::max<uint32_t>(32, Info(Type()).block_elements));
  }

  std::unique_ptr<Backend> backend_;
};

TEST_P(TilesTest, SumsAreExactWhereNothingIsRounded) {
  Check(64, Columns(1), 64, false, true, 1);
  Check(48, Columns(2), 16, true, true, 2);
}

TEST_P(TilesTest, RowsThatFillNoTileAndRoundedInputs) {
  Check(17, Columns(1), 67, true, false, 3);
  Check(80, Columns(2), 16, false, false, 4);
  Check(1, Columns(1), 130, true, false, 5);
}

// What is computed in runs of rows of any size must be the same whoever shares the run.
TEST_P(TilesTest, ARowDoesNotDependOnItsNeighbours) {
  const int cols = Columns(2);
  Random random(6);
  const std::vector<std::byte> plain = RandomWeight(Type(), 32, cols, random);
  std::vector<std::byte> weight(backend_->PackedBytes(Layout::kRows16, Type(), 32, cols));
  ASSERT_TRUE(backend_->Pack(Layout::kRows16, Type(), 32, cols, plain, weight).ok());
  std::vector<float> x = RandomFloats(static_cast<size_t>(100 * cols), random);
  std::vector<float> first;
  for (const int n : {16, 63, 64, 100}) {
    std::vector<float> out(static_cast<size_t>(n * 32));
    MatMulTarget target;
    target.weight = {Type(), Layout::kRows16, 32, cols, weight.data()};
    target.out = View(out, n, 32);
    ASSERT_TRUE(backend_->MatMul(View(x, n, cols), {&target, 1}).ok());
    out.resize(32);
    if (first.empty()) first = out;
    ASSERT_EQ(first, out) << n;
  }
}

TEST_P(TilesTest, WhereRoundingMustNotDependOnTheRowsTilesAreNotUsed) {
  const int cols = Columns(1);
  Random random(7);
  const std::vector<std::byte> plain = RandomWeight(Type(), 16, cols, random);
  std::vector<std::byte> weight(backend_->PackedBytes(Layout::kRows16, Type(), 16, cols));
  ASSERT_TRUE(backend_->Pack(Layout::kRows16, Type(), 16, cols, plain, weight).ok());
  std::vector<float> x = RandomFloats(static_cast<size_t>(40 * cols), random);
  backend_->SetUniform(true);
  std::vector<float> one(16), many(40 * 16);
  MatMulTarget target;
  target.weight = {Type(), Layout::kRows16, 16, cols, weight.data()};
  target.out = View(one, 1, 16);
  ASSERT_TRUE(backend_->MatMul(View(x, 1, cols), {&target, 1}).ok());
  target.out = View(many, 40, 16);
  ASSERT_TRUE(backend_->MatMul(View(x, 40, cols), {&target, 1}).ok());
  many.resize(16);
  EXPECT_EQ(one, many);
}

std::string NameOf(const testing::TestParamInfo<std::tuple<DType, Items>>& info) {
  return std::string(Info(std::get<0>(info.param)).name);
}

INSTANTIATE_TEST_SUITE_P(Formats, TilesTest,
                         testing::Combine(testing::ValuesIn(MatrixTypes()),
                                          testing::Values(Items::kLanesWithTiles)),
                         NameOf);
// Of chips whose items go in waves of 64: one of each kind of format.
INSTANTIATE_TEST_SUITE_P(WideFormats, TilesTest,
                         testing::Combine(testing::Values(DType::kF16, DType::kBF16, DType::kF8E4M3,
                                                          DType::kQ4_0, DType::kQ4_1, DType::kQ4_K,
                                                          DType::kQ6_K, DType::kIQ3_S,
                                                          DType::kMXFP4, DType::kW8A8),
                                          testing::Values(Items::kLanesWithWideTiles)),
                         NameOf);

}  // namespace
}  // namespace terrace::ops
