// Matrix multiplication, packing and row gather of every variant against the reference.
#include <algorithm>

#include "gmock/gmock.h"
#include "ops/cpu/packing.h"
#include "ops/tolerance.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

struct Case {
  DType dtype;
  std::string variant;
};

class MatMulTest : public testing::TestWithParam<Case> {
 protected:
  void Check(int rows, int cols, int n, bool bias, Layout layout, uint64_t seed) {
    const auto [dtype, variant] = GetParam();
    SCOPED_TRACE(testing::Message() << rows << "x" << cols << " n " << n << " "
                                    << LayoutName(layout) << " seed " << seed);
    Random random(seed);
    const std::vector<std::byte> plain = RandomWeight(dtype, rows, cols, random);
    const int64_t stride = cols + 3;
    std::vector<float> x = RandomFloats(static_cast<size_t>(n * stride), random);
    std::vector<float> b = RandomFloats(static_cast<size_t>(rows), random);
    ThreadTeam team(2);
    const auto backend = MustCreate(variant, &team);
    ASSERT_NE(backend, nullptr);
    std::vector<std::byte> weight(backend->PackedBytes(layout, dtype, rows, cols));
    ASSERT_TRUE(backend->Pack(layout, dtype, rows, cols, plain, weight).ok());

    const int64_t out_stride = rows + 5;
    std::vector<float> out(static_cast<size_t>(n * out_stride), kUntouched);
    MatMulTarget target;
    target.weight = {dtype, layout, rows, cols, weight.data()};
    if (bias) target.bias = {b.data(), rows};
    target.out = View(out, n, rows, out_stride);
    ASSERT_TRUE(backend->MatMul(View(x, n, cols, stride), {&target, 1}).ok());

    const Factors factors = CpuFactors(variant, dtype, n, cols);
    std::vector<float> w(static_cast<size_t>(cols));
    for (int r = 0; r < rows; ++r) {
      DequantizeRow(
          dtype,
          plain.data() + RowBytes(dtype, static_cast<uint64_t>(cols)) * static_cast<uint64_t>(r),
          w);
      for (int i = 0; i < n; ++i) {
        const float* row = x.data() + i * stride;
        double want = bias ? b[static_cast<size_t>(r)] : 0.0;
        for (int c = 0; c < cols; ++c) want += double{w[static_cast<size_t>(c)]} * row[c];
        const float tolerance = MatMulTolerance(dtype, w.data(), row, cols, factors) +
                                (bias ? kEps * std::fabs(static_cast<float>(want)) * 2 : 0.0f);
        ASSERT_NEAR(out[static_cast<size_t>(i * out_stride + r)], want, tolerance)
            << "feature " << r << " row " << i;
      }
    }
    EXPECT_TRUE(NothingPastRows(out, n, rows, out_stride));
  }

  int Columns(int multiple) const {
    return multiple *
           static_cast<int>(std::max<uint32_t>(32, Info(GetParam().dtype).block_elements));
  }
};

TEST_P(MatMulTest, IsWithinTheDerivedToleranceForEveryBatch) {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 43, 64}) {
    Check(48, Columns(2), n, false, Layout::kRows16, 100 + static_cast<uint64_t>(n));
  }
}

TEST_P(MatMulTest, TakesRowsThatDoNotFillAGroupAndBiases) {
  for (const int rows : {1, 15, 17, 40}) {
    for (const int n : {1, 5}) Check(rows, Columns(1), n, true, Layout::kRows16, 7);
  }
}

TEST_P(MatMulTest, TakesPlainRows) {
  for (const int n : {1, 3, 17}) Check(35, Columns(3), n, true, Layout::kPlain, 8);
}

TEST_P(MatMulTest, TakesLongRows) { Check(32, Columns(12), 2, false, Layout::kRows16, 9); }

// Rows by the hundred, past what a kernel holds at once in each direction.
TEST_P(MatMulTest, TakesManyRowsAndLongOnes) {
  Check(17, 2304, 70, true, Layout::kRows16, 15);
  Check(40, 256, 530, true, Layout::kRows16, 16);
  Check(20, 512, 33, true, Layout::kPlain, 17);
  Check(530, 1280, 33, false, Layout::kRows16, 19);
}

