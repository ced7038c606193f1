// What KV that is kept is worth: the first token of a conversation that returns, from each place
// its KV may lie in, beside computing it again; and how streams share a model.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "cli/runtime.h"
#include "generate_model.h"
#include "kv/cache.h"
#include "llama_peer.h"
#include "obs/metrics.h"
#include "scheduler/scheduler.h"
#include "support.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

constexpr int32_t kNewTokens = 16;
constexpr std::string_view kName = "m";
constexpr std::string_view kOther = "other";

// One request's tokens as they come.
struct Stream {
  absl::Mutex mutex;
  std::vector<int64_t> token_us ABSL_GUARDED_BY(mutex);
  FinishInfo info ABSL_GUARDED_BY(mutex);
  bool done ABSL_GUARDED_BY(mutex) = false;
  int64_t start_us = 0;
};

class StreamSink final : public TokenSink {
 public:
  StreamSink(std::shared_ptr<Stream> stream, const Clock* clock)
      : stream_(std::move(stream)), clock_(*clock) {}
  bool OnToken(const TokenEvent&) override {
    absl::MutexLock lock(&stream_->mutex);
    stream_->token_us.push_back(clock_.NowUs());
    return true;
  }
  void OnFinish(const FinishInfo& info) override {
    absl::MutexLock lock(&stream_->mutex);
    stream_->info = info;
    stream_->done = true;
  }

 private:
  std::shared_ptr<Stream> stream_;
  const Clock& clock_;
};

struct Answer {
  double first_ms = 0;
  std::vector<double> gaps_ms;
  double end_us = 0;
  uint64_t loaded_bytes = 0;  // of the model's weights, from when it was asked on
  FinishInfo info;
};

// A server without its HTTP part, which can be stopped and started on the same folder.
class KvBed {
 public:
  KvBed(const Context& context, std::string model_path)
      : context_(context), model_path_(std::move(model_path)) {
    config_.storage.disk_path = context.cache_folder + "/kv-bench";
    config_.device.threads = context.threads;
    config_.kv.disk_bytes = 2 * kGiB;
    std::error_code ignored;
    std::filesystem::remove_all(config_.storage.disk_path + "/kv", ignored);
  }
  ~KvBed() { Stop(); }

  absl::Status Start() {
    ASSIGN_OR_RETURN(runtime_, cli::Runtime::Create(config_));
    scheduler::SchedulerOptions options;
    options.max_batch = 64;
    options.cache = &runtime_->kv_cache();
    metrics_ = std::make_unique<Metrics>();
    scheduler_ = scheduler::Scheduler::Create(options, &runtime_->engine(), &runtime_->clock(),
                                              metrics_.get());
    ASSIGN_OR_RETURN(model_, runtime_->OpenModel(std::string(kName), model_path_, 0, 0));
    RETURN_IF_ERROR(model_->weights().WaitForImage());
    return scheduler_->AddModel(model_);
  }
  void Stop() {
    scheduler_.reset();
    model_.reset();
    other_.reset();
    runtime_.reset();
  }
  // Anew, on the same folder, with room for `budget_bytes` and the model `other_path` beside.
  absl::Status RestartWithOther(uint64_t budget_bytes, const std::string& other_path) {
    Stop();
    config_.memory.device_budget_bytes = budget_bytes;
    RETURN_IF_ERROR(Start());
    ASSIGN_OR_RETURN(other_, runtime_->OpenModel(std::string(kOther), other_path, 0, 0));
    RETURN_IF_ERROR(other_->weights().WaitForImage());
    return scheduler_->AddModel(other_);
  }

