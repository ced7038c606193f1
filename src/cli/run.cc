// terrace run: chat with a model in the terminal, or one answer for an argument or a pipe.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <istream>
#include <iterator>
#include <memory>
#include <ostream>
#include <random>

#include "base/status.h"
#include "base/text.h"
#include "cli/answer.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/member_group.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "engine/adapter.h"
#include "obs/metrics.h"
#include "scheduler/scheduler.h"
#include "server/served_model.h"

namespace terrace::cli {
namespace {

struct RunOptions {
  ConfigOptions config;
  std::string model;
  std::optional<std::string> prompt;
  std::string system;
  bool raw = false;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k, max_tokens;
  std::optional<int64_t> seed;
  std::vector<std::string> stops;
};

absl::StatusOr<SamplingParams> Sampling(const RunOptions& options) {
  auto check = [](std::string_view name, std::optional<double> value, double low, double high) {
    // Written so that NaN fails.
    if (!value || (*value >= low && *value <= high)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("--{}: {} is not between {} and {}", name, *value, low, high));
  };
  RETURN_IF_ERROR(check("temperature", options.temperature, 0, 2));
  RETURN_IF_ERROR(check("top-p", options.top_p, 0, 1));
  RETURN_IF_ERROR(check("min-p", options.min_p, 0, 1));
  RETURN_IF_ERROR(check("repetition-penalty", options.repetition_penalty, 0.01, 10));
  if (options.top_k.value_or(0) < 0) return absl::InvalidArgumentError("--top-k: below 0");
  if (options.max_tokens.value_or(1) < 1)
    return absl::InvalidArgumentError("--max-tokens: below 1");
  SamplingParams sampling;
  sampling.temperature = static_cast<float>(options.temperature.value_or(0.7));
  sampling.top_p = static_cast<float>(options.top_p.value_or(0.95));
  sampling.min_p = static_cast<float>(options.min_p.value_or(0));
  sampling.top_k = options.top_k.value_or(0);
  sampling.repetition_penalty = static_cast<float>(options.repetition_penalty.value_or(1));
  if (options.seed) sampling.seed = static_cast<uint64_t>(*options.seed);
  return sampling;
}

std::string_view ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

double Rate(int32_t tokens, int64_t us) {
  return us > 0 ? static_cast<double>(tokens) * 1e6 / static_cast<double>(us) : 0;
}

class Session {
 public:
  Session(const Invocation* invocation, const RunOptions* options)
      : invocation_(*invocation), options_(*options), io_(*invocation->io) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(sampling_, Sampling(options_));
    if (IsFollowingProcess()) {
      ASSIGN_OR_RETURN(server::LoadedConfig loaded, options_.config.Load(io_));
      return FollowLeader(loaded.config, &io_);
    }
    RETURN_IF_ERROR(Open());
    if (!options_.system.empty()) conversation_.messages.push_back({"system", options_.system});
    if (options_.prompt) {
      RETURN_IF_ERROR(Ask(*options_.prompt));
    } else if (!io_.in_is_terminal) {
      RETURN_IF_ERROR(Ask(std::string(std::istreambuf_iterator<char>(*io_.in), {})));
    } else {
      Chat();
    }
    return FinishImage();
  }

