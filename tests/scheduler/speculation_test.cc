// Guessing ahead changes speed, never an answer: by exact equality, and by the distribution at
// temperature 1 against the model's own probabilities.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "engine/ngram_index.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

using Kind = engine::SpeculationOptions::Kind;

TEST(NgramIndex, FindsWhatFollowedTheLongestMatchMostRecently) {
  engine::NgramIndex index;
  std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 9, 2, 3, 7, 8, 1, 2, 3, 4};
  // 1 2 3 4 stood at the start; 3 4 alone there too.
  EXPECT_EQ(index.Guess(tokens, 3), (std::vector<int32_t>{5, 6, 9}));
  tokens.insert(tokens.end(), {9, 2, 3});
  // 2 3 stood three times; the last time 4 followed, then 9.
  EXPECT_EQ(index.Guess(tokens, 2), (std::vector<int32_t>{4, 9}));
  tokens.push_back(77);
  EXPECT_TRUE(index.Guess(tokens, 4).empty());
  tokens = {5, 5, 5, 5, 5, 5};
  engine::NgramIndex same;
  EXPECT_EQ(same.Guess(tokens, 3), (std::vector<int32_t>{5}));
}

class SpeculationTest : public CachedSchedulerTest {
 protected:
  // Serves qwen3 with guesses of `kind`; for kDraft by `draft`.
  void Serve(Kind kind, const std::string& draft = "") {
    Stop();
    SchedulerOptions options;
    options.max_queue = 100'000;
    options.max_batch = 4;  // with many streams there is no room for guesses
    Start(64 * kMiB, options);
    engine::EngineModelOptions model;
    model.speculation.kind = kind;
    model.speculation.tokens = 5;
    if (kind == Kind::kDraft) {
      model.speculation.draft = rig_->Open(Arch(draft) + ".gguf", "draft", true);
      ASSERT_NE(model.speculation.draft, nullptr);
      ASSERT_TRUE(model.speculation.draft->weights().WaitForImage().ok());
    }
    Add("qwen3", model);
  }

  // Prompts that repeat themselves, greedy and sampled, long answers, together.
  std::vector<std::vector<int32_t>> AskAll(int32_t* guessed, int32_t* accepted) {
    Random random(21);
    std::vector<std::shared_ptr<Heard>> heard;
    for (int i = 0; i < 10; ++i) {
      std::vector<int32_t> prompt = RandomPrompt(random, 12 + random.Below(20));
      const std::vector<int32_t> once = prompt;
      prompt.insert(prompt.end(), once.begin(), once.end());
      auto request = MakeRequest(std::to_string(i), "qwen3", prompt, 120);
      if (i % 2 == 1) {
        request->sampling.temperature = 0.7f;
        request->sampling.seed = 1000 + i;
        request->sampling.repetition_penalty = i % 3 == 0 ? 1.1f : 1.0f;
        request->sampling.top_logprobs = 2;
      }
      heard.push_back(Send(std::move(request), i == 4 ? 37 : -1));
    }
    std::vector<std::vector<int32_t>> answers;
    *guessed = *accepted = 0;
    for (auto& one : heard) {
      one->finished.WaitForNotification();
      EXPECT_TRUE(one->info.status.ok()) << one->info.status;
      EXPECT_EQ(one->info.completion_tokens, static_cast<int32_t>(one->Tokens().size()));
      answers.push_back(one->Tokens());
      *guessed += one->info.guessed_tokens;
      *accepted += one->info.accepted_tokens;
    }
    return answers;
  }
};