  std::shared_ptr<Stream> Send(std::vector<int32_t> prompt, int32_t tokens, absl::Status* status,
                               std::string_view model = kName) {
    auto stream = std::make_shared<Stream>();
    auto request = std::make_unique<Request>();
    request->id = fmt::format("bench-{}", ++asked_);
    request->model = model;
    request->max_tokens = tokens;
    request->sampling.temperature = 0;
    request->prompt = std::move(prompt);
    request->sink = std::make_unique<StreamSink>(stream, context_.clock);
    stream->start_us = context_.clock->NowUs();
    *status = scheduler_->Submit(std::move(request));
    return stream;
  }
  static absl::StatusOr<Answer> Wait(Stream& stream) {
    absl::MutexLock lock(&stream.mutex);
    stream.mutex.Await(absl::Condition(&stream.done));
    if (stream.info.reason == FinishReason::kError) return stream.info.status;
    Answer answer;
    answer.info = stream.info;
    const std::vector<int64_t>& times = stream.token_us;
    if (times.empty()) return absl::InternalError("a request ended without a token");
    answer.first_ms = static_cast<double>(times[0] - stream.start_us) * 1e-3;
    for (size_t i = 1; i < times.size(); ++i) {
      answer.gaps_ms.push_back(static_cast<double>(times[i] - times[i - 1]) * 1e-3);
    }
    answer.end_us = static_cast<double>(times.back());
    return answer;
  }
  absl::StatusOr<Answer> Ask(std::vector<int32_t> prompt, int32_t tokens,
                             std::string_view model = kName) {
    // Some come before the first step begins: the request's own figure does not count these.
    const tier::ModelId id = (model == kName ? *model_ : *other_).weights().tier_id();
    const uint64_t loaded_before = runtime_->manager().LoadedBytes(id);
    absl::Status status;
    std::shared_ptr<Stream> stream = Send(std::move(prompt), tokens, &status, model);
    RETURN_IF_ERROR(status);
    ASSIGN_OR_RETURN(Answer answer, Wait(*stream));
    answer.loaded_bytes = runtime_->manager().LoadedBytes(id) - loaded_before;
    return answer;
  }

  std::vector<int32_t> Prompt(uint64_t seed, int32_t tokens) const {
    Random random(seed);
    std::vector<int32_t> out;
    for (int32_t i = 0; i < tokens; ++i) {
      out.push_back(
          static_cast<int32_t>(random.Below(static_cast<uint64_t>(model_->vocab_size()))));
    }
    return out;
  }
  // The conversation and `turn`'s new tokens behind it.
  std::vector<int32_t> Turn(const std::vector<int32_t>& conversation, uint64_t turn) const {
    std::vector<int32_t> out = conversation;
    const std::vector<int32_t> more = Prompt(9000 + turn, kNewTokens);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }

  double BytesPerToken() const {
    return static_cast<double>(model_->KvBytes(kv::kBlockTokens)) / kv::kBlockTokens;
  }
  cli::Runtime& runtime() { return *runtime_; }
  kv::Cache& cache() { return runtime_->kv_cache(); }
  const engine::EngineModel& model() const { return *model_; }
  std::string image() const {
    return fmt::format("{}/images/{}/blocks.bin", config_.storage.disk_path,
                       model_->weights().fingerprint());
  }

 private:
  const Context& context_;
  std::string model_path_;
  server::Config config_;
  uint64_t asked_ = 0;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<cli::Runtime> runtime_;
  std::shared_ptr<engine::EngineModel> model_, other_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
};

// Measures of this run that the rows stand beside.
struct Yardsticks {
  double recompute_ms = 0;
  double decode_ms = 0;      // a step of one token behind the whole conversation
  double attention_ms = 0;   // of that, for looking back over the conversation
  double new_tokens_ms = 0;  // computing as many new tokens alone
  double returned_ms = 0;    // law (a)

  double Hot() const { return decode_ms + new_tokens_ms; }
};

// What bare reads of a file give, bytes/s.
struct DiskRates {
  double ring = 0;  // into little memory, again and again
  double all = 0;   // into memory for all of it
  static absl::StatusOr<DiskRates> Measure(const std::string& path, const Clock& clock) {
    DiskRates rates;
    ASSIGN_OR_RETURN(rates.ring, BareReadRate(path, clock));
    ASSIGN_OR_RETURN(rates.all, BareReadRate(path, clock, ReadInto::kAll));
    return rates;
  }
};