 private:
  absl::Status Open() {
    ASSIGN_OR_RETURN(server::LoadedConfig loaded, options_.config.Load(io_));
    const server::Config& config = loaded.config;
    const server::ModelConfig entry = EntryOf(config, options_.model);
    // An adapter runs on its base.
    const std::string whole = entry.base.empty() ? options_.model : entry.base;
    const server::ModelConfig known_model = EntryOf(config, whole);
    ASSIGN_OR_RETURN(std::string path, FindModel(config, whole));
    ASSIGN_OR_RETURN(runtime_, Runtime::Create(config));
    ASSIGN_OR_RETURN(
        engine_model_,
        runtime_->OpenModel(whole, path, known_model.max_context, config.memory.hot_keep_us,
                            KvOptions(config, known_model), TermsOf(known_model)));
    if (!entry.base.empty()) {
      ASSIGN_OR_RETURN(adapter_,
                       runtime_->OpenAdapter(entry.name, entry.source, config.memory.hot_keep_us,
                                             *engine_model_, {}));
    }
    server::ServedModel::Options served;
    served.name = options_.model;
    served.max_context = engine_model_->max_context();
    served.vocab_size = engine_model_->vocab_size();
    ASSIGN_OR_RETURN(
        model_, server::ServedModel::Create(std::move(served), engine_model_->weights().metadata(),
                                            &runtime_->clock()));
    for (const std::string& warning : model_->warnings()) {
      *io_.err << fmt::format("terrace: {}\n", warning);
    }
    raw_ = options_.raw || !engine_model_->weights().metadata().Has("tokenizer.chat_template");
    if (raw_ && !options_.raw) {
      *io_.err << "terrace: this model has no chat template; it continues the text as it is\n";
    }
    scheduler::SchedulerOptions scheduling;
    scheduling.max_batch = config.scheduler.max_batch;
    scheduling.step_tokens = config.scheduler.step_tokens;
    scheduling.cache = &runtime_->kv_cache();
    scheduling.seed = std::random_device()() | uint64_t{std::random_device()()} << 32;
    scheduler_ = scheduler::Scheduler::Create(scheduling, &runtime_->engine(), &runtime_->clock(),
                                              &metrics_);
    if (adapter_ != nullptr) return scheduler_->AddAdapter(engine_model_, adapter_);
    return scheduler_->AddModel(engine_model_);
  }

  // The model's entry in the configuration; an empty one if it is none.
  static server::ModelConfig EntryOf(const server::Config& config, const std::string& name) {
    for (const server::ModelConfig& known : config.models) {
      if (known.name == name) return known;
    }
    return {};
  }

  // Lines from the terminal until its end, keeping the conversation.
  void Chat() {
    *io_.err << fmt::format("{}: type a message; an empty line or Ctrl-D ends.\n", options_.model);
    std::string line;
    while (*io_.err << "> " << std::flush && std::getline(*io_.in, line) &&
           !StripSpace(line).empty()) {
      absl::Status status = Ask(line);
      if (!status.ok()) *io_.err << fmt::format("terrace: {}\n", Message(status));
    }
  }

  absl::StatusOr<std::vector<int32_t>> Encode(const std::string& text) const {
    if (!raw_) {
      ASSIGN_OR_RETURN(server::ChatPrompt prompt, model_->EncodeChat(conversation_));
      return std::move(prompt.ids);
    }
    return model_->EncodeText(text, /*add_special=*/true, /*parse_special=*/true);
  }