TEST_P(MatMulTest, FloatFormatsTakeAnyWidth) {
  if (Info(GetParam().dtype).quantised) GTEST_SKIP() << "blocks fix the width";
  for (const int cols : {1, 2, 3, 5, 33, 63}) {
    Check(17, cols, 3, true, Layout::kRows16, 10);
    Check(17, cols, 1, true, Layout::kPlain, 11);
  }
}

TEST_P(MatMulTest, DoesNotDependOnThreadsNorOnBatchNeighbours) {
  const auto [dtype, variant] = GetParam();
  constexpr int kRows = 80;
  constexpr int kMost = 29;
  const int cols = Columns(2);
  Random random(12);
  const std::vector<std::byte> plain = RandomWeight(dtype, kRows, cols, random);
  std::vector<float> x = RandomFloats(static_cast<size_t>(kMost * cols), random);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    ThreadTeam team(threads);
    const auto backend = MustCreate(variant, &team);
    std::vector<std::byte> weight(backend->PackedBytes(Layout::kRows16, dtype, kRows, cols));
    ASSERT_TRUE(backend->Pack(Layout::kRows16, dtype, kRows, cols, plain, weight).ok());
    for (const int n : {1, 2, 3, 5, 8, 12, 13, kMost}) {
      std::vector<float> out(static_cast<size_t>(n * kRows));
      MatMulTarget target;
      target.weight = {dtype, Layout::kRows16, kRows, cols, weight.data()};
      target.out = View(out, n, kRows);
      ASSERT_TRUE(backend->MatMul(View(x, n, cols), {&target, 1}).ok());
      out.resize(kRows);
      if (first.empty()) first = out;
      ASSERT_EQ(first, out) << "row 0 of " << n << " with " << threads << " threads";
    }
  }
}

// Kernels for many rows, where there are some: the same among themselves.
TEST_P(MatMulTest, ManyRowsDoNotDependOnThreadsNorOnEachOther) {
  const auto [dtype, variant] = GetParam();
  constexpr int kRows = 80;
  constexpr int kMost = 530;
  constexpr int kCols = 768;
  Random random(18);
  const std::vector<std::byte> plain = RandomWeight(dtype, kRows, kCols, random);
  std::vector<float> x = RandomFloats(size_t{kMost} * kCols, random);
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    ThreadTeam team(threads);
    const auto backend = MustCreate(variant, &team);
    std::vector<std::byte> weight(backend->PackedBytes(Layout::kRows16, dtype, kRows, kCols));
    ASSERT_TRUE(backend->Pack(Layout::kRows16, dtype, kRows, kCols, plain, weight).ok());
    for (const int n : {40, 41, 57, 64, kMost}) {
      std::vector<float> out(static_cast<size_t>(n * kRows));
      MatMulTarget target;
      target.weight = {dtype, Layout::kRows16, kRows, kCols, weight.data()};
      target.out = View(out, n, kRows);
      ASSERT_TRUE(backend->MatMul(View(x, n, kCols), {&target, 1}).ok());
      out.resize(kRows);
      if (first.empty()) first = out;
      ASSERT_EQ(first, out) << "row 0 of " << n << " with " << threads << " threads";
    }
  }
}

