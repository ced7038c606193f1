#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"

namespace terrace {
namespace {

TEST(Units, SizesAreParsedWithBinaryAndDecimalUnits) {
  EXPECT_EQ(*ParseBytes("0"), 0u);
  EXPECT_EQ(*ParseBytes("512"), 512u);
  EXPECT_EQ(*ParseBytes("1 KB"), 1000u);
  EXPECT_EQ(*ParseBytes("1K"), kKiB);
  EXPECT_EQ(*ParseBytes(" 512mib "), 512 * kMiB);
  EXPECT_EQ(*ParseBytes("6GiB"), 6 * kGiB);
  EXPECT_EQ(*ParseBytes("1.5GiB"), kGiB + kGiB / 2);
  EXPECT_EQ(*ParseBytes("2T"), 2 * kTiB);
}

TEST(Units, WhatIsNotASizeIsRefusedWithTheText) {
  for (const char* text : {"", "GiB", "-1", "nan", "inf", "1 XB", "1GiBs", "1e30",
                           "9223372036854775808", "8388608TiB", "--1", "1,5GiB"}) {
    auto bytes = ParseBytes(text);
    ASSERT_FALSE(bytes.ok()) << text << " gave " << *bytes;
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(Message(bytes.status()).find(text), std::string_view::npos) << text;
  }
}

TEST(Units, BytesArePrintedInTheLargestUnitThatFits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(kKiB), "1.0 KiB");
  EXPECT_EQ(FormatBytes(kGiB + kGiB / 2), "1.5 GiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

TEST(Units, AlignUpAndCeilDivRoundUp) {
  EXPECT_EQ(AlignUp(0, 4096), 0u);
  EXPECT_EQ(AlignUp(1, 4096), 4096u);
  EXPECT_EQ(AlignUp(4096, 4096), 4096u);
  EXPECT_EQ(CeilDiv(7, 3), 3u);
  EXPECT_EQ(CeilDiv(6, 3), 2u);
}

TEST(Hash, IsXxh3AndDependsOnEveryByteAndTheSeed) {
  // XXH3_64bits("") as its specification gives it.
  EXPECT_EQ(Hash64(""), 0x2d06800538d394c2ull);
  std::string data(1000, 'a');
  uint64_t before = Hash64(data);
  for (size_t i : {size_t{0}, size_t{499}, size_t{999}}) {
    std::string other = data;
    other[i] = 'b';
    EXPECT_NE(Hash64(other), before) << i;
  }
  EXPECT_NE(Hash64(data, 1), before);
  EXPECT_EQ(Hash64(data.data(), data.size()), before);
}

TEST(Random, IsSplitMix64) {
  // The first outputs for seed 1234567 of the reference implementation.
  Random random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317ull);
  EXPECT_EQ(random.Next(), 3203168211198807973ull);
}

TEST(Random, StaysInItsRangesAndCoversThem) {
  Random random(7);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    uint64_t value = random.Below(5);
    ASSERT_LT(value, 5u);
    seen.insert(value);
    double uniform = random.Uniform();
    ASSERT_GE(uniform, 0);
    ASSERT_LT(uniform, 1);
    float sign = random.Signed();
    ASSERT_GE(sign, -1);
    ASSERT_LE(sign, 1);
  }
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(random.Below(1), 0u);
}

TEST(Random, UniformHasTheRightMean) {
  Random random(42);
  constexpr int kDraws = 100000;
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) sum += random.Uniform();
  // Six standard deviations of the mean of kDraws uniform numbers.
  EXPECT_NEAR(sum / kDraws, 0.5, 6 * std::sqrt(1.0 / 12 / kDraws));
}

TEST(Clock, ManualClockMovesOnlyWhenTold) {
  ManualClock clock(5);
  EXPECT_EQ(clock.NowUs(), 5);
  clock.AdvanceUs(10);
  EXPECT_EQ(clock.NowUs(), 15);
  EXPECT_EQ(clock.WallUs(), 15);
}