  absl::Status Ask(const std::string& text) {
    if (!raw_) conversation_.messages.push_back({"user", text});
    absl::StatusOr<std::string> answer = Generate(text);
    if (raw_) return answer.status();
    if (!answer.ok()) {
      conversation_.messages.pop_back();  // as if it had not been asked
      return answer.status();
    }
    conversation_.messages.push_back({"assistant", *std::move(answer)});
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Generate(const std::string& text) {
    Answer answer(&model_->tokenizer(), options_.stops);
    auto request = std::make_unique<Request>();
    request->id = fmt::format("run-{}", ++asked_);
    request->model = options_.model;
    request->sampling = sampling_;
    request->max_tokens = options_.max_tokens.value_or(model_->max_context());
    request->end_tokens = model_->end_tokens();
    ASSIGN_OR_RETURN(request->prompt, Encode(text));
    if (request->prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
    request->sink = answer.MakeSink();
    RETURN_IF_ERROR(scheduler_->Submit(std::move(request)));
    std::string whole;
    for (std::string piece = answer.Next(); !piece.empty(); piece = answer.Next()) {
      whole += piece;
      if (!invocation_.json) *io_.out << piece << std::flush;
    }
    const FinishInfo finish = answer.finish();
    if (finish.reason == FinishReason::kError) {
      if (!invocation_.json && !whole.empty()) *io_.out << "\n";
      return finish.status;
    }
    Report(whole, finish);
    return whole;
  }

  void Report(const std::string& text, const FinishInfo& finish) {
    const Timings& t = finish.timings;
    if (invocation_.json) {
      boost::json::object timings = {{"queue_us", t.queue_us},
                                     {"swap_us", t.swap_us},
                                     {"prefill_us", t.prefill_us},
                                     {"decode_us", t.decode_us}};
      boost::json::object all = {{"model", options_.model},
                                 {"text", text},
                                 {"finish_reason", ReasonName(finish.reason)},
                                 {"prompt_tokens", finish.prompt_tokens},
                                 {"cached_tokens", finish.cached_tokens},
                                 {"kv", finish.kv_choice},
                                 {"completion_tokens", finish.completion_tokens},
                                 {"timings", std::move(timings)}};
      *io_.out << boost::json::serialize(all) << std::endl;
      return;
    }
    *io_.out << "\n" << std::flush;
    *io_.err << fmt::format(
        "[prompt {} tokens in {:.2f} s, of that {:.2f} s for weights; answer {} tokens, {:.1f}/s; "
        "{}]\n",
        finish.prompt_tokens, static_cast<double>(t.prefill_us) / 1e6,
        static_cast<double>(t.swap_us) / 1e6, finish.completion_tokens,
        Rate(finish.completion_tokens - 1, t.decode_us), ReasonName(finish.reason));
  }

  // The first run of a model prepares its image beside the answer; the next run should find it.
  absl::Status FinishImage() {
    weights::ModelWeights& weights = engine_model_->weights();
    if (weights.image_complete()) return absl::OkStatus();
    *io_.err << "[preparing the model for the next start]\n";
    if (absl::Status status = weights.WaitForImage(); !status.ok()) {
      *io_.err << fmt::format("terrace: the model could not be prepared: {}\n", Message(status));
    }
    return absl::OkStatus();
  }

  const Invocation& invocation_;
  const RunOptions& options_;
  Io& io_;
  SamplingParams sampling_;
  bool raw_ = false;
  int asked_ = 0;
  server::Conversation conversation_;
  Metrics metrics_;
  // In the order in which they stand on each other.
  std::unique_ptr<Runtime> runtime_;
  std::shared_ptr<engine::EngineModel> engine_model_;
  std::shared_ptr<const engine::Adapter> adapter_;  // of it, if one was asked for
  std::shared_ptr<const server::ServedModel> model_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
};

}  // namespace

void AddRunCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<RunOptions>();  // lives as long as the parser's callbacks
  Command command =
      root.Add("run", "Chat with a model in the terminal; with a prompt or a pipe, answer once",
               [invocation, options] { return Session(invocation, options.get()).Run(); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Argument("prompt", &options->prompt,
                   {"PROMPT", "What to answer; without it, standard input"});
  command.Option("--system", &options->system, {"TEXT", "A system message before the first"});
  command.Flag("--raw", &options->raw, "Continue the text as it is, without the chat template");
  command.Option("--temperature", &options->temperature,
                 {"NUMBER", "0 to 2; 0 always takes the likeliest token (default 0.7)"});
  command.Option("--top-k", &options->top_k,
                 {"NUMBER", "Choose among the likeliest so many tokens; 0: all (default)"});
  command.Option(
      "--top-p", &options->top_p,
      {"NUMBER", "Choose among the likeliest tokens that have this share (default 0.95)"});
  command.Option("--min-p", &options->min_p,
                 {"NUMBER", "Leave out tokens below this share of the likeliest (default 0)"});
  command.Option("--repetition-penalty", &options->repetition_penalty,
                 {"NUMBER", "Above 1 makes repetition less likely (default 1)"});
  command.Option("--seed", &options->seed, {"NUMBER", "Makes the choices repeatable"});
  command.Option("--max-tokens", &options->max_tokens,
                 {"NUMBER", "Longest answer (default: what the context leaves)"});
  command.Option("--stop", &options->stops, {"TEXT", "Ends the answer; may be given often"});
  options->config.AddTo(command, {"memory", "storage", "kv", "device", "scheduler"});
}

}  // namespace terrace::cli
