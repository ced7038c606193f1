// Adapters and encoders as the scheduler serves them.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/adapter.h"
#include "engine/adapter_writer.h"
#include "format/gguf.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

class AdapterSchedulerTest : public CachedSchedulerTest {
 protected:
  // The golden qwen3 and the adapters "one" and "two" for it.
  void StartWithAdapters(uint64_t budget_bytes) {
    SchedulerOptions options;
    options.max_batch = 8;
    Start(budget_bytes, options);
    base_ = rig_->Open(Arch("qwen3") + ".gguf", "qwen3", true);
    ASSERT_NE(base_, nullptr);
    ASSERT_TRUE(base_->weights().WaitForImage().ok());
    auto source = format::OpenGguf(Arch("qwen3") + ".gguf");
    ASSERT_TRUE(source.ok());
    const engine::Checkpoint checkpoint = engine::CheckpointOf(*source);
    for (int i = 0; i < 2; ++i) {
      engine::RandomAdapter(checkpoint, 4 + 4 * i, 10 + static_cast<uint64_t>(i))
          .WritePeft(folders_[i].path());
      auto adapter = engine::Adapter::Create(
          {.name = i == 0 ? "one" : "two", .source_path = folders_[i].path()}, *base_,
          &rig_->backend(), &rig_->manager());
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      ASSERT_TRUE(scheduler_->AddAdapter(base_, *std::move(adapter)).ok());
    }
  }
  void TearDown() override {
    scheduler_.reset();  // before the adapters and the base that requests may still hold
  }

  TempFolder folders_[2];
  std::shared_ptr<engine::EngineModel> base_;
};

TEST_F(AdapterSchedulerTest, AreServedByTheirNamesBesideTheBase) {
  StartWithAdapters(64 * kMiB);
  ASSERT_TRUE(scheduler_->AddModel(base_).ok());
  EXPECT_EQ(scheduler_->AddModel(base_).code(), absl::StatusCode::kAlreadyExists);
  Random random(3);
  const std::vector<int32_t> prompt = RandomPrompt(random, 40);
  std::map<std::string, std::vector<int32_t>> alone;
  for (const std::string name : {"qwen3", "one", "two"}) {
    alone[name] = Answer("alone-" + name, name, prompt, 12);
    // The base's KV and another adapter's are not this one's.
    EXPECT_EQ(last_.cached_tokens, 0) << name;
    EXPECT_EQ(Answer("again-" + name, name, prompt, 12), alone[name]);
    EXPECT_EQ(last_.cached_tokens, 32) << name;
  }
  EXPECT_NE(alone["qwen3"], alone["one"]);
  EXPECT_NE(alone["one"], alone["two"]);
  // All at once, several of each.
  std::vector<std::pair<std::string, std::shared_ptr<Heard>>> sent;
  for (int i = 0; i < 4; ++i) {
    for (const std::string name : {"qwen3", "one", "two"}) {
      sent.emplace_back(name, Send(MakeRequest(name + std::to_string(i), name, prompt, 12)));
    }
  }
  for (auto& [name, heard] : sent) {
    heard->finished.WaitForNotification();
    EXPECT_TRUE(heard->info.status.ok()) << heard->info.status;
    EXPECT_EQ(heard->Tokens(), alone[name]) << name;
  }
  EXPECT_EQ(scheduler_->State().models.size(), 1u);  // one queue: they share batches
}

TEST_F(AdapterSchedulerTest, EachNameGoesWhenItsRequestsHaveEnded) {
  StartWithAdapters(64 * kMiB);
  ASSERT_TRUE(scheduler_->AddModel(base_).ok());
  Random random(4);
  const std::vector<int32_t> prompt = RandomPrompt(random, 20);
  const std::vector<int32_t> want = Answer("before", "two", prompt, 8);
  ASSERT_TRUE(scheduler_->RemoveModel("one").ok());
  EXPECT_TRUE(absl::IsNotFound(scheduler_->RemoveModel("one")));
  ASSERT_TRUE(scheduler_->RemoveModel("qwen3").ok());
  auto refused = MakeRequest("refused", "qwen3", prompt, 4);
  refused->sink = std::make_unique<RecordingSink>(std::make_shared<Heard>(), -1);
  EXPECT_TRUE(absl::IsNotFound(scheduler_->Submit(std::move(refused))));
  EXPECT_EQ(Answer("after", "two", prompt, 8), want);
  ASSERT_TRUE(scheduler_->RemoveModel("two").ok());
  EXPECT_TRUE(scheduler_->State().models.empty());
  ASSERT_TRUE(scheduler_->AddModel(base_).ok());
  EXPECT_EQ(Answer("base", "qwen3", prompt, 8).size(), 8u);
}