TEST_F(SpeculationTest, AnswersAreEqualWithAndWithoutGuesses) {
  int32_t guessed = 0, accepted = 0;
  Serve(Kind::kNone);
  const auto plain = AskAll(&guessed, &accepted);
  EXPECT_EQ(guessed, 0);
  Serve(Kind::kNgram);
  EXPECT_EQ(AskAll(&guessed, &accepted), plain);
  std::printf("n-gram: %d of %d guesses were right\n", accepted, guessed);
  EXPECT_GT(guessed, 0);
  EXPECT_LE(accepted, guessed);
  const std::string metrics = metrics_.Render();
  EXPECT_NE(metrics.find("terrace_guessed_tokens_total{model=\"qwen3\"}"), std::string::npos);
  EXPECT_NE(metrics.find("terrace_accepted_tokens_total{model=\"qwen3\"}"), std::string::npos);

  // A draft of other weights is mostly wrong; one of the same weights is right whenever the model
  // is greedy.
  Serve(Kind::kDraft, "qwen2");
  EXPECT_EQ(AskAll(&guessed, &accepted), plain);
  std::printf("other draft: %d of %d guesses were right\n", accepted, guessed);
  EXPECT_GT(guessed, 0);
  Serve(Kind::kDraft, "qwen3");
  EXPECT_EQ(AskAll(&guessed, &accepted), plain);
  std::printf("same draft: %d of %d guesses were right\n", accepted, guessed);
  EXPECT_GT(accepted, guessed / 2);
  Stop();
  EXPECT_EQ(rig_ == nullptr ? 0 : KvBytes(), 0u) << "the draft's KV is given back";
}

