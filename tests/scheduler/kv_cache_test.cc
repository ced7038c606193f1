// What the scheduler makes of the KV cache: found again from every tier, never wrongly (hard cases
// A41 to A43).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

std::vector<std::filesystem::path> FilesOf(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".kv") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST_F(CachedSchedulerTest, AReturningPromptIsTakenFromMemoryAndAnswersAlike) {
  Start(64 * kMiB);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  const std::vector<int32_t> first = Answer("a", "qwen3", golden.tokens, 20);
  EXPECT_EQ(last_.cached_tokens, 0);
  const std::vector<int32_t> second = Answer("b", "qwen3", golden.tokens, 20);
  EXPECT_EQ(second, first);
  EXPECT_EQ(last_.cached_tokens, static_cast<int32_t>((golden.tokens.size() - 1) / 16 * 16));
  // The whole conversation is found, answer included.
  std::vector<int32_t> longer = golden.tokens;
  longer.insert(longer.end(), first.begin(), first.end());
  longer.push_back(7);
  Answer("c", "qwen3", longer, 5);
  EXPECT_GE(last_.cached_tokens, static_cast<int32_t>(golden.tokens.size() / 16 * 16));
}

TEST_F(CachedSchedulerTest, AReturningPromptIsTakenFromDiskAfterARestart) {
  Start(64 * kMiB);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  const std::vector<int32_t> first = Answer("a", "qwen3", golden.tokens, 20);
  Answer("b", "qwen3", golden.tokens, 20);  // the second use admits it to disk
  cache_->Flush();
  EXPECT_GT(store_->State().blocks, 0u);
  scheduler_.reset();
  cache_.reset();
  store_.reset();
  Start(64 * kMiB);
  Add("qwen3");
  EXPECT_EQ(Answer("c", "qwen3", golden.tokens, 20), first);
  EXPECT_EQ(last_.restored_tokens, static_cast<int32_t>((golden.tokens.size() - 1) / 16 * 16));
  EXPECT_FALSE(last_.kv_choice.empty());
}

// One byte of a stored block is flipped, or two files are swapped: each is noticed, and computed
// anew.
TEST_F(CachedSchedulerTest, DamagedAndForeignBlocksAreRecomputed) {
  Random random(5);
  const std::vector<int32_t> prompt = RandomPrompt(random, 200);
  Start(64 * kMiB);
  Add("qwen3");
  const std::vector<int32_t> first = Answer("a", "qwen3", prompt, 20);
  for (const bool swap : {false, true}) {
    SCOPED_TRACE(swap ? "two files swapped" : "a byte flipped");
    // Whole on disk again: a second use of what was computed anew brings it there.
    for (const char* id : {"b", "c"}) EXPECT_EQ(Answer(id, "qwen3", prompt, 20), first);
    cache_->Flush();
    Stop();
    const std::vector<std::filesystem::path> files = FilesOf(folder_.path());
    ASSERT_EQ(files.size(), 12u);
    if (swap) {
      const std::string x = engine::ReadFile(files[1]), y = engine::ReadFile(files[2]);
      ASSERT_NE(x, y);
      std::ofstream(files[1], std::ios::binary) << y;
      std::ofstream(files[2], std::ios::binary) << x;
    } else {
      std::string content = engine::ReadFile(files[0]);
      content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
      std::ofstream(files[0], std::ios::binary) << content;
    }
    Start(64 * kMiB);
    Add("qwen3");
    EXPECT_EQ(Answer("d", "qwen3", prompt, 20), first);
    EXPECT_LT(last_.restored_tokens, 192) << "what was damaged was served";
    EXPECT_GT(store_->State().damaged, 0u);
  }
}

