// The gated feed-forward network in one call has the bits of the operators it is composed of, which
// have tests of their own against the reference.
#include <cstring>

#include "test_util.h"

namespace terrace::ops {
namespace {

struct Shape {
  DType gate;
  DType up;
  DType down;
  int width;
  int ffn;
};

// A matrix in the layout that the backend wants.
struct Packed {
  Packed(const Backend& backend, DType dtype, int rows, int cols, Random& random) {
    const std::vector<std::byte> plain = RandomWeight(dtype, rows, cols, random);
    const Layout layout = backend.PreferredLayout(dtype, rows, cols);
    bytes.resize(backend.PackedBytes(layout, dtype, rows, cols));
    EXPECT_TRUE(backend.Pack(layout, dtype, rows, cols, plain, bytes).ok());
    weight = {dtype, layout, rows, cols, bytes.data()};
  }
  std::vector<std::byte> bytes;
  Weight weight;
};

class GatedFfnTest : public testing::TestWithParam<std::string> {
 protected:
  void Check(const Shape& s, int n, Activation activation, bool uniform = false) {
    constexpr uint64_t kSeed = 51;
    SCOPED_TRACE(testing::Message()
                 << Info(s.gate).name << " " << Info(s.up).name << " " << Info(s.down).name << " "
                 << s.width << " " << s.ffn << " n " << n << " seed " << kSeed);
    Random random(kSeed);
    ThreadTeam team(2);
    const auto backend = MustCreate(GetParam(), &team);
    ASSERT_NE(backend, nullptr);
    backend->SetUniform(uniform);
    const Packed gate(*backend, s.gate, s.ffn, s.width, random);
    const Packed up(*backend, s.up, s.ffn, s.width, random);
    const Packed down(*backend, s.down, s.width, s.ffn, random);
    std::vector<float> x = RandomFloats(static_cast<size_t>(n * s.width), random);
    std::vector<float> gated(static_cast<size_t>(n * s.ffn)), raised = gated;
    const int64_t stride = s.width + 5;
    std::vector<float> want(static_cast<size_t>(n * stride), kUntouched), got = want;

    const MatMulTarget both[] = {{gate.weight, {}, View(gated, n, s.ffn)},
                                 {up.weight, {}, View(raised, n, s.ffn)}};
    MatMulTarget to = {down.weight, {}, View(want, n, s.width, stride)};
    ASSERT_TRUE(backend->MatMul(View(x, n, s.width), both).ok());
    ASSERT_TRUE(backend->Glu(activation, both[0].out, both[1].out, both[0].out).ok());
    ASSERT_TRUE(backend->MatMul(both[0].out, {&to, 1}).ok());

    to.out = View(got, n, s.width, stride);
    const absl::Status status =
        backend->GatedFfn(View(x, n, s.width), gate.weight, up.weight, activation,
                          View(gated, n, s.ffn), View(raised, n, s.ffn), to);
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
          << i << ": " << got[i] << " instead of " << want[i];
    }
  }
};

TEST_P(GatedFfnTest, HasTheBitsOfItsOperatorsForEveryFormat) {
  for (const DType dtype : MatrixTypes()) {
    for (const int n : {1, 33, 70}) Check({dtype, dtype, dtype, 256, 512}, n, Activation::kSilu);
  }
}

// Widths of several passes, rows by the hundred, outputs that fill no block, other activations.
TEST_P(GatedFfnTest, HasTheBitsOfItsOperatorsForEveryShape) {
  Check({DType::kQ4_0, DType::kQ4_0, DType::kQ8_0, 1280, 1312}, 49, Activation::kGeluTanh);
  Check({DType::kF16, DType::kF16, DType::kF16, 64, 544}, 530, Activation::kSilu);
  Check({DType::kBF16, DType::kBF16, DType::kBF16, 96, 80}, 40, Activation::kSilu);
  Check({DType::kQ4_0, DType::kQ8_0, DType::kQ4_0, 64, 64}, 40, Activation::kSilu);
  Check({DType::kQ4_0, DType::kQ4_0, DType::kF32, 64, 64}, 40, Activation::kGeluTanh);
  Check({DType::kBF16, DType::kBF16, DType::kW8A8, 64, 64}, 40, Activation::kSilu);
}

TEST_P(GatedFfnTest, HasTheBitsOfItsOperatorsWhereTheyAreUniform) {
  for (const int n : {1, 5, 40}) {
    Check({DType::kQ4_0, DType::kQ4_0, DType::kQ4_0, 256, 512}, n, Activation::kSilu, true);
  }
}

TEST_P(GatedFfnTest, RefusesWhatDoesNotFit) {
  Random random(52);
  ThreadTeam team(1);
  const auto backend = MustCreate(GetParam(), &team);
  const Packed gate(*backend, DType::kQ4_0, 64, 32, random);
  const Packed narrow(*backend, DType::kQ4_0, 32, 32, random);
  const Packed down(*backend, DType::kQ4_0, 32, 64, random);
  std::vector<float> x(40 * 32), out(x.size(), kUntouched), gated(40 * 64), raised = gated;
  const MatMulTarget to = {down.weight, {}, View(out, 40, 32)};
  EXPECT_EQ(backend
                ->GatedFfn(View(x, 40, 32), gate.weight, narrow.weight, Activation::kSilu,
                           View(gated, 40, 64), View(raised, 40, 32), to)
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(out, std::vector<float>(out.size(), kUntouched));
}

INSTANTIATE_TEST_SUITE_P(Variants, GatedFfnTest, testing::ValuesIn(SupportedVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::ops
