#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/random.h"

namespace terrace::engine {
namespace {

// Draws `count` tokens, each from a fresh copy of `logits`, by one sampler.
std::map<int32_t, int> Draw(const SamplingParams& params, const std::vector<float>& logits,
                            int count, uint64_t seed) {
  Sampler sampler(&params, {}, seed);
  std::map<int32_t, int> histogram;
  for (int i = 0; i < count; ++i) {
    std::vector<float> copy = logits;
    ++histogram[sampler.Sample(copy, nullptr).token];
  }
  return histogram;
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double total = 0;
  for (float logit : logits) total += std::exp(logit / temperature);
  for (float logit : logits) p.push_back(std::exp(logit / temperature) / total);
  return p;
}

TEST(Sampler, TemperatureZeroTakesTheBestAndTheFirstOfEquals) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Draw(params, {0.5f, 2.0f, 2.0f, -1.0f}, 10, 1), (std::map<int32_t, int>{{1, 10}}));
}

TEST(Sampler, FollowsTheDistribution) {
  SamplingParams params;
  params.temperature = 0.8f;
  const std::vector<float> logits = {1.0f, 0.0f, -0.5f, 2.0f, 0.3f};
  const int n = 20000;
  const uint64_t seed = 7;
  std::map<int32_t, int> histogram = Draw(params, logits, n, seed);
  std::vector<double> p = Softmax(logits, 0.8);
  double chi_square = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = n * p[i];
    const double difference = histogram[static_cast<int32_t>(i)] - expected;
    chi_square += difference * difference / expected;
  }
  // 4 degrees of freedom: above 23.5 with probability 1e-4.
  EXPECT_LT(chi_square, 23.5) << "seed " << seed;
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  SamplingParams params;
  Random random(3);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = 3 * random.Signed();
  Sampler a(&params, {}, 42), b(&params, {}, 42), c(&params, {}, 43);
  int differences = 0;
  for (int i = 0; i < 50; ++i) {
    std::vector<float> la = logits, lb = logits, lc = logits;
    const int32_t token = a.Sample(la, nullptr).token;
    EXPECT_EQ(token, b.Sample(lb, nullptr).token);
    differences += token != c.Sample(lc, nullptr).token;
  }
  EXPECT_GT(differences, 25);
}

TEST(Sampler, TopKKeepsTheBestK) {
  SamplingParams params;
  params.top_k = 2;
  std::map<int32_t, int> histogram = Draw(params, {1.0f, 0.9f, 0.8f, 0.7f}, 2000, 5);
  EXPECT_EQ(histogram.size(), 2u);
  EXPECT_GT(histogram[0], 0);
  EXPECT_GT(histogram[1], 0);
}

TEST(Sampler, TopPKeepsTheFewestTokensThatReachIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0.0f, 0.0f};
  SamplingParams params;
  params.top_p = 0.7f;
  EXPECT_EQ(Draw(params, logits, 2000, 5).size(), 2u);
  params.top_p = 0.45f;
  EXPECT_EQ(Draw(params, logits, 2000, 5).size(), 1u);
  params.top_p = 0.99f;
  EXPECT_EQ(Draw(params, logits, 2000, 5).size(), 4u);
  // A tiny value still leaves the best token.
  params.top_p = 1e-6f;
  EXPECT_EQ(Draw(params, logits, 100, 5), (std::map<int32_t, int>{{0, 100}}));
}

