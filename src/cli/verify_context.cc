// terrace verify context: a prompt as long as the model's context, read in large pieces and in
// small ones. What the model thinks of each of its tokens must be the same: an error of positions,
// of windows or of KV blocks that only a long prompt meets shows as a difference.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "obs/metrics.h"
#include "request/request.h"
#include "scheduler/scheduler.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct ContextOptions {
  ConfigOptions config;
  std::string model;
  std::optional<int32_t> tokens;
  std::vector<int32_t> pieces = {};
  int32_t answer = 8;
  int64_t seed = 1;
};

// What a run of the prompt gave.
struct Reading {
  std::vector<float> logprobs;  // of each token of the prompt from the second on
  std::vector<int32_t> answer;
  FinishInfo finish;
};

class ReadingSink final : public TokenSink {
 public:
  ReadingSink(Reading* reading, absl::Notification* done) : reading_(reading), done_(done) {}
  bool OnToken(const TokenEvent& event) override {
    reading_->answer.push_back(event.token);
    return true;
  }
  void OnPromptToken(const TokenEvent& event) override {
    reading_->logprobs.push_back(event.logprob);
  }
  void OnFinish(const FinishInfo& info) override {
    reading_->finish = info;
    done_->Notify();
  }

 private:
  Reading* const reading_;
  absl::Notification* const done_;
};

absl::StatusOr<Reading> Read(Runtime& runtime, std::shared_ptr<engine::EngineModel> model,
                             const std::vector<int32_t>& prompt, int32_t piece, int32_t answer) {
  Metrics metrics;
  scheduler::SchedulerOptions options;
  options.step_tokens = piece;
  options.max_batch = 1;
  auto scheduler =
      scheduler::Scheduler::Create(options, &runtime.engine(), &runtime.clock(), &metrics);
  RETURN_IF_ERROR(scheduler->AddModel(std::move(model)));
  Reading reading;
  absl::Notification done;
  auto request = std::make_unique<Request>();
  request->id = fmt::format("context-{}", piece);
  request->model = "model";
  request->prompt = prompt;
  request->prompt_logprobs = true;
  request->sampling.temperature = 0;
  request->sampling.top_logprobs = 0;
  request->max_tokens = answer;
  request->sink = std::make_unique<ReadingSink>(&reading, &done);
  RETURN_IF_ERROR(scheduler->Submit(std::move(request)));
  done.WaitForNotification();
  RETURN_IF_ERROR(reading.finish.status);
  return reading;
}

// Of a quarter of the prompt.
struct Part {
  size_t begin = 0, end = 0;
  double mean = 0;   // log probability
  double worst = 0;  // difference between two readings
};

std::vector<Part> Compare(const std::vector<Reading>& readings) {
  const std::vector<float>& first = readings[0].logprobs;
  std::vector<Part> parts(4);
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    part.begin = i * first.size() / parts.size();
    part.end = (i + 1) * first.size() / parts.size();
    for (size_t at = part.begin; at < part.end; ++at) {
      part.mean += double{first[at]} / static_cast<double>(part.end - part.begin);
      for (const Reading& other : readings) {
        // Written so that NaN counts.
        const double difference = std::abs(double{other.logprobs[at]} - first[at]);
        if (!(difference <= part.worst)) part.worst = difference;
      }
    }
  }
  return parts;
}

struct Verdict {
  std::vector<Part> parts;
  double tolerance = 0;
  bool same_answer = true, finite = true, holds = true;
};

Verdict Judge(const std::vector<Reading>& readings, int64_t layers) {
  // Six operators a layer, on both sides, each rounding to BF16 (2^-9 of a value) at the coarsest,
  // on logits whose spread is some units: independent errors add as squares.
  constexpr double kRounding = 1.0 / 512, kSpread = 8;
  Verdict verdict;
  verdict.parts = Compare(readings);
  verdict.tolerance = kSpread * kRounding * std::sqrt(2.0 * 6 * static_cast<double>(layers) + 1);
  for (const Part& part : verdict.parts) {
    verdict.finite &= std::isfinite(part.mean) && std::isfinite(part.worst);
    verdict.holds &= part.worst <= verdict.tolerance;
  }
  for (const Reading& reading : readings) {
    verdict.same_answer &= reading.answer == readings[0].answer;
  }
  verdict.holds &= verdict.finite;
  return verdict;
}

