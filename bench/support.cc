#include "support.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/model_argument.h"
#include "os/direct_file.h"
#include "os/mapping.h"
#include "os/uring.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

// Notes when the first token came and waits for the end.
class Waiter {
 public:
  explicit Waiter(const Clock* clock) : clock_(*clock) {}

  class Sink final : public TokenSink {
   public:
    explicit Sink(Waiter* waiter) : waiter_(*waiter) {}
    bool OnToken(const TokenEvent& event) override {
      absl::MutexLock lock(&waiter_.mutex_);
      waiter_.text_.push_back(event.token);
      if (waiter_.first_us_ == 0) waiter_.first_us_ = waiter_.clock_.NowUs();
      return true;
    }
    void OnFinish(const FinishInfo& info) override {
      absl::MutexLock lock(&waiter_.mutex_);
      waiter_.info_ = info;
      waiter_.done_ = true;
    }

   private:
    Waiter& waiter_;
  };

  FinishInfo Wait(int64_t* first_us, std::vector<int32_t>* text) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
    *first_us = first_us_;
    *text = text_;
    return info_;
  }

 private:
  const Clock& clock_;
  absl::Mutex mutex_;
  int64_t first_us_ ABSL_GUARDED_BY(mutex_) = 0;
  FinishInfo info_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> text_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

void SetDefaults(const Context& context, server::Config* config) {
  config->storage.disk_path = context.cache_folder + "/store";
  config->memory.hot_keep_us = 0;
  config->device.threads = context.threads;
}

}  // namespace

server::Config Bed::DefaultConfig(const Context& context) {
  server::Config config;
  SetDefaults(context, &config);
  return config;
}

absl::StatusOr<std::unique_ptr<Bed>> Bed::Create(const Context& context, uint64_t budget_bytes,
                                                 const std::string& policy) {
  server::Config config;
  config.memory.eviction_policy = policy;
  if (budget_bytes > 0) config.memory.device_budget_bytes = budget_bytes;
  return Create(context, std::move(config));
}

absl::StatusOr<std::unique_ptr<Bed>> Bed::Create(const Context& context, server::Config config) {
  SetDefaults(context, &config);
  return CreateFrom(context, config);
}

absl::StatusOr<std::unique_ptr<Bed>> Bed::CreateFrom(const Context& context,
                                                     const server::Config& config) {
  auto bed = std::make_unique<Bed>();
  bed->store_ = cli::ImageFolder(config);
  bed->clock_ = context.clock;
  ASSIGN_OR_RETURN(bed->runtime_, cli::Runtime::Create(config));
  bed->scheduler_ = scheduler::Scheduler::Create({}, &bed->runtime_->engine(),
                                                 &bed->runtime_->clock(), &bed->metrics_);
  return bed;
}

absl::StatusOr<std::shared_ptr<engine::EngineModel>> Bed::Open(const std::string& name,
                                                               const std::string& path,
                                                               bool wait_for_image) {
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model,
                   runtime_->OpenModel(name, path, 0, 0));
  if (wait_for_image) RETURN_IF_ERROR(model->weights().WaitForImage());
  RETURN_IF_ERROR(scheduler_->AddModel(model));
  models_.push_back(model);
  return model;
}

absl::StatusOr<Served> Bed::FirstToken(const engine::EngineModel& model, int32_t prompt_tokens,
                                       uint64_t salt) {
  const uint64_t loaded_before = LoadedBytes();
  ASSIGN_OR_RETURN(const Answered answered, Answer(model, prompt_tokens, 1, salt));
  return Served{answered.first_token_us, answered.swap_us, LoadedBytes() - loaded_before};
}

absl::StatusOr<Answered> Bed::Answer(const engine::EngineModel& model, int32_t prompt_tokens,
                                     int32_t tokens, uint64_t salt) {
  auto request = std::make_unique<Request>();
  request->id = fmt::format("bench-{}", ++asked_);
  request->model = model.name();
  request->max_tokens = tokens;
  request->sampling.temperature = 0;
  Random random(salt);
  for (int32_t i = 0; i < prompt_tokens; ++i) {
    request->prompt.push_back(
        static_cast<int32_t>(random.Below(static_cast<uint64_t>(model.vocab_size()))));
  }
  Waiter waiter(clock_);
  request->sink = std::make_unique<Waiter::Sink>(&waiter);
  const int64_t start_us = clock_->NowUs();
  RETURN_IF_ERROR(scheduler_->Submit(std::move(request)));
  int64_t first_us = 0;
  std::vector<int32_t> text;
  const FinishInfo info = waiter.Wait(&first_us, &text);
  if (info.reason == FinishReason::kError) return info.status;
  return Answered{first_us - start_us, clock_->NowUs() - start_us, info.timings.swap_us,
                  info.moved_bytes,    info.completion_tokens,     std::move(text)};
}

uint64_t Bed::LoadedBytes(std::string_view from) const {
  uint64_t bytes = 0;
  for (const tier::LinkState& link : runtime_->manager().Snapshot().links) {
    if (link.name.starts_with(from)) bytes += link.bytes;
  }
  return bytes;
}

std::string Bed::ImagePath(const engine::EngineModel& model) const {
  return fmt::format("{}/{}/blocks.bin", store_, model.weights().fingerprint());
}

absl::StatusOr<double> BareReadRate(const std::string& path, const Clock& clock, ReadInto into) {
  constexpr uint64_t kRead = 4 * kMiB;
  constexpr uint64_t kDepth = 8;
  ASSIGN_OR_RETURN(std::unique_ptr<os::DirectFile> file, os::DirectFile::OpenForRead(path));
  const bool ring = into == ReadInto::kRing;
  const uint64_t memory_bytes = ring ? kRead * kDepth : AlignUp(file->size(), kRead);
  ASSIGN_OR_RETURN(os::Mapping memory, os::Mapping::Anonymous(memory_bytes, {.populate = true}));
  os::AsyncIoOptions options;
  options.depth = kDepth;
  if (ring) options.registered = {memory.span()};
  absl::Mutex mutex;
  uint64_t next = 0;
  uint64_t left = file->size() / kRead;
  bool failed = false;
  if (left == 0) return absl::InvalidArgumentError(fmt::format("{} is too small", path));
  const uint64_t reads = left;
  std::function<void(uint64_t)> start;
  // Declared after what its callbacks use: it waits for them.
  ASSIGN_OR_RETURN(std::unique_ptr<os::AsyncIo> io, os::AsyncIo::Create(options));
  start = [&](uint64_t slot) {
    uint64_t index = 0;
    {
      absl::MutexLock lock(&mutex);
      if (next == reads) return;
      index = next++;
    }
    io->Read(file->fd(), index * kRead, memory.span().subspan((ring ? slot : index) * kRead, kRead),
             [&, slot](int64_t result) {
               {
                 absl::MutexLock lock(&mutex);
                 failed |= result != static_cast<int64_t>(kRead);
                 --left;
               }
               start(slot);
             });
  };
  const int64_t start_us = clock.NowUs();
  for (uint64_t slot = 0; slot < std::min(kDepth, reads); ++slot) start(slot);
  {
    absl::MutexLock lock(&mutex);
    auto done = [&] { return left == 0; };
    mutex.Await(absl::Condition(&done));
    if (failed) return absl::UnavailableError(fmt::format("reading {} failed", path));
  }
  const auto us = static_cast<double>(clock.NowUs() - start_us);
  return static_cast<double>(reads * kRead) / us * 1e6;
}

}  // namespace terrace::bench