TEST_P(MatMulTest, PackingIsLosslessAndRowsCanBeGathered) {
  const auto [dtype, variant] = GetParam();
  constexpr int kRows = 37;
  const int cols = Columns(2);
  Random random(13);
  const std::vector<std::byte> plain = RandomWeight(dtype, kRows, cols, random);
  ThreadTeam team(2);
  const auto backend = MustCreate(variant, &team);
  // Importers pack by runs of whole groups, into memory that has been used before.
  std::vector<std::byte> packed(backend->PackedBytes(Layout::kRows16, dtype, kRows, cols),
                                std::byte{0xa5});
  const uint64_t first = backend->PackedBytes(Layout::kRows16, dtype, 16, cols);
  const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
  const std::span<const std::byte> source(plain);
  const std::span<std::byte> target(packed);
  ASSERT_TRUE(backend
                  ->Pack(Layout::kRows16, dtype, 16, cols, source.first(16 * row_bytes),
                         target.first(first))
                  .ok());
  ASSERT_TRUE(backend
                  ->Pack(Layout::kRows16, dtype, kRows - 16, cols, source.subspan(16 * row_bytes),
                         target.subspan(first))
                  .ok());
  std::vector<std::byte> whole(packed.size());
  ASSERT_TRUE(backend->Pack(Layout::kRows16, dtype, kRows, cols, plain, whole).ok());
  ASSERT_EQ(packed, whole);
  const std::vector<int32_t> ids = {0, 36, 16, 15, 7, 7};
  for (const Layout layout : {Layout::kRows16, Layout::kPlain}) {
    std::vector<float> out(ids.size() * static_cast<size_t>(cols));
    const Weight table = {dtype, layout, kRows, cols,
                          layout == Layout::kPlain ? plain.data() : packed.data()};
    ASSERT_TRUE(
        backend->EmbedRows(table, ids, 2.0f, View(out, static_cast<int>(ids.size()), cols)).ok());
    std::vector<float> row(static_cast<size_t>(cols));
    for (size_t i = 0; i < ids.size(); ++i) {
      DequantizeRow(dtype,
                    plain.data() + RowBytes(dtype, static_cast<uint64_t>(cols)) *
                                       static_cast<uint64_t>(ids[i]),
                    row);
      for (int c = 0; c < cols; ++c) {
        const float got = out[i * static_cast<size_t>(cols) + static_cast<size_t>(c)];
        ASSERT_EQ(got, 2.0f * row[static_cast<size_t>(c)]) << LayoutName(layout) << i << "," << c;
      }
    }
  }
}