// Under a budget in which drafts must give way first.
TEST_F(SpeculationTest, DraftsGiveWayForMemory) {
  int32_t guessed = 0, accepted = 0;
  Serve(Kind::kNone);
  const auto plain = AskAll(&guessed, &accepted);
  Stop();
  SchedulerOptions options;
  Start(2 * weight_bytes_["qwen3"] + 2 * kMiB, options);
  engine::EngineModelOptions model;
  model.speculation.kind = Kind::kDraft;
  model.speculation.draft = rig_->Open(Arch("qwen3") + ".gguf", "draft", true);
  ASSERT_NE(model.speculation.draft, nullptr);
  Add("qwen3", model);
  EXPECT_EQ(AskAll(&guessed, &accepted), plain);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

// Softmax of the `kept` best logits; other tokens get none.
std::map<int32_t, double> Probabilities(std::span<const float> logits, size_t kept) {
  std::vector<std::pair<float, int32_t>> order;
  for (size_t i = 0; i < logits.size(); ++i)
    order.emplace_back(-logits[i], static_cast<int32_t>(i));
  std::sort(order.begin(), order.end());
  order.resize(kept);
  double sum = 0;
  std::map<int32_t, double> out;
  for (const auto& [minus, token] : order) {
    out[token] = std::exp(static_cast<double>(order[0].first - minus));
    sum += out[token];
  }
  for (auto& [token, p] : out) p /= sum;
  return out;
}

using Outcome = std::array<int32_t, 3>;
using Next = std::function<std::map<int32_t, double>(const std::vector<int32_t>&)>;

// The probabilities of the three tokens after `prompt`.
std::map<Outcome, double> ExactOutcomes(const std::vector<int32_t>& prompt, const Next& next) {
  std::map<Outcome, double> out;
  for (const auto& [a, pa] : next(prompt)) {
    std::vector<int32_t> with_a = prompt;
    with_a.push_back(a);
    for (const auto& [b, pb] : next(with_a)) {
      std::vector<int32_t> with_b = with_a;
      with_b.push_back(b);
      for (const auto& [c, pc] : next(with_b)) out[{a, b, c}] = pa * pb * pc;
    }
  }
  return out;
}

struct ChiSquare {
  double value = 0;
  int cells = 0;

  void Add(double got, double want) {
    value += (got - want) * (got - want) / want;
    ++cells;
  }
  // Wilson and Hilferty's approximation of the value that is passed once in 10,000 runs.
  double Limit() const {
    const double freedom = cells - 1;
    return freedom * std::pow(1 - 2 / (9 * freedom) + 3.719 * std::sqrt(2 / (9 * freedom)), 3);
  }
};

// Cells with fewer than five expected are taken together.
ChiSquare Compare(const std::map<Outcome, double>& exact, std::map<Outcome, int>& seen, int asked) {
  ChiSquare chi;
  double rest_expected = asked;
  int rest_seen = asked;
  for (const auto& [outcome, p] : exact) {
    const double want = p * asked;
    if (want < 5) continue;
    chi.Add(seen[outcome], want);
    rest_seen -= seen[outcome];
    rest_expected -= want;
  }
  if (rest_expected >= 5) {
    chi.Add(rest_seen, rest_expected);
  } else {
    EXPECT_LE(rest_seen, 25) << "outcomes that the model hardly has";
  }
  return chi;
}

// A prompt in which each likely next token stands behind the same two tokens already, so that an
// n-gram gives a guess. Putting them in front changes what is likely, so this is repeated.
std::vector<int32_t> PromptWithGuesses(std::vector<int32_t> prompt, const Next& next) {
  const std::vector<int32_t> end = prompt;
  for (int round = 0; round < 4; ++round) {
    std::vector<int32_t> longer;
    for (const auto& [token, p] : next(prompt)) {
      longer.insert(longer.end(), {end[end.size() - 2], end.back(), token, token});
    }
    longer.insert(longer.end(), end.begin(), end.end());
    prompt = longer;
  }
  return prompt;
}

// Three tokens after one prompt, top-k 3: 27 outcomes with known probabilities. Tokens two and
// three are those that guesses take part in.
TEST_F(SpeculationTest, TheDistributionAtTemperatureOneIsTheModelsOwn) {
  constexpr int kAsked = 3000;
  constexpr size_t kTopK = 3;
  const uint64_t seed = 7'000'001;
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(seed + kAsked - 1));
  for (const Kind kind : {Kind::kNgram, Kind::kDraft}) {
    Serve(kind, "qwen3");
    auto model = rig_->Open(Arch("qwen3") + ".gguf", "exact");
    ASSERT_NE(model, nullptr);
    const Next next = [&](const std::vector<int32_t>& tokens) {
      auto logits = rig_->engine().AllLogits(*model, tokens);
      EXPECT_TRUE(logits.ok()) << logits.status();
      const size_t vocab = logits->size() / tokens.size();
      return Probabilities(std::span<const float>(*logits).last(vocab), kTopK);
    };
    const std::vector<int32_t> prompt = PromptWithGuesses({5, 6, 7, 8, 9, 10}, next);
    const std::map<Outcome, double> exact = ExactOutcomes(prompt, next);
    std::vector<std::shared_ptr<Heard>> heard;
    for (int i = 0; i < kAsked; ++i) {
      auto request = MakeRequest(std::to_string(i), "qwen3", prompt, 3);
      request->sampling.temperature = 1.0f;
      request->sampling.top_k = kTopK;
      request->sampling.seed = seed + static_cast<uint64_t>(i);
      heard.push_back(Send(std::move(request)));
    }
    std::map<Outcome, int> seen;
    int32_t guessed = 0, accepted = 0;
    for (auto& one : heard) {
      one->finished.WaitForNotification();
      const std::vector<int32_t> tokens = one->Tokens();
      ASSERT_EQ(tokens.size(), 3u) << one->info.status;
      ++seen[{tokens[0], tokens[1], tokens[2]}];
      guessed += one->info.guessed_tokens;
      accepted += one->info.accepted_tokens;
    }
    EXPECT_GT(guessed, kAsked / 20) << "guesses hardly took part";
    const ChiSquare chi = Compare(exact, seen, kAsked);
    std::printf("%s: chi-square %.1f over %d cells (limit %.1f), %d of %d guesses right\n",
                kind == Kind::kNgram ? "n-gram" : "draft", chi.value, chi.cells, chi.Limit(),
                accepted, guessed);
    EXPECT_LT(chi.value, chi.Limit());
  }
}

}  // namespace
}  // namespace terrace::scheduler
