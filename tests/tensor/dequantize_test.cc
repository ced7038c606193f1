#include "tensor/dequantize.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor/half.h"
#include "tensor/quantize.h"

namespace terrace {
namespace {

TEST(DTypeTest, NamesAndNumbersGoBothWays) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(Info(dtype).name), dtype);
    if (GgufType(dtype) >= 0) {
      EXPECT_EQ(DTypeFromGguf(static_cast<uint32_t>(GgufType(dtype))), dtype);
    }
    const bool blocks = Info(dtype).quantised && dtype != DType::kW8A8;  // whose rows share a scale
    EXPECT_EQ(blocks, SchemeOf(dtype) != nullptr) << Info(dtype).name;
  }
  EXPECT_EQ(DTypeFromGguf(4), std::nullopt);
  EXPECT_EQ(DTypeFromGguf(0xffffffffu), std::nullopt);
  EXPECT_EQ(DTypeFromName("Q9"), std::nullopt);
  EXPECT_EQ(RowBytes(DType::kQ4_K, 512), 288u);
  EXPECT_EQ(RowBytes(DType::kW8A8, 512), 516u);
}

TEST(HalfTest, EveryHalfSurvivesARoundTrip) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = HalfToFloat(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(f))));
    } else {
      ASSERT_EQ(FloatToHalf(f), h) << f;
    }
  }
}

TEST(HalfTest, NarrowingRoundsToTheNearestEven) {
  Random random(7);
  for (int i = 0; i < 200000; ++i) {
    const uint16_t h = static_cast<uint16_t>(random.Below(0x7bff));  // h + 1 is finite too
    const float a = HalfToFloat(h);
    const float b = HalfToFloat(static_cast<uint16_t>(h + 1));
    const float middle = a + (b - a) * 0.5f;  // exact: 12 significant bits
    ASSERT_EQ(FloatToHalf(middle), (h & 1) ? h + 1 : h);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 1e9f)), h + 1);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, -1e9f)), h);
  }
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToBf16(1.00390625f), 0x3f80);  // half way, to even
  EXPECT_EQ(FloatToBf16(1.01171875f), 0x3f82);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(NAN))));
}

TEST(HalfTest, EightBitFloatsHaveTheirSpecifiedLandmarks) {
  EXPECT_EQ(F8E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(F8E4M3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(F8E4M3ToFloat(0x88), -0x1p-6f);
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0xff)));
  EXPECT_EQ(F8E5M2ToFloat(0x7b), 57344.0f);
  EXPECT_EQ(F8E5M2ToFloat(0x01), 0x1p-16f);
  EXPECT_TRUE(std::isinf(F8E5M2ToFloat(0xfc)));
}

// data/dequantize.bin holds random blocks of each format with the values that the reference Python
// implementation of the GGUF project gives: per format u32 type, elements, bytes, then both arrays.
TEST(DequantizeTest, MatchesTheReferenceOnRandomBlocksOfEveryFormat) {
  std::ifstream file(TERRACE_SOURCE_DIR "/tests/tensor/data/dequantize.bin", std::ios::binary);
  std::vector<char> all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  size_t at = 0;
  int formats = 0;
  while (at < all.size()) {
    uint32_t head[3];
    std::memcpy(head, all.data() + at, sizeof(head));
    at += sizeof(head);
    const DType dtype = DTypeFromGguf(head[0]).value();
    SCOPED_TRACE(Info(dtype).name);
    ASSERT_EQ(RowBytes(dtype, head[1]), head[2]);
    std::vector<float> got(head[1]);
    DequantizeRow(dtype, reinterpret_cast<const std::byte*>(all.data() + at), got);
    at += head[2];
    std::vector<float> want(head[1]);
    std::memcpy(want.data(), all.data() + at, want.size() * sizeof(float));
    at += want.size() * sizeof(float);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
    ++formats;
  }
  EXPECT_EQ(formats, 16);
}

struct QuantiserCase {
  DType dtype;
  float step;  // largest allowed error, in units of the group's amplitude
};

class QuantizeTest : public testing::TestWithParam<QuantiserCase> {};

// A uniform code of b bits over [-a, a] errs by at most half a step, a / 2^b (or a / (2^b - 1) with
// a bias). Two more sources are allowed for: a clipped end of the range (another step) and the
// six-bit sub-scales of the K formats (1/63 of the amplitude).
TEST_P(QuantizeTest, RoundTripErrorIsBoundedByTheStep) {
  const auto [dtype, step] = GetParam();
  constexpr uint64_t kSeed = 11;
  Random random(kSeed);
  std::vector<float> x(1024);
  for (float& v : x) v = random.Signed();
  std::vector<std::byte> bytes(RowBytes(dtype, x.size()));
  ASSERT_TRUE(QuantizeRow(dtype, x, bytes).ok());
  std::vector<float> y(x.size());
  DequantizeRow(dtype, bytes.data(), y);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], step) << i << " seed " << kSeed;
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeTest,
                         testing::Values(QuantiserCase{DType::kF32, 0},
                                         QuantiserCase{DType::kF16, 0x1p-12f},
                                         QuantiserCase{DType::kBF16, 0x1p-9f},
                                         QuantiserCase{DType::kQ4_0, 2.01f / 16},
                                         QuantiserCase{DType::kQ4_1, 1.01f / 15},
                                         QuantiserCase{DType::kQ5_0, 2.01f / 32},
                                         QuantiserCase{DType::kQ5_1, 1.01f / 31},
                                         QuantiserCase{DType::kQ8_0, 0.51f / 127},
                                         QuantiserCase{DType::kQ4_K, 1.0f / 15 + 2.0f / 63},
                                         QuantiserCase{DType::kQ5_K, 1.0f / 31 + 2.0f / 63},
                                         QuantiserCase{DType::kQ6_K, 2.0f / 64 + 1.0f / 127}),
                         [](const auto& info) { return std::string(Info(info.param.dtype).name); });

TEST(QuantizeTest, RefusesWhatDoesNotFit) {
  std::vector<float> x(33);
  std::vector<std::byte> bytes(64);
  EXPECT_EQ(QuantizeRow(DType::kQ4_0, x, bytes).code(), absl::StatusCode::kInvalidArgument);
  x.resize(256);
  EXPECT_EQ(QuantizeRow(DType::kQ4_0, x, bytes).code(), absl::StatusCode::kInvalidArgument);
  bytes.resize(1024);
  EXPECT_EQ(QuantizeRow(DType::kIQ3_S, x, bytes).code(), absl::StatusCode::kUnimplemented);
}

TEST(QuantizeTest, ZerosStayZeros) {
  const std::vector<float> x(256, 0.0f);
  std::vector<std::byte> bytes(2048);
  std::vector<float> y(256);
  for (DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                      DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    ASSERT_TRUE(QuantizeRow(dtype, x, bytes).ok());
    DequantizeRow(dtype, bytes.data(), y);
    EXPECT_THAT(y, testing::Each(0.0f)) << Info(dtype).name;
  }
}

}  // namespace
}  // namespace terrace