TEST_P(MatMulTest, DeterministicMeansBitEqualForManyRowsToo) {
  const auto [dtype, variant] = GetParam();
  const bool cpu = variant != "kernels" && variant != "scalar" && variant != "subgroups";
  constexpr int kRows = 40;
  constexpr int kMost = 50;
  const int cols = Columns(cpu ? 7 : 1);  // no whole number of what a kernel takes at once
  Random random(14);
  const std::vector<std::byte> plain = RandomWeight(dtype, kRows, cols, random);
  std::vector<float> x = RandomFloats(static_cast<size_t>(kMost * cols), random);
  ThreadTeam team(2);
  CpuOptions options;
  options.deterministic = true;
  const auto backend = cpu ? std::move(CreateCpuBackend(variant, &team, options)).value()
                           : MustCreate(variant, &team);
  std::vector<float> one(kRows), many(kMost * kRows);
  MatMulTarget target;
  target.weight = {dtype, Layout::kPlain, kRows, cols, plain.data()};
  for (const int n : {16, 17, kMost}) {
    target.out = View(many, n, kRows);
    ASSERT_TRUE(backend->MatMul(View(x, n, cols), {&target, 1}).ok());
    for (const int row : {0, 7, 15, n - 1}) {
      Matrix single = View(x, 1, cols);
      single.data += row * cols;
      target.out = View(one, 1, kRows);
      ASSERT_TRUE(backend->MatMul(single, {&target, 1}).ok());
      EXPECT_TRUE(std::equal(one.begin(), one.end(), many.begin() + row * kRows))
          << "row " << row << " of " << n;
    }
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const std::string& variant : SupportedVariants()) {
    for (const DType dtype : MatrixTypes()) cases.push_back({dtype, variant});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Formats, MatMulTest, testing::ValuesIn(AllCases()), [](const auto& info) {
  return info.param.variant + "_" + std::string(Info(info.param.dtype).name);
});

class MatMulVariantTest : public testing::TestWithParam<std::string> {};

TEST_P(MatMulVariantTest, SharesOneInputAmongTargetsOfDifferentFormats) {
  Random random(20);
  constexpr int kCols = 256;
  constexpr int kN = 5;
  const std::vector<DType> types = {DType::kQ4_K, DType::kF32, DType::kQ6_K};
  const std::vector<int> rows = {64, 19, 33};
  ThreadTeam team(2);
  const auto backend = MustCreate(GetParam(), &team);
  std::vector<float> x = RandomFloats(kN * kCols, random);
  std::vector<std::vector<std::byte>> weights;
  std::vector<std::vector<float>> together, apart;
  std::vector<MatMulTarget> targets;
  for (size_t i = 0; i < types.size(); ++i) {
    const auto plain = RandomWeight(types[i], rows[i], kCols, random);
    weights.emplace_back(backend->PackedBytes(Layout::kRows16, types[i], rows[i], kCols));
    ASSERT_TRUE(
        backend->Pack(Layout::kRows16, types[i], rows[i], kCols, plain, weights.back()).ok());
    together.emplace_back(static_cast<size_t>(kN * rows[i]));
    apart.emplace_back(static_cast<size_t>(kN * rows[i]));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    MatMulTarget target;
    target.weight = {types[i], Layout::kRows16, rows[i], kCols, weights[i].data()};
    target.out = View(apart[i], kN, rows[i]);
    ASSERT_TRUE(backend->MatMul(View(x, kN, kCols), {&target, 1}).ok());
    target.out = View(together[i], kN, rows[i]);
    targets.push_back(target);
  }
  ASSERT_TRUE(backend->MatMul(View(x, kN, kCols), targets).ok());
  for (size_t i = 0; i < types.size(); ++i) EXPECT_EQ(together[i], apart[i]);
}

TEST_P(MatMulVariantTest, LetsNanAndInfinityThrough) {
  ThreadTeam team(1);
  const auto backend = MustCreate(GetParam(), &team);
  Random random(21);
  for (const DType dtype : MatrixTypes()) {
    const auto plain = RandomWeight(dtype, 16, 256, random);
    std::vector<std::byte> packed(backend->PackedBytes(Layout::kRows16, dtype, 16, 256));
    ASSERT_TRUE(backend->Pack(Layout::kRows16, dtype, 16, 256, plain, packed).ok());
    for (const auto& [bad, n] : {std::pair{NAN, 2}, {INFINITY, 2}, {NAN, 41}, {INFINITY, 41}}) {
      std::vector<float> x(static_cast<size_t>(n) * 256, 0.5f);
      x[256 + 77] = bad;
      std::vector<float> out(static_cast<size_t>(n) * 16);
      MatMulTarget target;
      target.weight = {dtype, Layout::kRows16, 16, 256, packed.data()};
      target.out = View(out, n, 16);
      ASSERT_TRUE(backend->MatMul(View(x, n, 256), {&target, 1}).ok());
      for (int i = 0; i < 16; ++i) {
        EXPECT_TRUE(std::isfinite(out[static_cast<size_t>(i)])) << Info(dtype).name;
        EXPECT_FALSE(std::isfinite(out[static_cast<size_t>(16 + i)]))
            << Info(dtype).name << " hides " << bad;
      }
    }
  }
}

TEST_P(MatMulVariantTest, RefusesShapesThatDoNotFit) {
  ThreadTeam team(1);
  const auto backend = MustCreate(GetParam(), &team);
  std::vector<float> x(2 * 64), out(2 * 16, 7.0f);
  std::vector<std::byte> bytes(1 << 16);
  MatMulTarget target;
  target.weight = {DType::kQ4_0, Layout::kPlain, 16, 32, bytes.data()};
  target.out = View(out, 2, 16);
  EXPECT_EQ(backend->MatMul(View(x, 2, 64), {&target, 1}).code(),
            absl::StatusCode::kInvalidArgument);
  target.weight.cols = 64;
  target.weight.dtype = DType::kQ4_K;  // blocks of 256
  EXPECT_EQ(backend->MatMul(View(x, 2, 64), {&target, 1}).code(),
            absl::StatusCode::kInvalidArgument);
  target.weight.dtype = DType::kI32;
  EXPECT_EQ(backend->MatMul(View(x, 2, 64), {&target, 1}).code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(out, testing::Each(7.0f));
  const std::vector<int32_t> ids = {16};
  target.weight.dtype = DType::kF32;
  EXPECT_EQ(backend->EmbedRows(target.weight, ids, 1, View(x, 1, 64)).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Variants, MatMulVariantTest, testing::ValuesIn(SupportedVariants()),
                         [](const auto& info) { return info.param; });

TEST(VariantTest, NamesAreKnownAndTheBestIsSupported) {
  ThreadTeam team(1);
  EXPECT_EQ(CpuVariants().front().name, "portable");
  EXPECT_TRUE(CpuVariants().front().supported);
  EXPECT_EQ(MustCreate("auto", &team)->name(), BestCpuVariant());
  EXPECT_EQ(CreateCpuBackend("avx1024", &team).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace::ops