TEST(Clock, RealClockIsMonotonicAndItsWallTimeIsPlausible) {
  RealClock clock;
  int64_t before = clock.NowUs();
  for (int i = 0; i < 1000; ++i) {
    int64_t now = clock.NowUs();
    ASSERT_GE(now, before);
    before = now;
  }
  EXPECT_GT(clock.WallUs(), int64_t{1704067200} * 1000000);  // 2024-01-01
}

TEST(Status, ContextIsAddedOnceAndKeepsCodeAndPayload) {
  absl::Status status = absl::NotFoundError("no tensor x");
  status.SetPayload("terrace/at", absl::Cord("12"));
  absl::Status with = WithContext(status, "loading model m");
  EXPECT_EQ(with.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(with), "loading model m: no tensor x");
  EXPECT_EQ(with.GetPayload("terrace/at"), absl::Cord("12"));
  EXPECT_TRUE(WithContext(absl::OkStatus(), "anything").ok());
}

TEST(Status, ErrnoIsMappedToACanonicalCode) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EEXIST, "x").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ErrnoStatus(EACCES, "x").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "x").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EINVAL, "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrnoStatus(EIO, "x").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrnoStatus(ECONNRESET, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Message(ErrnoStatus(ENOSPC, "writing f")).starts_with("writing f: "));
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(int half, Half(value));
  ASSIGN_OR_RETURN(half, Half(half));
  RETURN_IF_ERROR(absl::OkStatus());
  return half;
}

TEST(Status, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Message(Quarter(6).status()), "odd");
}

TEST(Text, StripSpaceLowerAndSplit) {
  EXPECT_EQ(StripSpace(" \t\r\n a b \v\f"), "a b");
  EXPECT_EQ(StripSpace(" \n"), "");
  EXPECT_EQ(ToLower("GiB-\xC3\x84"), "gib-\xC3\x84");
  EXPECT_EQ(Split("a,,b,", ','), (std::vector<std::string_view>{"a", "", "b", ""}));
  EXPECT_EQ(Split("", ','), (std::vector<std::string_view>{""}));
}

TEST(Text, Utf8IsJudgedAsUnicodeDefinesIt) {
  for (const char* good : {"", "a", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\xAF", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xE2\x82"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << bad;
  }
  EXPECT_TRUE(IsValidUtf8(std::string_view("a\0b", 3)));
}

TEST(Text, EachMaximalIllFormedPartBecomesOneReplacement) {
  // The example of the Unicode standard, table 3-8.
  EXPECT_EQ(ToValidUtf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ToValidUtf8("a\xE2\x82"), "a\uFFFD");
  EXPECT_EQ(ToValidUtf8("\xF0\x9F\x98\x80 ok"), "\xF0\x9F\x98\x80 ok");
}

TEST(Text, RepairedTextIsAlwaysValidAndValidTextIsUnchanged) {
  constexpr uint64_t kSeed = 99;
  Random random(kSeed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint64_t i = random.Below(12); i > 0; --i) text += static_cast<char>(random.Next());
    std::string repaired = ToValidUtf8(text);
    ASSERT_TRUE(IsValidUtf8(repaired)) << "seed " << kSeed << " round " << round;
    ASSERT_EQ(repaired == text, IsValidUtf8(text)) << "seed " << kSeed << " round " << round;
  }
}

TEST(Text, NearestNameSuggestsOnlyWhatIsNear) {
  std::vector<std::string> names = {"device_budget", "host_budget", "prefetch_window"};
  EXPECT_EQ(NearestName("device_buget", names), "device_budget");
  EXPECT_EQ(NearestName("hostbudget", names), "host_budget");
  EXPECT_EQ(NearestName("zzz", names), "");
  EXPECT_EQ(NearestName("", names), "");
}

}  // namespace
}  // namespace terrace
