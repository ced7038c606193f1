// Norms, rotary embedding, activations and small operators of every variant against the reference.
#include <functional>

#include "gmock/gmock.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

class ElementwiseTest : public testing::TestWithParam<std::string> {
 protected:
  ThreadTeam team_{2};
  std::unique_ptr<Backend> cpu_ = MustCreate(GetParam(), &team_);
  std::unique_ptr<Backend> ref_ = CreateRefBackend(&team_);
  Random random_{31};

  // Runs `op` on both backends over copies of random data and compares: |difference| at most
  // `relative` times the reference's magnitude plus `absolute`.
  void Compare(int rows, int cols, float relative, float absolute,
               const std::function<absl::Status(Backend&, Matrix)>& op) {
    SCOPED_TRACE(testing::Message() << rows << "x" << cols);
    const int64_t stride = cols + 7;
    std::vector<float> a = RandomFloats(static_cast<size_t>(rows * stride), random_);
    std::vector<float> b = a;
    ASSERT_TRUE(op(*cpu_, View(a, rows, cols, stride)).ok());
    ASSERT_TRUE(op(*ref_, View(b, rows, cols, stride)).ok());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], relative * std::fabs(b[i]) + absolute) << i;
    }
  }
};

constexpr int kWidths[] = {1, 3, 15, 16, 17, 64, 100, 1024};

// The mean of n squares errs by n eps at most (less: 64 sums run side by side); root, reciprocal
// and two products add a few more roundings.
TEST_P(ElementwiseTest, RmsNorm) {
  for (const int cols : kWidths) {
    std::vector<float> w = RandomFloats(static_cast<size_t>(cols), random_);
    const float tolerance = (static_cast<float>(cols) / 2 + 8) * kEps;
    for (const int rows : {1, 40}) {
      Compare(rows, cols, tolerance, 0,
              [&](Backend& b, Matrix x) { return b.RmsNorm(x, {w.data(), cols}, 1e-6f, x); });
    }
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZero) {
  std::vector<float> w(64, 2.0f), x(64, 0.0f);
  ASSERT_TRUE(cpu_->RmsNorm(View(x, 1, 64), {w.data(), 64}, 1e-6f, View(x, 1, 64)).ok());
  EXPECT_THAT(x, testing::Each(0.0f));
}

TEST_P(ElementwiseTest, RmsNormHeads) {
  for (const int dim : {16, 64, 80, 128, 256}) {
    std::vector<float> w = RandomFloats(static_cast<size_t>(dim), random_);
    Compare(9, dim * 3, (static_cast<float>(dim) / 2 + 8) * kEps, 0,
            [&](Backend& b, Matrix x) { return b.RmsNormHeads(x, 3, {w.data(), dim}, 1e-5f); });
  }
}

// e^x is within 2 ulp, sum, quotient and two products add four more; gelu's argument 2u errs by
// three roundings, which the exponential multiplies by |2u| <= 88 where the result is not yet
// nothing.
TEST_P(ElementwiseTest, Glu) {
  for (const int cols : kWidths) {
    std::vector<float> up = RandomFloats(static_cast<size_t>(50 * cols), random_);
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const float relative = activation == Activation::kSilu ? 12 * kEps : 300 * kEps;
      Compare(50, cols, relative, 1e-30f,
              [&](Backend& b, Matrix x) { return b.Glu(activation, x, View(up, 50, cols), x); });
    }
  }
}

TEST_P(ElementwiseTest, GluAtTheEndsOfTheRange) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    std::vector<float> x = {-1000, -90, -20, -1e-20f, 0, 1e-20f, 20, 90, 1000, NAN};
    std::vector<float> up(x.size(), 1.0f);
    const int n = static_cast<int>(x.size());
    ASSERT_TRUE(cpu_->Glu(activation, View(x, 1, n), View(up, 1, n), View(x, 1, n)).ok());
    EXPECT_NEAR(x[0], 0, 1e-30);
    EXPECT_NEAR(x[1], 0, 1e-30);
    EXPECT_NEAR(x[2], 0, 5e-8);
    EXPECT_EQ(x[4], 0);
    EXPECT_FLOAT_EQ(x[7], 90);
    EXPECT_FLOAT_EQ(x[8], 1000);
    EXPECT_TRUE(std::isnan(x[9]));
  }
}

