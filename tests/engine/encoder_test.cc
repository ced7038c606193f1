// Texts' vectors from an encoder, against the reference library's states of every token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/vendor_rig.h"

namespace terrace::engine {
namespace {

using testing::HasSubstr;

class EncoderTest : public testing::Test {
 protected:
  void SetUp() override {
    source_ = std::string(TERRACE_TEST_DATA) + "/checkpoints/bert";
    tokens_ = boost::json::value_to<std::vector<int32_t>>(
        boost::json::parse(ReadFile(source_ + "/tokens.json")).at("tokens"));
    const std::string raw = ReadFile(source_ + "/logits.f32");
    states_.resize(raw.size() / sizeof(float));
    std::memcpy(states_.data(), raw.data(), raw.size());
    width_ = states_.size() / tokens_.size();
  }

  // The mean of the first `count` tokens' states, of length 1.
  std::vector<double> Expected(size_t count) const {
    std::vector<double> vector(width_);
    for (size_t t = 0; t < count; ++t) {
      for (size_t i = 0; i < width_; ++i) vector[i] += states_[t * width_ + i];
    }
    double squares = 0;
    for (double x : vector) squares += x * x;
    for (double& x : vector) x /= std::sqrt(squares);
    return vector;
  }

  // Entries of a vector of length 1 may be off by `u` relative to states of unit RMS, for each of
  // two layers' five operators.
  void Check(const std::string& folder, size_t count) {
    std::vector<std::string> variants = {"ref"};
    for (const ops::CpuVariant& variant : ops::CpuVariants()) {
      if (variant.supported) variants.emplace_back(variant.name);
    }
    if (HaveOpenCl()) variants.emplace_back("opencl");
    variants.insert(variants.end(), {"ascend", "cambricon"});
    for (const std::string& variant : variants) {
      ThreadTeam team(2);
      const std::unique_ptr<Rig> made = MakeRig(variant, 64 * kMiB, &team);
      Rig& rig = *made;
      auto model = rig.Open(folder, "m");
      ASSERT_NE(model, nullptr);
      auto vector = rig.engine().Embed(*model, tokens_);
      ASSERT_TRUE(vector.ok()) << vector.status();
      const std::vector<double> want = Expected(count);
      ASSERT_EQ(vector->size(), want.size());
      double worst = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::abs((*vector)[i] - want[i]));
      }
      const bool floats = variant == "ref" || variant == "opencl" || variant == "cambricon";
      const double u = floats ? 128 * 0x1p-24 : 0x1p-9;
      EXPECT_LE(worst, u * std::sqrt(10.0)) << variant;
    }
  }

  void EmbedTogether(const std::string& variant);

  std::string source_;
  std::vector<int32_t> tokens_;
  std::vector<float> states_;
  size_t width_ = 0;
};

TEST_F(EncoderTest, PoolsTheMeanOfAllTokens) { Check(source_, tokens_.size()); }

TEST_F(EncoderTest, PoolsTheFirstTokenWhereTheFolderSaysSo) {
  TempFolder folder;
  std::filesystem::copy(
      source_, folder.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  std::filesystem::create_directory(folder.path() + "/1_Pooling");
  std::ofstream(folder.path() + "/1_Pooling/config.json") << R"({"pooling_mode_cls_token":true})";
  Check(folder.path(), 1);
}

TEST_F(EncoderTest, DoesNotGenerateAndRefusesWhatItCannotTake) {
  Rig rig("ref", 64 * kMiB);
  auto model = rig.Open(source_, "m");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(rig.engine().AllLogits(*model, tokens_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(rig.engine().AllLogits(*model, tokens_).status().message()),
              HasSubstr("is an encoder"));
  EXPECT_EQ(rig.engine().Embed(*model, {}).status().code(), absl::StatusCode::kInvalidArgument);
  const int32_t beyond[] = {96};
  EXPECT_EQ(rig.engine().Embed(*model, beyond).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(model->max_context(), 64);
  const std::vector<int32_t> long_text(65, 5);
  EXPECT_EQ(rig.engine().Embed(*model, long_text).status().code(),
            absl::StatusCode::kInvalidArgument);
  auto decoder = rig.Open(std::string(TERRACE_TEST_DATA) + "/checkpoints/granite", "d");
  ASSERT_NE(decoder, nullptr);
  EXPECT_EQ(rig.engine().Embed(*decoder, tokens_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Texts of one step do not see each other, nor change how the others round.
TEST_F(EncoderTest, EmbedsSeveralTextsInOneStep) {
  std::vector<std::string> variants = {"ref"};
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) variants.emplace_back(variant.name);
  }
  if (HaveOpenCl()) variants.emplace_back("opencl");
  for (const std::string& variant : variants) EmbedTogether(variant);
}

void EncoderTest::EmbedTogether(const std::string& variant) {
  SCOPED_TRACE(variant);
  Rig rig(variant, 64 * kMiB);
  auto model = rig.Open(source_, "m");
  ASSERT_NE(model, nullptr);
  const std::span<const int32_t> all(tokens_);
  const StepEntry entries[] = {{.tokens = all.first(7), .want_logits = true},
                               {.tokens = all, .want_logits = true},
                               {.tokens = all.first(40), .want_logits = true},
                               {.tokens = all.subspan(9, 1), .want_logits = true}};
  auto step = rig.engine().Step(*model, entries, nullptr);
  ASSERT_TRUE(step.ok()) << step.status();
  ASSERT_EQ(step->entries.size(), std::size(entries));
  std::vector<std::vector<float>> together;
  for (const EntryResult& entry : step->entries) {
    together.emplace_back(entry.state.begin(), entry.state.end());
  }
  for (size_t i = 0; i < std::size(entries); ++i) {
    auto alone = rig.engine().Embed(*model, entries[i].tokens);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(together[i], *alone) << i;
  }
}

}  // namespace
}  // namespace terrace::engine