// The shortcut for large vocabularies must choose the same nucleus as a full sort.
TEST(Sampler, TopPOfALargeVocabularyIsTheTrueNucleus) {
  Random random(11);
  std::vector<float> logits(50000);
  for (float& logit : logits) logit = 8 * random.Signed();
  SamplingParams params;
  params.top_p = 0.3f;
  std::vector<double> p = Softmax(logits, 1.0);
  std::vector<size_t> order(p.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  double mass = 0;
  size_t nucleus = 0;
  while (mass < 0.3) mass += p[order[nucleus++]];
  const double smallest = p[order[nucleus - 1]];
  std::map<int32_t, int> histogram = Draw(params, logits, 500, 12);
  for (const auto& [token, count] : histogram) {
    EXPECT_GE(p[static_cast<size_t>(token)], smallest * (1 - 1e-9));
  }
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  SamplingParams params;
  params.min_p = 0.3f;
  // Ratios to the best: 1, 0.5, 0.25.
  EXPECT_EQ(Draw(params, {std::log(4.0f), std::log(2.0f), 0.0f}, 2000, 5).size(), 2u);
}

TEST(Sampler, TypicalKeepsWhatIsNearTheEntropy) {
  SamplingParams params;
  params.typical_p = 0.2f;
  // One dominant token: its surprise is nearest to the low entropy.
  EXPECT_EQ(Draw(params, {5.0f, 0.0f, 0.0f, 0.0f}, 200, 5), (std::map<int32_t, int>{{0, 200}}));
}

TEST(Sampler, BiasForcesAndForbids) {
  SamplingParams params;
  params.logit_bias = {{2, 100.0f}, {99, 5.0f}};
  EXPECT_EQ(Draw(params, {1.0f, 0.9f, -3.0f}, 100, 5), (std::map<int32_t, int>{{2, 100}}));
  params.logit_bias = {{0, -100.0f}};
  EXPECT_EQ(Draw(params, {5.0f, 1.0f, 1.0f}, 500, 5).count(0), 0u);
}

TEST(Sampler, PenaltiesCountTheOutput) {
  SamplingParams params;
  params.temperature = 0;
  params.frequency_penalty = 0.6f;
  Sampler sampler(&params, {}, 1);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 4; ++i) {
    std::vector<float> logits = {1.0f, 0.5f};
    tokens.push_back(sampler.Sample(logits, nullptr).token);
  }
  // 1.0 falls to 0.4 after one use, 0.5 to -0.1 after one, 0.4 to -0.2 after two.
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 1, 0, 1}));
}

TEST(Sampler, RepetitionPenaltyCountsThePromptToo) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 3.0f;
  const std::vector<int32_t> prompt = {0};
  Sampler sampler(&params, prompt, 1);
  std::vector<float> logits = {1.0f, 0.5f};
  EXPECT_EQ(sampler.Sample(logits, nullptr).token, 1);
}

TEST(Sampler, LogprobsAreOfTheWholeDistribution) {
  SamplingParams params;
  params.temperature = 0;
  params.top_logprobs = 2;
  Sampler sampler(&params, {}, 1);
  std::vector<float> logits = {0.0f, std::log(2.0f), 0.0f};
  TokenEvent event = sampler.Sample(logits, nullptr);
  EXPECT_EQ(event.token, 1);
  // Errors: a float rounding of the result, of magnitude below 2.
  EXPECT_NEAR(event.logprob, std::log(0.5), 2e-7);
  ASSERT_EQ(event.top.size(), 2u);
  EXPECT_EQ(event.top[0].token, 1);
  EXPECT_EQ(event.top[1].token, 0);
  EXPECT_NEAR(event.top[1].logprob, std::log(0.25), 3e-7);
}

class OnlyToken final : public TokenConstraint {
 public:
  explicit OnlyToken(int32_t token) : token_(token) {}
  void Mask(std::span<float> logits) override {
    for (size_t i = 0; i < logits.size(); ++i) {
      if (static_cast<int32_t>(i) != token_) logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
  void Accept(int32_t token) override { accepted.push_back(token); }
  bool Finished() const override { return false; }
  std::vector<int32_t> accepted;

 private:
  int32_t token_;
};

TEST(Sampler, AConstraintDecides) {
  SamplingParams params;
  Sampler sampler(&params, {}, 1);
  OnlyToken constraint(2);
  std::vector<float> logits = {9.0f, 9.0f, -9.0f};
  EXPECT_EQ(sampler.Sample(logits, &constraint).token, 2);
  EXPECT_EQ(constraint.accepted, std::vector<int32_t>{2});
}

TEST(Sampler, AConstraintThatLeavesNothingGivesNoToken) {
  SamplingParams params;
  params.top_logprobs = 2;
  Sampler sampler(&params, {}, 1);
  OnlyToken nothing(7);
  std::vector<float> logits = {9.0f, 9.0f, -9.0f};
  EXPECT_EQ(sampler.Sample(logits, &nothing).token, -1);
  EXPECT_TRUE(nothing.accepted.empty());
  // What is forbidden is not among the alternatives.
  OnlyToken one(2);
  logits = {9.0f, 9.0f, -9.0f};
  const TokenEvent event = sampler.Sample(logits, &one);
  EXPECT_EQ(event.token, 2);
  EXPECT_NEAR(event.logprob, 0, 1e-6);
  EXPECT_EQ(event.top.size(), 1u);
}

}  // namespace
}  // namespace terrace::engine