TEST_P(ElementwiseTest, AddScaleSoftcapGather) {
  for (const int cols : kWidths) {
    std::vector<float> y = RandomFloats(static_cast<size_t>(33 * cols), random_);
    Compare(33, cols, 0, 0, [&](Backend& b, Matrix x) { return b.Add(x, View(y, 33, cols)); });
    Compare(33, cols, 0, 0, [&](Backend& b, Matrix x) { return b.Scale(x, 1.7f); });
    // tanh within 4 ulp, a quotient and a product.
    for (const float cap : {0.5f, 3.0f, 30.0f, 1000.0f}) {
      Compare(33, cols, 16 * kEps, 0, [&](Backend& b, Matrix x) { return b.Softcap(x, cap); });
    }
    std::vector<float> out(static_cast<size_t>(3 * cols));
    const std::vector<int32_t> rows = {32, 0, 32};
    ASSERT_TRUE(cpu_->GatherRows(View(y, 33, cols), rows, View(out, 3, cols)).ok());
    for (int c = 0; c < cols; ++c) {
      EXPECT_EQ(out[static_cast<size_t>(c)], y[static_cast<size_t>(32 * cols + c)]);
      EXPECT_EQ(out[static_cast<size_t>(cols + c)], y[static_cast<size_t>(c)]);
    }
  }
}

// Both take the same float32 cosines; a difference of two rounded products errs by 2 eps of them,
// which is more than that of the (smaller) difference: hence the absolute part, inputs reach 5.
TEST_P(ElementwiseTest, Rope) {
  std::vector<float> factors = RandomFloats(64, random_);
  for (float& f : factors) f = 1.0f + std::fabs(f);
  for (const RopeKind kind : {RopeKind::kHalves, RopeKind::kAdjacent}) {
    for (const int dim : {128, 64, 20}) {
      for (const int mode : {0, 1, 2}) {
        RopeParams params;
        params.kind = kind;
        params.dim = dim;
        params.base = 1e6f;
        if (mode == 1) params.frequency_factors = {factors.data(), dim / 2};
        if (mode == 2) {
          params.position_scale = 0.25f;
          params.yarn_ext_factor = 1.0f;
          params.yarn_original_context = 4096;
        }
        std::vector<int32_t> positions(17);
        for (size_t i = 0; i < positions.size(); ++i) {
          positions[i] = static_cast<int32_t>(i * 997 % 5000);
        }
        BatchRows batch;
        batch.rows = 17;
        batch.positions = positions;
        Compare(17, 3 * 128, 0, 5 * 1.42f * 4 * kEps,
                [&](Backend& b, Matrix x) { return b.Rope(x, 3, 128, batch, params); });
      }
    }
  }
}

TEST_P(ElementwiseTest, NormRopeHasTheBitsOfItsOperators) {
  constexpr int kHeads = 3, kDim = 128;
  const std::vector<float> w = RandomFloats(kDim, random_);
  for (const int rows : {1, 17, 50}) {
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i * 31);
    BatchRows batch;
    batch.rows = rows;
    batch.positions = positions;
    RopeParams params;
    params.kind = RopeKind::kHalves;
    params.dim = 64;
    params.base = 1e4f;
    const int cols = kHeads * kDim, stride = cols + 5;
    std::vector<float> a = RandomFloats(static_cast<size_t>(rows * stride), random_), b = a;
    const Matrix x = View(a, rows, cols, stride), y = View(b, rows, cols, stride);
    ASSERT_TRUE(cpu_->NormRope(x, kHeads, {w.data(), kDim}, 1e-6f, batch, params).ok());
    ASSERT_TRUE(cpu_->RmsNormHeads(y, kHeads, {w.data(), kDim}, 1e-6f).ok());
    ASSERT_TRUE(cpu_->Rope(y, kHeads, kDim, batch, params).ok());
    EXPECT_EQ(a, b) << rows;
  }
  std::vector<float> a(kDim);
  EXPECT_FALSE(cpu_->NormRope(View(a, 1, kDim), 2, {w.data(), kDim}, 1e-6f, {}, {}).ok());
}

TEST_P(ElementwiseTest, RopeFollowsTheDefinition) {
  // Pair 1 of 4 dimensions at base 100 turns by position / 10.
  RopeParams params;
  params.dim = 4;
  params.base = 100.0f;
  const std::vector<int32_t> positions = {3};
  BatchRows batch;
  batch.rows = 1;
  batch.positions = positions;
  std::vector<float> halves = {0, 1, 0, 0};
  ASSERT_TRUE(cpu_->Rope(View(halves, 1, 4), 1, 4, batch, params).ok());
  EXPECT_NEAR(halves[1], std::cos(0.3), 1e-6);
  EXPECT_NEAR(halves[3], std::sin(0.3), 1e-6);
  params.kind = RopeKind::kAdjacent;
  std::vector<float> adjacent = {1, 0, 0, 1};
  ASSERT_TRUE(cpu_->Rope(View(adjacent, 1, 4), 1, 4, batch, params).ok());
  EXPECT_NEAR(adjacent[0], std::cos(3.0), 1e-6);
  EXPECT_NEAR(adjacent[1], std::sin(3.0), 1e-6);
  EXPECT_NEAR(adjacent[2], -std::sin(0.3), 1e-6);
  EXPECT_NEAR(adjacent[3], std::cos(0.3), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Variants, ElementwiseTest, testing::ValuesIn(SupportedVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::ops