// An embedding of the bert checkpoint, whose reference is tested in engine/encoder_test.cc.
class EncoderSink final : public TokenSink {
 public:
  explicit EncoderSink(std::shared_ptr<Heard> heard, std::vector<float>* vector)
      : heard_(std::move(heard)), vector_(vector) {}
  bool OnToken(const TokenEvent&) override { return false; }
  void OnEmbedding(std::span<const float> state) override {
    vector_->assign(state.begin(), state.end());
  }
  void OnFinish(const FinishInfo& info) override {
    heard_->info = info;
    heard_->finished.Notify();
  }

 private:
  std::shared_ptr<Heard> heard_;
  std::vector<float>* vector_;
};

TEST_F(CachedSchedulerTest, EncodersEmbedWholeTextsAndGenerateNothing) {
  SchedulerOptions options;
  options.step_tokens = 16;  // less than two of the texts
  Start(64 * kMiB, options);
  auto model = rig_->Open(std::string(TERRACE_TEST_DATA) + "/checkpoints/bert", "bert", false);
  ASSERT_NE(model, nullptr);
  ASSERT_TRUE(scheduler_->AddModel(model).ok());
  const auto vocab = static_cast<uint64_t>(model->vocab_size());
  auto make = [&](const std::string& id, std::vector<int32_t> text, std::vector<float>* vector) {
    auto heard = std::make_shared<Heard>();
    auto request = MakeRequest(id, "bert", std::move(text), 1);
    request->embed = vector != nullptr;
    request->sink = std::make_unique<EncoderSink>(heard, vector);
    return std::pair(std::move(request), heard);
  };
  Random random(5);
  const size_t lengths[] = {1, 3, 12, 9, static_cast<size_t>(model->max_context())};
  std::vector<std::vector<int32_t>> texts;
  std::vector<std::vector<float>> vectors(std::size(lengths));
  std::vector<std::shared_ptr<Heard>> sent;
  for (size_t i = 0; i < std::size(lengths); ++i) {
    texts.push_back(RandomPrompt(random, lengths[i], vocab));
    auto [request, heard] = make("text" + std::to_string(i), texts.back(), &vectors[i]);
    const absl::Status status = scheduler_->Submit(std::move(request));
    ASSERT_TRUE(status.ok()) << status;
    sent.push_back(heard);
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i]->finished.WaitForNotification();
    EXPECT_TRUE(sent[i]->info.status.ok()) << sent[i]->info.status;
    EXPECT_EQ(sent[i]->info.prompt_tokens, static_cast<int32_t>(lengths[i]));
  }
  EXPECT_EQ(KvBytes(), 0u);
  auto generate = make("generate", texts[0], nullptr);
  const absl::Status refused = scheduler_->Submit(std::move(generate.first));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("/v1/embeddings"), std::string::npos);
  std::vector<float> longer;
  auto beyond = make("beyond", RandomPrompt(random, lengths[4] + 1, vocab), &longer);
  EXPECT_EQ(scheduler_->Submit(std::move(beyond.first)).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(scheduler_->RemoveModel("bert").ok());
  for (size_t i = 0; i < sent.size(); ++i) {
    auto want = rig_->engine().Embed(*model, texts[i]);
    ASSERT_TRUE(want.ok()) << want.status();
    EXPECT_EQ(vectors[i], *want) << i;
  }
}

}  // namespace
}  // namespace terrace::scheduler
