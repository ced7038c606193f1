// Models that are larger than the budget: they answer the same as with room for all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "../../bench/generate_model.h"
#include "engine/testing.h"

namespace terrace::engine {
namespace {

struct Answer {
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  uint64_t moved_bytes = 0;  // of the steps that made `tokens`, but the first
  int32_t steps = 0;
};

// A prompt's logits and a few greedy tokens, one step each.
Answer Generate(Rig& rig, EngineModel& model, const std::vector<int32_t>& prompt) {
  Answer answer;
  auto logits = rig.engine().AllLogits(model, prompt);
  EXPECT_TRUE(logits.ok()) << logits.status();
  if (!logits.ok()) return answer;
  answer.logits = *std::move(logits);
  kv::Sequence kv(&rig.manager(), nullptr, {}, {"m", "", tier::Kind::kKv},
                  model.kv_geometry().block_bytes());
  std::vector<int32_t> next = prompt;
  for (int i = 0; i < 6; ++i) {
    StepEntry entry{&kv, next, true};
    auto step = rig.engine().Step(model, {&entry, 1}, nullptr);
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) return answer;
    const std::span<float> row = step->entries[0].logits;
    next = {static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin())};
    answer.tokens.push_back(next[0]);
    if (i > 0) {
      answer.moved_bytes += step->moved_bytes;
      ++answer.steps;
    }
  }
  return answer;
}

// Opens the model with room for all of it, and then for `budget(weights' bytes, what a pass holds)`
// of its weights beside workspace and KV.
void ExpectTheSameStreamed(const std::string& path, const std::string& name,
                           const std::vector<int32_t>& prompt,
                           const std::function<uint64_t(uint64_t, uint64_t)>& budget) {
  Answer whole, streamed;
  uint64_t bytes = 0, held = 0, workspace = 0, kv_bytes = 0;
  const auto tokens = static_cast<int32_t>(prompt.size());
  const std::string variant = name.starts_with("small") ? ops::BestCpuVariant() : "portable";
  {
    Rig rig(variant, 256 * kMiB, 2, true);
    auto model = rig.Open(path, "m", /*write_image=*/true);
    ASSERT_NE(model, nullptr);
    ASSERT_TRUE(model->weights().WaitForImage().ok());
    bytes = model->weights().total_bytes();
    std::vector<uint64_t> sizes;
    for (const auto& segment : model->weights().segments()) sizes.push_back(segment.bytes);
    std::sort(sizes.rbegin(), sizes.rend());
    for (size_t i = 0; i < std::min<size_t>(2, sizes.size()); ++i) held += sizes[i];
    const model::Architecture& architecture = model->architecture();
    workspace =
        std::max(architecture.WorkspaceBytes(32, 32, 0), architecture.WorkspaceBytes(tokens, 1, 0));
    kv_bytes = model->KvBytes(tokens + 16);
    whole = Generate(rig, *model, prompt);
    workspace = std::max(workspace, rig.engine().workspace_bytes());
    EXPECT_EQ(whole.moved_bytes, 0u) << "all of it stays";
  }
  Rig rig(variant, budget(bytes, held) + AlignUp(workspace, kMiB) + kv_bytes, 2, true);
  auto model = rig.Open(path, "m", /*write_image=*/true);
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(model->weights().WaitForImage().ok());
  streamed = Generate(rig, *model, prompt);
  EXPECT_EQ(streamed.tokens, whole.tokens);
  EXPECT_EQ(streamed.logits, whole.logits) << "not a bit differs";
  EXPECT_GT(streamed.moved_bytes, 0u) << "it was streamed";
  std::printf("%s: %llu bytes of weights, %llu moved a token\n", name.c_str(),
              static_cast<unsigned long long>(bytes),
              static_cast<unsigned long long>(streamed.moved_bytes /
                                              static_cast<uint64_t>(streamed.steps)));
  EXPECT_TRUE(rig.manager().CheckInvariants().ok());
}

class StreamingTest : public testing::TestWithParam<std::string> {};

TEST_P(StreamingTest, AModelThreeTimesTheBudgetAnswersTheSame) {
  const std::string base = std::string(TERRACE_TEST_DATA) + "/golden/arch/" + GetParam();
  // A pass needs room for two segments: the embedding, which is the head too, and the one that
  // computes. In models as small as these that may be a little more than a third.
  ExpectTheSameStreamed(base + ".gguf", GetParam(), ReadGolden(base).tokens,
                        [](uint64_t bytes, uint64_t held) { return std::max(bytes / 3, held); });
}

INSTANTIATE_TEST_SUITE_P(Models, StreamingTest,
                         testing::Values("llama", "qwen3", "mixtral", "qwen3moe", "gpt-oss",
                                         "deepseek2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Of as many layers as models have that are not made for tests: a third, to the byte.
class GeneratedStreamingTest : public testing::TestWithParam<std::string> {};

TEST_P(GeneratedStreamingTest, AModelThreeTimesTheBudgetAnswersTheSame) {
  TempFolder folder;
  bench::GenerateOptions options;
  options.shape = bench::FindShape(GetParam()).value();
  options.shape.vocab = 4096;
  const std::string path = folder.path() + "/m.gguf";
  ASSERT_TRUE(bench::GenerateModel(options, path).ok());
  ExpectTheSameStreamed(path, GetParam(), {11, 205, 7, 1999, 42, 3, 1024, 77},
                        [](uint64_t bytes, uint64_t) { return bytes / 3; });
}

INSTANTIATE_TEST_SUITE_P(Shapes, GeneratedStreamingTest, testing::Values("small", "small-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace terrace::engine