TEST_F(CachedSchedulerTest, TenantsDoNotShare) {
  Start(64 * kMiB);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  auto ask = [&](const std::string& id, const std::string& tenant) {
    auto request = MakeRequest(id, "qwen3", golden.tokens, 5);
    request->tenant = tenant;
    auto heard = Send(std::move(request));
    heard->finished.WaitForNotification();
    return heard->info.cached_tokens;
  };
  EXPECT_EQ(ask("a", "one"), 0);
  EXPECT_GT(ask("b", "one"), 0);
  EXPECT_EQ(ask("c", "two"), 0);
}

TEST_F(CachedSchedulerTest, IdleKvMakesRoomForWeightsAndForOtherKv) {
  Start(3 * kMiB + 512 * kKiB);
  Add("qwen3");
  Add("llama");
  Random random(3);
  for (int i = 0; i < 30; ++i) {
    std::vector<int32_t> prompt;
    for (int n = 0; n < 100; ++n) prompt.push_back(static_cast<int32_t>(random.Below(500)));
    Answer(std::to_string(i), i % 3 == 0 ? "llama" : "qwen3", prompt, 4);
  }
  EXPECT_GT(cache_->State().evictions, 0u);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

void Damage(const std::filesystem::path& file, const std::function<void(std::string*)>& change) {
  std::string content = engine::ReadFile(file.string());
  change(&content);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
}

// A42: whatever is wrong with what was saved, it is recomputed and spoils nothing that follows.
TEST_F(CachedSchedulerTest, DamagedSavesAreRefusedAndSpoilNothing) {
  Random random(42);
  const std::vector<int32_t> saved = RandomPrompt(random, 100);
  const std::vector<int32_t> unrelated = RandomPrompt(random, 60);
  use_cache_ = false;
  Start(64 * kMiB);
  Add("qwen3");
  const std::vector<int32_t> answer = Answer("a", "qwen3", saved, 12);
  const std::vector<int32_t> other = Answer("b", "qwen3", unrelated, 12);
  const std::pair<const char*, std::function<void(std::string*)>> faults[] = {
      {"start", [](std::string* c) { (*c)[0] = static_cast<char>((*c)[0] ^ 1); }},
      {"key", [](std::string* c) { (*c)[20] = static_cast<char>((*c)[20] ^ 1); }},
      {"middle", [](std::string* c) { (*c)[c->size() / 2] ^= 4; }},
      {"end", [](std::string* c) { c->back() = static_cast<char>(c->back() ^ 0x80); }},
      {"cut", [](std::string* c) { c->resize(c->size() / 2); }},
      {"empty", [](std::string* c) { c->clear(); }},
      {"longer", [](std::string* c) { c->append(4096, '\0'); }},
  };
  use_cache_ = true;
  for (const auto& [name, change] : faults) {
    SCOPED_TRACE(name);
    Stop();
    std::filesystem::remove_all(folder_.path());
    Start(64 * kMiB);
    Add("qwen3");
    for (int use = 0; use < 2; ++use) Answer("s" + std::to_string(use), "qwen3", saved, 12);
    cache_->Flush();
    Stop();
    const auto files = FilesOf(folder_.path());
    ASSERT_EQ(files.size(), 6u);
    for (const auto& file : files) Damage(file, change);
    Start(64 * kMiB);
    Add("qwen3");
    EXPECT_EQ(Answer("r", "qwen3", saved, 12), answer);
    EXPECT_EQ(last_.restored_tokens, 0);
    EXPECT_EQ(Answer("u", "qwen3", unrelated, 12), other);
    EXPECT_EQ(Answer("again", "qwen3", saved, 12), answer);
    EXPECT_TRUE(store_->CheckInvariants().ok());
    EXPECT_TRUE(cache_->CheckInvariants().ok());
  }
}

// The KV of one model is not another's, even under the same name and with the same tokens.
TEST_F(CachedSchedulerTest, AChangedModelFileUnderTheSameNameFindsNothingOfTheOld) {
  Random random(43);
  const std::vector<int32_t> prompt = RandomPrompt(random, 100);
  TempFolder models;
  const std::string path = models.path() + "/m.gguf";
  std::string content = engine::ReadFile(Arch("qwen3") + ".gguf");
  std::ofstream(path, std::ios::binary) << content;
  auto serve = [&](int round) {
    Stop();
    Start(64 * kMiB);
    auto model = rig_->Open(path, "m", true);
    ASSERT_NE(model, nullptr);
    ASSERT_TRUE(scheduler_->AddModel(std::move(model)).ok());
    Answer(std::to_string(round) + "a", "m", prompt, 8);
  };
  serve(0);
  Answer("0b", "m", prompt, 8);
  cache_->Flush();
  serve(1);
  EXPECT_EQ(last_.restored_tokens, 96) << "the same file finds its KV";
  // The last bytes of the file are weights.
  content[content.size() - 2] = static_cast<char>(content[content.size() - 2] ^ 1);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  serve(2);
  EXPECT_EQ(last_.cached_tokens, 0) << "another file must not";
}

// A43: files vanish while requests repeat; each is a miss that is counted, and answers are right.
TEST_F(CachedSchedulerTest, FilesThatVanishAreMisses) {
  const uint64_t seed = 4301;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  std::vector<std::vector<int32_t>> prompts, answers;
  use_cache_ = false;
  Start(64 * kMiB);
  Add("qwen3");
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(RandomPrompt(random, 60 + random.Below(80)));
    answers.push_back(Answer("p" + std::to_string(i), "qwen3", prompts.back(), 6));
  }
  use_cache_ = true;
  Stop();
  Start(64 * kMiB);
  Add("qwen3");
  uint64_t deleted = 0;
  for (int round = 0; round < 60; ++round) {
    const size_t at = random.Below(prompts.size());
    EXPECT_EQ(Answer("r" + std::to_string(round), "qwen3", prompts[at], 6), answers[at]);
    cache_->Flush();
    cache_->Clear();  // so that the next must come from disk
    for (const auto& file : FilesOf(folder_.path())) {
      if (random.Below(4) != 0) continue;
      std::filesystem::remove(file);
      ++deleted;
    }
  }
  EXPECT_GT(deleted, 20u);
  EXPECT_GT(cache_->State().lost, 0u);
  EXPECT_GT(cache_->State().disk_hits, 0u);
  EXPECT_TRUE(cache_->CheckInvariants().ok());
}

