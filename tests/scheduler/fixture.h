// A scheduler over a real engine and the tiny golden models, with or without a KV cache, and sinks
// that remember what they heard.
#ifndef TERRACE_TESTS_SCHEDULER_FIXTURE_H_
#define TERRACE_TESTS_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "base/status.h"
#include "engine/testing.h"
#include "kv/cache.h"
#include "obs/metrics.h"
#include "scheduler/scheduler.h"
#include "storage/disk/block_store.h"
#include "storage/remote/remote_store.h"

namespace terrace::scheduler {

using engine::Golden;
using engine::Rig;
using engine::TempFolder;

inline std::vector<int32_t> RandomPrompt(Random& random, size_t tokens, uint64_t vocab = 500) {
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(vocab));
  return prompt;
}

inline std::string Arch(const std::string& name) {
  return std::string(TERRACE_TEST_DATA) + "/golden/arch/" + name;
}

// What a sink heard. Shared between the test and the sink, which the scheduler owns.
struct Heard {
  absl::Mutex mutex;
  std::vector<int32_t> tokens;
  FinishInfo info;
  absl::Notification finished;

  std::vector<int32_t> Tokens() {
    absl::MutexLock lock(&mutex);
    return tokens;
  }
};

class RecordingSink final : public TokenSink {
 public:
  RecordingSink(std::shared_ptr<Heard> heard, int stop_after)
      : heard_(std::move(heard)), stop_after_(stop_after) {}
  bool OnToken(const TokenEvent& event) override {
    absl::MutexLock lock(&heard_->mutex);
    heard_->tokens.push_back(event.token);
    return stop_after_ < 0 || static_cast<int>(heard_->tokens.size()) < stop_after_;
  }
  void OnFinish(const FinishInfo& info) override {
    heard_->info = info;
    heard_->finished.Notify();
  }

 private:
  std::shared_ptr<Heard> heard_;
  int stop_after_;
};

class SchedulerTest : public testing::Test {
 protected:
  void Start(uint64_t budget_bytes, SchedulerOptions options = {}) {
    rig_ = std::make_unique<Rig>(variant_, budget_bytes, 2, true);
    if (use_cache_) {
      storage::BlockStoreOptions store_options;
      store_options.folder = folder_.path();
      store_options.cap_bytes = disk_cap_bytes_;
      auto store = storage::BlockStore::Open(store_options, &rig_->clock());
      ASSERT_TRUE(store.ok()) << store.status();
      store_ = *std::move(store);
      cache_ = std::make_unique<kv::Cache>(&rig_->manager(), store_.get(), &rig_->clock());
      cache_->SetRemote(remote_);
      if (host_bytes_ > 0) {
        host_ = std::make_unique<kv::HostStore>(&rig_->manager(), host_bytes_);
        cache_->SetHost(host_.get());
      }
      rig_->manager().SetIdleMemory(cache_.get());
      options.cache = cache_.get();
    }
    scheduler_ = Scheduler::Create(options, &rig_->engine(), &rig_->clock(), &metrics_);
  }

  void Add(const std::string& arch, engine::EngineModelOptions options = {}) {
    std::shared_ptr<engine::EngineModel> model =
        rig_->Open(Arch(arch) + ".gguf", arch, true, std::move(options));
    ASSERT_NE(model, nullptr);
    ASSERT_TRUE(model->weights().WaitForImage().ok());
    weight_bytes_[arch] = model->weights().total_bytes();
    ASSERT_TRUE(scheduler_->AddModel(std::move(model)).ok());
  }

  std::unique_ptr<Request> MakeRequest(const std::string& id, const std::string& model,
                                       std::vector<int32_t> prompt, int32_t max_tokens) {
    auto request = std::make_unique<Request>();
    request->id = id;
    request->model = model;
    request->prompt = std::move(prompt);
    request->max_tokens = max_tokens;
    request->sampling.temperature = 0;
    return request;
  }

  std::shared_ptr<Heard> Send(std::unique_ptr<Request> request, int stop_after = -1) {
    auto heard = std::make_shared<Heard>();
    request->sink = std::make_unique<RecordingSink>(heard, stop_after);
    absl::Status status = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    return heard;
  }

  std::vector<int32_t> Answer(const std::string& id, const std::string& model,
                              const std::vector<int32_t>& prompt, int32_t max_tokens) {
    auto heard = Send(MakeRequest(id, model, prompt, max_tokens));
    heard->finished.WaitForNotification();
    EXPECT_TRUE(heard->info.status.ok()) << heard->info.status;
    last_ = heard->info;
    return heard->Tokens();
  }

  uint64_t KvBytes() {
    uint64_t bytes = 0;
    for (const tier::LedgerLine& line : rig_->manager().Snapshot().ledger) {
      if (line.owner.kind == tier::Kind::kKv) bytes += line.bytes;
    }
    return bytes;
  }

  // Sequences that gave way so far, whatever became of their KV.
  double Preemptions() {
    const std::string text = metrics_.Render();
    const std::regex line("terrace_kv_preemptions_total\\{[^}]*\\} ([0-9.]+)");
    double sum = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) {
      sum += std::stod((*it)[1]);
    }
    return sum;
  }

  // Ends the scheduler, the cache and the disk store as a server that stops does; a later Start
  // finds what lies in the folder.
  void Stop() {
    scheduler_.reset();
    cache_.reset();
    host_.reset();
    store_.reset();
  }

  std::string variant_ = ops::BestCpuVariant();
  bool use_cache_ = false;
  uint64_t disk_cap_bytes_ = 64 * kMiB;
  storage::RemoteStore* remote_ = nullptr;
  uint64_t host_bytes_ = 0;  // of KV on the host, for devices with memory of their own
  TempFolder folder_;
  Metrics metrics_;
  std::map<std::string, uint64_t> weight_bytes_;
  std::unique_ptr<Rig> rig_;
  std::unique_ptr<storage::BlockStore> store_;
  std::unique_ptr<kv::HostStore> host_;
  std::unique_ptr<kv::Cache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  FinishInfo last_;
};

class CachedSchedulerTest : public SchedulerTest {
 protected:
  CachedSchedulerTest() { use_cache_ = true; }
};

}  // namespace terrace::scheduler

#endif  // TERRACE_TESTS_SCHEDULER_FIXTURE_H_
