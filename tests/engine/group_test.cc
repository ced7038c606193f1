// A leader whose engine decides and members that follow it: passes that arrive one by one, KV
// blocks that come and go, and what happens when a member cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/follower.h"
#include "engine/group_message.h"
#include "engine/leader.h"
#include "engine/member.h"
#include "engine/testing.h"
#include "kv/cache.h"
#include "parallel/thread_group.h"

namespace terrace::engine {
namespace {

using testing::HasSubstr;

std::string Arch(const std::string& name) {
  return std::string(TERRACE_TEST_DATA) + "/golden/arch/" + name;
}

class LedGroup {
 public:
  explicit LedGroup(int32_t size, uint64_t follower_budget = 32 * kMiB)
      : group_(size), news_(std::make_shared<GroupNews>()) {
    rigs_.push_back(std::make_unique<Rig>(
        "ref", 32 * kMiB, 1, true, [news = news_](const std::byte* at) { news->Freed(at); }));
    statuses_.resize(static_cast<size_t>(size));
    for (int32_t r = 1; r < size; ++r) {
      rigs_.push_back(std::make_unique<Rig>("ref", follower_budget, 1, true));
    }
    for (int32_t r = 1; r < size; ++r) {
      followers_.emplace_back([this, r] {
        Follower follower(
            &group_.member(r), &rig(r).engine(),
            [this, r](const GroupModel& model) { return OpenAt(r, model); },
            [](const std::string&) {});
        statuses_[static_cast<size_t>(r)] = follower.Run();
      });
    }
    leader_ = std::make_unique<Leader>(&group_.member(0), news_);
    rig(0).engine().set_leader(leader_.get());
  }
  ~LedGroup() { End(); }

  void End() {
    leader_.reset();
    for (std::thread& follower : followers_) follower.join();
    followers_.clear();
  }

  absl::StatusOr<std::shared_ptr<EngineModel>> Open(const std::string& path, bool tensor = true,
                                                    bool experts = false) {
    GroupModel model;
    model.name = "m";
    model.path = path;
    model.tensor = tensor;
    model.experts = experts;
    return leader_->Open(model, [this](const GroupModel& told) { return OpenAt(0, told); });
  }

  Rig& rig(int32_t rank) { return *rigs_[static_cast<size_t>(rank)]; }
  parallel::Communicator& member(int32_t rank) { return group_.member(rank); }
  const absl::Status& status(int32_t rank) { return statuses_[static_cast<size_t>(rank)]; }

 private:
  absl::StatusOr<std::shared_ptr<EngineModel>> OpenAt(int32_t rank, const GroupModel& model) {
    weights::OpenOptions open;
    open.name = model.name;
    open.source_path = model.path;
    open.write_image = false;
    open.part = PartOfMember({rank, group_.size(), model.tensor, model.experts});
    auto weights = weights::ModelWeights::Open(open, &rig(rank).backend(), &rig(rank).manager());
    if (!weights.ok()) return weights.status();
    EngineModelOptions more;
    more.name = model.name;
    more.seat.group = &group_.member(rank);
    more.seat.id = model.id;
    if (rank == 0) {
      more.seat.keeper = std::shared_ptr<const void>(
          static_cast<const void*>(this),
          [news = news_, id = model.id](const void*) { news->Closed(id); });
    }
    return EngineModel::Create(more, *std::move(weights));
  }