// A43: tiers so small that each store evicts, 8 clients at once on prompts that overlap.
TEST_F(CachedSchedulerTest, ATinyTierWithEightClientsAnswersAsWithoutCache) {
  const uint64_t seed = 4302;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  std::vector<std::vector<int32_t>> prompts, answers;
  use_cache_ = false;
  Start(64 * kMiB);
  Add("qwen3");
  const std::vector<int32_t> common = RandomPrompt(random, 96);
  for (int i = 0; i < 12; ++i) {
    std::vector<int32_t> prompt(common.begin(),
                                common.begin() + static_cast<ptrdiff_t>(random.Below(97)));
    const std::vector<int32_t> own = RandomPrompt(random, 1 + random.Below(60));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompts.push_back(prompt);
    answers.push_back(Answer("p" + std::to_string(i), "qwen3", prompt, 5));
  }
  use_cache_ = true;
  Stop();
  disk_cap_bytes_ = 8 * (16 * kKiB + 4 * kKiB);  // some eight blocks of the 16 KiB that it has
  Start(weight_bytes_["qwen3"] + 2 * kMiB + 512 * kKiB);
  Add("qwen3");
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&, client] {
      Random mine(seed + static_cast<uint64_t>(client) + 1);
      for (int i = 0; i < 25; ++i) {
        const size_t at = mine.Below(prompts.size());
        auto heard = Send(
            MakeRequest(std::to_string(client) + "." + std::to_string(i), "qwen3", prompts[at], 5));
        heard->finished.WaitForNotification();
        if (heard->Tokens() != answers[at]) ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  cache_->Flush();
  EXPECT_TRUE(store_->CheckInvariants().ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok());
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

}  // namespace
}  // namespace terrace::scheduler