// One law measured some times, each beside bare reads right before it: the disk's speed changes.
class DiskLaw {
 public:
  // `bytes_per_token` of KV.
  DiskLaw(const Context& context, std::string law, double bytes_per_token)
      : context_(context), law_(std::move(law)), bytes_per_token_(bytes_per_token) {}

  void Note(const Answer& answer, const DiskRates& bare) {
    const double bytes =
        bytes_per_token_ * answer.info.restored_tokens + static_cast<double>(answer.loaded_bytes);
    first_ms_.push_back(answer.first_ms);
    all_ms_.push_back(std::max(bytes / bare.all * 1e3, least_ms_));
    ring_ms_.push_back(bytes / bare.ring * 1e3);
    ratios_.push_back(answer.first_ms / all_ms_.back());
    context_.say(fmt::format(
        "{}: {:.1f} ms, bare reads {:.1f} ms; {} of {} tokens cached, {} restored, "
        "{:.0f} MB of weights, {:.1f} ms queued, {:.1f} ms waiting for weights; {}",
        law_, answer.first_ms, all_ms_.back(), answer.info.cached_tokens, answer.info.prompt_tokens,
        answer.info.restored_tokens, static_cast<double>(answer.loaded_bytes) * 1e-6,
        static_cast<double>(answer.info.timings.queue_us) * 1e-3,
        static_cast<double>(answer.info.timings.swap_us) * 1e-3, answer.info.kv_choice));
  }
  const std::string& law() const { return law_; }
  // What the answer takes with everything in memory.
  void set_least_ms(double least_ms) { least_ms_ = least_ms; }
  // None if it was not measured.
  void AddRows(const Yardsticks& yard, std::vector<Row>* rows) const {
    if (first_ms_.empty()) return;
    const double first_ms = Median(first_ms_);
    const bool recompute = yard.recompute_ms < Median(all_ms_);
    rows->push_back({.law = law_ + ": first token",
                     .measured = first_ms,
                     .unit = "ms",
                     .reference = recompute ? yard.recompute_ms : first_ms / Median(ratios_),
                     .reference_name = recompute ? "recompute" : "bytes / bare reads",
                     .goal_kind = Goal::kAtMost,
                     .goal = 1.15});
    rows->push_back({.law = law_ + ", beside reads into little memory",
                     .measured = first_ms,
                     .unit = "ms",
                     .reference = Median(ring_ms_),
                     .reference_name = "bytes / such reads"});
    rows->push_back({.law = law_ + ", beside recomputing",
                     .measured = first_ms,
                     .unit = "ms",
                     .reference = yard.recompute_ms,
                     .reference_name = "recompute"});
  }

 private:
  const Context& context_;
  const std::string law_;
  const double bytes_per_token_;
  double least_ms_ = 0;
  std::vector<double> first_ms_, all_ms_, ring_ms_, ratios_;
};