  parallel::ThreadGroup group_;
  std::shared_ptr<GroupNews> news_;
  std::vector<std::unique_ptr<Rig>> rigs_;
  std::vector<absl::Status> statuses_;
  std::vector<std::thread> followers_;
  std::unique_ptr<Leader> leader_;
};

// The golden greedy tokens from a sequence that begins with what `cache` has of the prompt.
void Generate(LedGroup& group, EngineModel& model, const Golden& golden, kv::Cache* cache,
              size_t* found) {
  kv::BlockKey root;
  kv::Sequence kv(&group.rig(0).manager(), cache, root, {"m", "", tier::Kind::kKv},
                  model.kv_geometry().block_bytes());
  std::span<const int32_t> next = golden.tokens;
  if (cache != nullptr) {
    kv::Cache::Found blocks = cache->Find(root, next.first(next.size() - 1));
    *found = blocks.device.size();
    kv.Adopt(std::move(blocks.device));
    next = next.subspan(static_cast<size_t>(kv.length()));
  }
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    StepEntry entry{&kv, next, true};
    auto step = group.rig(0).engine().Step(model, {&entry, 1}, nullptr);
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(step->entries[0].status.ok());
    const std::span<float> row = step->entries[0].logits;
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    if (golden.greedy_margin[i] > 0.02) {
      EXPECT_EQ(best, golden.greedy[i]) << "step " << i;
    }
    next = {&golden.greedy[i], 1};
  }
}

TEST(Group, AnswersAsOneDeviceDoesAndSharesPrefixes) {
  for (const char* name : {"llama", "gemma3", "qwen3moe"}) {
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(Arch(name));
    LedGroup group(2);
    {
      auto model = group.Open(Arch(name) + ".gguf", true, std::string(name) == "qwen3moe");
      ASSERT_TRUE(model.ok()) << model.status();
      kv::Cache cache(&group.rig(0).manager(), nullptr, &group.rig(0).clock());
      size_t found = 0;
      Generate(group, **model, golden, &cache, &found);
      EXPECT_EQ(found, 0u);
      Generate(group, **model, golden, &cache, &found);
      EXPECT_EQ(found, (golden.tokens.size() - 1) / kv::kBlockTokens);
    }
    group.End();
    EXPECT_TRUE(group.status(1).ok()) << group.status(1);
  }
}

// Followers give back what the leader has given back: many sequences one after the other need no
// more memory than one.
TEST(Group, FollowersFreeBlocksWithTheLeader) {
  const Golden golden = ReadGolden(Arch("llama"));
  LedGroup group(2, 2 * kMiB);
  auto model = group.Open(Arch("llama") + ".gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  const uint64_t block = (*model)->kv_geometry().block_bytes();
  // Held in turns, so that blocks get new addresses.
  std::vector<tier::DeviceBuffer> held;
  const uint64_t sequences = 2 * 2 * kMiB / (block * golden.tokens.size() / kv::kBlockTokens);
  for (uint64_t i = 0; i < sequences; ++i) {
    kv::Sequence kv(&group.rig(0).manager(), nullptr, {}, {"m", "", tier::Kind::kKv}, block);
    StepEntry entry{&kv, golden.tokens, true};
    auto step = group.rig(0).engine().Step(**model, {&entry, 1}, nullptr);
    ASSERT_TRUE(step.ok()) << step.status() << " after " << i;
    auto hole = group.rig(0).manager().Allocate({"t", "", tier::Kind::kWorkspace}, block);
    ASSERT_TRUE(hole.ok());
    held.push_back(*std::move(hole));
  }
}

// What a member holds of a model goes when the leader's part goes, though nothing is computed.
TEST(Group, AModelThatIsUnloadedLeavesTheOtherMembersToo) {
  const Golden golden = ReadGolden(Arch("llama"));
  LedGroup group(2);
  const uint64_t before = group.rig(1).manager().Snapshot().models.size();
  {
    auto model = group.Open(Arch("llama") + ".gguf");
    ASSERT_TRUE(model.ok()) << model.status();
    Generate(group, **model, golden, nullptr, nullptr);
    EXPECT_EQ(group.rig(1).manager().Snapshot().models.size(), before + 1);
  }
  for (int i = 0; i < 2000 && group.rig(1).manager().Snapshot().models.size() > before; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(group.rig(1).manager().Snapshot().models.size(), before);
}

TEST(Group, AMemberWithoutMemoryIsNoEnd) {
  const Golden golden = ReadGolden(Arch("llama"));
  LedGroup group(2, kMiB + kMiB / 2);
  auto model = group.Open(Arch("llama") + ".gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  const uint64_t block = (*model)->kv_geometry().block_bytes();
  std::vector<std::unique_ptr<kv::Sequence>> many;
  absl::Status status;
  while (status.ok() && many.size() < 1000) {
    many.push_back(std::make_unique<kv::Sequence>(&group.rig(0).manager(), nullptr, kv::BlockKey(),
                                                  tier::Owner{"m", "", tier::Kind::kKv}, block));
    StepEntry entry{many.back().get(), golden.tokens, true};
    status = group.rig(0).engine().Step(**model, {&entry, 1}, nullptr).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("member 1 of the group has no memory"));
  EXPECT_EQ(many.back()->length(), 0);
  many.clear();
  size_t found = 0;
  Generate(group, **model, golden, nullptr, &found);
}

TEST(Group, AModelThatCannotBeDividedIsRefusedAndOthersGoOn) {
  LedGroup group(3);
  auto refused = group.Open(Arch("llama") + ".gguf");  // 4 heads
  EXPECT_THAT(refused.status().message(), HasSubstr("4 attention heads cannot be divided among 3"));
  auto absent = group.Open(Arch("llama") + ".absent.gguf");
  EXPECT_FALSE(absent.ok());
  auto model = group.Open(Arch("qwen3moe") + ".gguf", false, true);
  ASSERT_TRUE(model.ok()) << model.status();
  size_t found = 0;
  Generate(group, **model, ReadGolden(Arch("qwen3moe")), nullptr, &found);
}

TEST(Group, AMemberThatFailsFailsTheStepAndTheGroupRecovers) {
  LedGroup group(2);
  auto model = group.Open(Arch("llama") + ".gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  group.member(1).GiveUp(absl::InternalError("its device is lost"));
  const Golden golden = ReadGolden(Arch("llama"));
  auto logits = group.rig(0).engine().AllLogits(**model, golden.tokens);
  EXPECT_TRUE(absl::IsUnavailable(logits.status())) << logits.status();
  EXPECT_THAT(logits.status().message(), HasSubstr("a step of 2 devices failed"));
  EXPECT_THAT(logits.status().message(), HasSubstr("its device is lost"));
  size_t found = 0;
  Generate(group, **model, golden, nullptr, &found);
  group.End();
  EXPECT_TRUE(group.status(1).ok()) << group.status(1);
}

TEST(GroupMessage, SurvivesItsBytesAndRefusesOthers) {
  GroupMessage message;
  message.kind = GroupMessage::Kind::kPass;
  message.closed = {3};
  message.freed = {0x1000, 0x2000};
  message.pass.model = 7;
  message.pass.tokens = {1, 2, 3};
  message.pass.positions = {0, 1, 0};
  message.pass.logit_rows = {1, 2};
  message.pass.uniform = true;
  message.pass.sequences = {{0, 2, 0, {0, 64}}, {2, 1, 5, {}}};
  const std::vector<std::byte> bytes = Serialize(message);
  auto again = ParseGroupMessage(bytes);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Serialize(*again), bytes);
  EXPECT_EQ(again->pass.sequences[0].blocks, (std::vector<uint64_t>{0, 64}));
  EXPECT_EQ(again->pass.sequences[1].start, 5);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseGroupMessage(std::span(bytes).first(size)).ok()) << size;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(ParseGroupMessage(longer).ok());
  GroupMessage open;
  open.kind = GroupMessage::Kind::kOpen;
  open.model = {1, "name", "path", 100, ops::KvDType::kI8, true, false};
  auto opened = ParseGroupMessage(Serialize(open));
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->model.path, "path");
  EXPECT_EQ(opened->model.kv_dtype, ops::KvDType::kI8);
}

}  // namespace
}  // namespace terrace::engine