void Tell(const Invocation& invocation, const std::vector<Reading>& readings,
          const std::vector<int32_t>& pieces, const Verdict& verdict, size_t tokens) {
  auto seconds = [](const Reading& reading) {
    return static_cast<double>(reading.finish.timings.prefill_us) * 1e-6;
  };
  if (invocation.json) {
    json::array parts, runs;
    for (const Part& part : verdict.parts) {
      parts.push_back(json::object{{"begin", part.begin},
                                   {"end", part.end},
                                   {"mean_logprob", part.mean},
                                   {"worst_difference", part.worst}});
    }
    for (size_t i = 0; i < readings.size(); ++i) {
      runs.push_back(json::object{{"piece", pieces[i]}, {"prefill_s", seconds(readings[i])}});
    }
    *invocation.io->out << json::serialize(json::object{{"tokens", tokens},
                                                        {"parts", std::move(parts)},
                                                        {"runs", std::move(runs)},
                                                        {"tolerance", verdict.tolerance},
                                                        {"same_answer", verdict.same_answer},
                                                        {"holds", verdict.holds}})
                        << "\n";
    return;
  }
  std::ostream& out = *invocation.io->out;
  for (size_t i = 0; i < readings.size(); ++i) {
    out << fmt::format("{} tokens in pieces of {:>5}: {:.2f} s, {:.0f} tokens/s\n", tokens,
                       pieces[i], seconds(readings[i]),
                       static_cast<double>(tokens) / std::max(1e-9, seconds(readings[i])));
  }
  for (const Part& part : verdict.parts) {
    out << fmt::format("tokens {:>7} to {:>7}: mean logprob {:>8.3f}, largest difference {:.2e}\n",
                       part.begin + 1, part.end, part.mean, part.worst);
  }
  out << fmt::format("tolerance {:.2e}: {}; the answers behind it are {}\n", verdict.tolerance,
                     verdict.holds ? "holds" : "MISSED",
                     verdict.same_answer ? "the same" : "different");
}

absl::Status VerifyContext(const Invocation& invocation, const ContextOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  server::Config& config = loaded.config;
  // Then nothing but the order of computing differs.
  config.device.deterministic = true;
  config.kv.disk_bytes = 0;
  ASSIGN_OR_RETURN(std::string path, FindModel(config, options.model));
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(config));
  runtime->set_write_images(false);
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model,
                   runtime->OpenModel("model", path, 0, 0));
  const int32_t answer = std::clamp(options.answer, 1, 1024);
  const int32_t most = model->max_context() - answer;
  const int32_t count = options.tokens.value_or(most);
  if (count < 8 || count > most) {
    return absl::InvalidArgumentError(
        fmt::format("--tokens: not between 8 and the {} that the context leaves", most));
  }
  std::vector<int32_t> pieces = options.pieces;
  if (pieces.empty()) pieces = {512, 96};
  if (pieces.size() < 2 || *std::min_element(pieces.begin(), pieces.end()) < 1 ||
      *std::max_element(pieces.begin(), pieces.end()) > 8192) {
    return absl::InvalidArgumentError("--pieces: two or more numbers from 1 to 8192");
  }
  Random random(static_cast<uint64_t>(options.seed));
  std::vector<int32_t> prompt(static_cast<size_t>(count));
  for (int32_t& token : prompt) {
    token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(model->vocab_size())));
  }
  std::vector<Reading> readings;
  for (const int32_t piece : pieces) {
    ASSIGN_OR_RETURN(Reading reading, Read(*runtime, model, prompt, piece, answer));
    if (reading.logprobs.size() + 1 != prompt.size()) {
      return absl::InternalError(
          fmt::format("{} of {} tokens were told of", reading.logprobs.size(), prompt.size() - 1));
    }
    readings.push_back(std::move(reading));
  }
  const Verdict verdict = Judge(readings, model->architecture().config().layer_count());
  Tell(invocation, readings, pieces, verdict, prompt.size());
  if (verdict.holds) return absl::OkStatus();
  return absl::InternalError(verdict.finite
                                 ? "a long prompt is not the same in pieces of another size"
                                 : "there are numbers that are none in what a long prompt gives");
}

}  // namespace

void AddVerifyContext(Command verify, Invocation* invocation) {
  auto options = std::make_shared<ContextOptions>();  // lives as long as the parser's callbacks
  Command command = verify.Add(
      "context",
      "Read a prompt as long as a model's context in pieces of two sizes and compare what the "
      "model thinks of each token; fails beyond the tolerance",
      [invocation, options] { return VerifyContext(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Option("--tokens", &options->tokens,
                 {"NUMBER", "Length of the prompt (default: all of the context)"});
  command.Option("--pieces", &options->pieces, {"LIST", "Sizes of the pieces (512,96)"});
  command.Option("--answer", &options->answer, {"TOKENS", "To make behind it (8)"});
  command.Option("--seed", &options->seed, {"NUMBER", "Another one makes another prompt (1)"});
  options->config.AddTo(command, {"memory", "storage", "kv", "device"});
}

}  // namespace terrace::cli