// llama.cpp keeps the last conversation of a slot in memory: the new tokens behind it.
absl::Status BesidePeer(const Context& context, const std::string& model, int32_t length,
                        double returned_ms, std::vector<Row>* rows) {
  const std::string law = "(a) beside llama.cpp that holds the conversation: first token";
  const std::string library = FindLlamaLibrary(context.peer_library, context.cache_folder);
  if (!context.compare || library.empty() || !context.WantsLaw(law)) return absl::OkStatus();
  context.say("llama.cpp");
  const auto peer = LlamaPeer::Load(library, context.threads, context.clock);
  if (!peer.ok()) {  // what was measured before is not lost by that
    context.say(Message(peer.status()));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR((*peer)->Open(model));
  ASSIGN_OR_RETURN(const double seconds, (*peer)->Decode(length, 1, 5, kNewTokens));
  rows->push_back({.law = law,
                   .measured = returned_ms,
                   .unit = "ms",
                   .reference = seconds * 1e3,
                   .reference_name = "llama.cpp"});
  return absl::OkStatus();
}

absl::Status FromMemory(const Context& context, KvBed& bed, const std::vector<int32_t>& talk,
                        Yardsticks* yard, std::vector<Row>* rows) {
  const auto length = static_cast<int32_t>(talk.size());
  RETURN_IF_ERROR(bed.Ask(bed.Prompt(1, 64), 2).status());  // weights and workspace are there
  context.say("recomputing");
  ASSIGN_OR_RETURN(Answer first, bed.Ask(talk, 8));
  yard->recompute_ms = first.first_ms;
  ASSIGN_OR_RETURN(Answer short_one, bed.Ask(bed.Prompt(78, 8), 9));
  std::vector<double> alone, returned, steps = first.gaps_ms;
  for (uint64_t i = 0; i < 5; ++i) {
    ASSIGN_OR_RETURN(Answer fresh, bed.Ask(bed.Prompt(100 + i, kNewTokens), 1));
    alone.push_back(fresh.first_ms);
    ASSIGN_OR_RETURN(Answer back, bed.Ask(bed.Turn(talk, i), 3));
    returned.push_back(back.first_ms);
    steps.insert(steps.end(), back.gaps_ms.begin(), back.gaps_ms.end());
    if (back.info.cached_tokens < length / 16 * 16) {
      return absl::InternalError("the conversation was not found in memory");
    }
  }
  // Alone: their look back over the conversation is not granted. What decoding shows it to cost a
  // row is printed only, because rows that look back together share its reading.
  yard->new_tokens_ms = Median(alone);
  yard->returned_ms = Median(returned);
  yard->decode_ms = Median(steps);
  yard->attention_ms = std::max(yard->decode_ms - Median(short_one.gaps_ms), 0.0);
  context.say(
      fmt::format("a decode step {:.1f} ms, of which looking back {:.1f} ms; {} new tokens "
                  "alone {:.1f} ms",
                  yard->decode_ms, yard->attention_ms, kNewTokens, Median(alone)));
  rows->push_back({.law = "(a) conversation returns, nothing else happened: first token",
                   .measured = Median(returned),
                   .unit = "ms",
                   .reference = yard->Hot(),
                   .reference_name = "one decode step + the new tokens' prefill",
                   .goal_kind = Goal::kAtMost,
                   .goal = 1.3});
  constexpr std::string_view kAfterOthers =
      "(b) after eight other conversations, from RAM: recompute over first token";
  if (!context.WantsLaw(kAfterOthers)) return absl::OkStatus();
  context.say("eight other conversations");
  for (uint64_t i = 0; i < 8; ++i) {
    RETURN_IF_ERROR(bed.Ask(bed.Prompt(200 + i, length / 8), 4).status());
  }
  ASSIGN_OR_RETURN(Answer back, bed.Ask(bed.Turn(talk, 50), 1));
  rows->push_back({.law = std::string(kAfterOthers),
                   .measured = yard->recompute_ms / back.first_ms,
                   .unit = "x",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 20});
  return absl::OkStatus();
}

// Pushed to disk; and the same after a restart.
absl::Status FromDisk(const Context& context, KvBed& bed, const std::vector<int32_t>& talk,
                      const Yardsticks& yard, std::vector<Row>* rows) {
  bed.cache().Flush();
  bed.cache().Clear();
  // A first load tells the rate by which later ones are weighed; it is not measured.
  RETURN_IF_ERROR(bed.Ask(bed.Turn(talk, 60), 1).status());
  DiskLaw pushed(context, "(c) pushed to disk", bed.BytesPerToken());
  DiskLaw restarted(context, "(d) server restarted, weights back", bed.BytesPerToken());
  const int rounds = context.quick ? 1 : 3;
  for (int i = 0; i < rounds && context.WantsLaw(pushed.law()); ++i) {
    bed.cache().Clear();
    ASSIGN_OR_RETURN(const DiskRates bare, DiskRates::Measure(bed.image(), *context.clock));
    ASSIGN_OR_RETURN(Answer disk, bed.Ask(bed.Turn(talk, 61 + static_cast<uint64_t>(i)), 1));
    pushed.Note(disk, bare);
  }
  pushed.AddRows(yard, rows);
  for (int i = 0; i < rounds && context.WantsLaw(restarted.law()); ++i) {
    bed.Stop();
    RETURN_IF_ERROR(bed.Start());
    RETURN_IF_ERROR(bed.Ask(bed.Prompt(2, 64), 2).status());  // weights are back
    ASSIGN_OR_RETURN(const DiskRates bare, DiskRates::Measure(bed.image(), *context.clock));
    ASSIGN_OR_RETURN(Answer again, bed.Ask(bed.Turn(talk, 71 + static_cast<uint64_t>(i)), 1));
    restarted.Note(again, bare);
  }
  restarted.AddRows(yard, rows);
  return absl::OkStatus();
}

// Another model takes the room, and goes again. With a conversation as long as ours: weights and KV
// come from disk together. With a short one: only weights went.
absl::Status Swapped(const Context& context, KvBed& bed, const std::vector<int32_t>& talk,
                     const Yardsticks& yard, std::vector<Row>* rows) {
  DiskLaw both(context, "(e) model swapped out and back, KV on disk", bed.BytesPerToken());
  DiskLaw kept(context, "(e) model swapped out and back, KV still in RAM", bed.BytesPerToken());
  kept.set_least_ms(yard.Hot());
  if (!context.WantsLaw(both.law()) && !context.WantsLaw(kept.law())) return absl::OkStatus();
  GenerateOptions options;
  options.seed = 2;
  if (context.quick) {
    ASSIGN_OR_RETURN(options.shape, FindShape("small"));
  }
  ASSIGN_OR_RETURN(const std::string other, CachedModel(options, context.cache_folder));
  const uint64_t kv_bytes = bed.model().KvBytes(static_cast<int32_t>(talk.size()) + 64);
  const uint64_t budget = bed.model().weights().total_bytes() + kv_bytes + kv_bytes / 8 +
                          bed.runtime().engine().workspace_bytes();
  RETURN_IF_ERROR(bed.RestartWithOther(budget, other));
  context.say("the other model's conversation");
  for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(bed.Ask(talk, 1, kOther).status());
  bed.cache().Flush();
  for (uint64_t i = 0; i < (context.quick ? 1 : 4); ++i) {
    bed.cache().Clear();  // what of our KV found room beside the other's
    ASSIGN_OR_RETURN(DiskRates bare, DiskRates::Measure(bed.image(), *context.clock));
    ASSIGN_OR_RETURN(Answer back, bed.Ask(bed.Turn(talk, 81 + i), 1));
    // The first tells rates.
    if (i > 0 || context.quick) both.Note(back, bare);
    RETURN_IF_ERROR(bed.Ask(bed.Prompt(300 + i, 64), 1, kOther).status());
    ASSIGN_OR_RETURN(bare, DiskRates::Measure(bed.image(), *context.clock));
    ASSIGN_OR_RETURN(back, bed.Ask(bed.Turn(talk, 91 + i), 1));
    if (i > 0 || context.quick) kept.Note(back, bare);
    RETURN_IF_ERROR(bed.Ask(talk, 1, kOther).status());
  }
  both.AddRows(yard, rows);
  kept.AddRows(yard, rows);
  return absl::OkStatus();
}

// Tokens of all streams while every one of them decodes: from the last one's first token to the
// first one's last.
absl::StatusOr<double> SteadyRate(KvBed& bed, int32_t streams, int32_t tokens) {
  std::vector<std::shared_ptr<Stream>> running;
  for (int32_t i = 0; i < streams; ++i) {
    absl::Status status;
    running.push_back(
        bed.Send(bed.Prompt(3000 + static_cast<uint64_t>(streams * 100 + i), 8), tokens, &status));
    RETURN_IF_ERROR(status);
  }
  int64_t from_us = 0, to_us = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> all;
  for (auto& stream : running) {
    RETURN_IF_ERROR(KvBed::Wait(*stream).status());
    absl::MutexLock lock(&stream->mutex);
    from_us = std::max(from_us, stream->token_us.front());
    to_us = std::min(to_us, stream->token_us.back());
    all.insert(all.end(), stream->token_us.begin(), stream->token_us.end());
  }
  if (to_us <= from_us) return absl::InternalError("the streams never all decoded together");
  const auto inside = std::count_if(all.begin(), all.end(),
                                    [&](int64_t us) { return us > from_us && us <= to_us; });
  return static_cast<double>(inside) * 1e6 / static_cast<double>(to_us - from_us);
}

absl::Status Throughput(const Context& context, KvBed& bed, std::vector<Row>* rows) {
  double best = 0, worst_share = 1;
  for (const int32_t streams : {1, 2, 4, 8, 16, 32}) {
    // Enough for the last to begin long before the first ends.
    const int32_t tokens = (context.quick ? 16 : 32) + 3 * streams;
    ASSIGN_OR_RETURN(double rate, SteadyRate(bed, streams, tokens));
    best = std::max(best, rate);
    worst_share = std::min(worst_share, rate / best);
    rows->push_back({.law = fmt::format("{} streams: tokens of all", streams),
                     .measured = rate,
                     .unit = "tokens/s"});
  }
  rows->push_back({.law = "more streams never give less: lowest share of the best before",
                   .measured = worst_share,
                   .unit = "x",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 0.95});
  return absl::OkStatus();
}

// Eight streams, into which a long prompt arrives.
absl::Status Gaps(const Context& context, KvBed& bed, int32_t prompt_tokens,
                  std::vector<Row>* rows) {
  const int32_t tokens = context.quick ? 60 : 300;
  absl::Status status;
  std::vector<std::shared_ptr<Stream>> running;
  for (uint64_t i = 0; i < 8; ++i) {
    running.push_back(bed.Send(bed.Prompt(5000 + i, 8), tokens, &status));
    RETURN_IF_ERROR(status);
  }
  auto long_one = bed.Send(bed.Prompt(6000, prompt_tokens), 1, &status);
  RETURN_IF_ERROR(status);
  std::vector<double> gaps;
  double ended_us = 0;
  for (auto& stream : running) {
    ASSIGN_OR_RETURN(Answer answer, KvBed::Wait(*stream));
    gaps.insert(gaps.end(), answer.gaps_ms.begin(), answer.gaps_ms.end());
    ended_us = std::max(ended_us, answer.end_us);
  }
  ASSIGN_OR_RETURN(Answer prefill, KvBed::Wait(*long_one));
  std::sort(gaps.begin(), gaps.end());
  const double p50 = gaps[gaps.size() / 2], p99 = gaps[gaps.size() * 99 / 100];
  context.say(fmt::format("gaps: p10 {:.1f}, p50 {:.1f}, p90 {:.1f}, p99 {:.1f}, longest {:.1f} ms",
                          gaps[gaps.size() / 10], p50, gaps[gaps.size() * 9 / 10], p99,
                          gaps.back()));
  rows->push_back(
      {.law = fmt::format("8 streams while {} prompt tokens arrive: gap p99", prompt_tokens),
       .measured = p99,
       .unit = "ms",
       .reference = p50,
       .reference_name = "p50",
       .goal_kind = Goal::kAtMost,
       .goal = 2});
  rows->push_back(
      {.law = "first token of that prompt", .measured = prefill.first_ms, .unit = "ms"});
  return absl::OkStatus();
}

// Many short prompts beside streams that decode: how long until each has its first token, beside
// reading all their tokens as one prompt.
absl::Status ManyShort(const Context& context, KvBed& bed, std::vector<Row>* rows) {
  constexpr int32_t kPrompts = 16, kPromptTokens = 24;
  const int32_t tokens = context.quick ? 60 : 120;
  ASSIGN_OR_RETURN(Answer alone, bed.Ask(bed.Prompt(7999, kPrompts * kPromptTokens), 1));
  absl::Status status;
  std::vector<std::shared_ptr<Stream>> running, arriving;
  for (uint64_t i = 0; i < 4; ++i) {
    running.push_back(bed.Send(bed.Prompt(7000 + i, 8), tokens, &status));
    RETURN_IF_ERROR(status);
  }
  for (auto& stream : running) {
    absl::MutexLock lock(&stream->mutex);
    auto decodes = [&stream]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return stream->token_us.size() >= 4 || stream->done;
    };
    stream->mutex.Await(absl::Condition(&decodes));
  }
  for (uint64_t i = 0; i < kPrompts; ++i) {
    arriving.push_back(bed.Send(bed.Prompt(7100 + i, kPromptTokens), 1, &status));
    RETURN_IF_ERROR(status);
  }
  std::vector<double> first;
  for (auto& stream : arriving) {
    ASSIGN_OR_RETURN(Answer answer, KvBed::Wait(*stream));
    first.push_back(answer.first_ms);
  }
  for (auto& stream : running) RETURN_IF_ERROR(KvBed::Wait(*stream).status());
  std::sort(first.begin(), first.end());
  const std::string law = fmt::format("{} prompts of {} tokens beside 4 streams: first token of ",
                                      kPrompts, kPromptTokens);
  const std::string reference = "all of them as one prompt, alone";
  rows->push_back({.law = law + "half of them",
                   .measured = first[first.size() / 2],
                   .unit = "ms",
                   .reference = alone.first_ms,
                   .reference_name = reference});
  rows->push_back({.law = law + "the last",
                   .measured = first.back(),
                   .unit = "ms",
                   .reference = alone.first_ms,
                   .reference_name = reference});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunKv(const Context& context) {
  GenerateOptions options;
  if (context.quick) {
    ASSIGN_OR_RETURN(options.shape, FindShape("small"));
  }
  ASSIGN_OR_RETURN(std::string path, CachedModel(options, context.cache_folder));
  const int32_t length = context.quick ? 512 : 4096;
  KvBed bed(context, path);
  RETURN_IF_ERROR(bed.Start());
  const std::vector<int32_t> talk = bed.Prompt(42, length);
  std::vector<Row> rows;
  Yardsticks yard;
  RETURN_IF_ERROR(FromMemory(context, bed, talk, &yard, &rows));
  RETURN_IF_ERROR(FromDisk(context, bed, talk, yard, &rows));
  RETURN_IF_ERROR(Swapped(context, bed, talk, yard, &rows));
  RETURN_IF_ERROR(bed.runtime().manager().CheckInvariants());
  bed.Stop();
  RETURN_IF_ERROR(BesidePeer(context, path, length, yard.returned_ms, &rows));
  return rows;
}

absl::StatusOr<std::vector<Row>> RunStreams(const Context& context) {
  GenerateOptions options;
  if (context.quick) {
    ASSIGN_OR_RETURN(options.shape, FindShape("small"));
  }
  ASSIGN_OR_RETURN(std::string path, CachedModel(options, context.cache_folder));
  KvBed bed(context, path);
  RETURN_IF_ERROR(bed.Start());
  RETURN_IF_ERROR(bed.Ask(bed.Prompt(1, 64), 2).status());
  std::vector<Row> rows;
  RETURN_IF_ERROR(Gaps(context, bed, context.quick ? 512 : 4096, &rows));
  RETURN_IF_ERROR(ManyShort(context, bed, &rows));
  RETURN_IF_ERROR(Throughput(context, bed, &rows));
  RETURN_IF_ERROR(bed.runtime().manager().CheckInvariants());
  return rows;
}

}  // namespace terrace::bench
