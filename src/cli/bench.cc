// terrace bench: a load against a running server, and what it measured: in the terminal, as JSON,
// and as a page with charts.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/load/load.h"
#include "cli/page/page.h"
#include "cli/signals.h"
#include "os/atomic_file.h"
#include "server/config.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct BenchCommand {
  std::string url = "http://127.0.0.1:8000";
  std::string ca, mix, trace, admin, report;
  std::vector<std::string> models;
  std::optional<int32_t> model_count, clients;
  std::optional<int64_t> seed;
  std::optional<double> rate, zipf, speed;
  std::optional<std::string> duration, warm_up, prompt, output, goal;
  bool chat = false;
};

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoStatus(errno, fmt::format("opening {}", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// What the flags say of the one class that they describe.
absl::Status ApplyFlags(const BenchCommand& command, LoadClass* out) {
  if (command.rate && command.clients) {
    return absl::InvalidArgumentError("--rate and --clients: one of them");
  }
  if (command.rate.value_or(1) <= 0 || command.clients.value_or(1) < 1) {
    return absl::InvalidArgumentError("--rate and --clients must be positive");
  }
  out->rate = command.rate.value_or(0);
  out->clients = command.rate ? 0 : command.clients.value_or(4);
  out->zipf = command.zipf.value_or(0);
  out->chat = command.chat;
  if (command.prompt) {
    ASSIGN_OR_RETURN(out->prompt_tokens, ParseTokenRange(*command.prompt));
  }
  if (command.output) {
    ASSIGN_OR_RETURN(out->output_tokens, ParseTokenRange(*command.output));
  }
  if (command.goal) {
    ASSIGN_OR_RETURN(out->goal_us, server::ParseDurationUs(*command.goal));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadMix> MakeMix(const BenchCommand& command) {
  LoadMix mix;
  const bool flags = command.rate || command.clients || command.zipf || command.prompt ||
                     command.output || command.goal || command.chat;
  if (!command.mix.empty() && !command.trace.empty()) {
    return absl::InvalidArgumentError("a mix or --trace, not both");
  }
  if (flags && (!command.mix.empty() || !command.trace.empty())) {
    return absl::InvalidArgumentError(
        "the mix or the trace says what is asked: leave --rate, --clients, --zipf, --prompt, "
        "--output, --goal and --chat");
  }
  if (!command.mix.empty() || !command.trace.empty()) {
    const std::string& path = command.mix.empty() ? command.trace : command.mix;
    ASSIGN_OR_RETURN(const std::string text, ReadAll(path));
    absl::StatusOr<LoadMix> read = command.mix.empty() ? ParseLoadTrace(text) : ParseMix(text);
    if (!read.ok()) return WithContext(read.status(), path);
    mix = *std::move(read);
    const double speed = command.speed.value_or(1);
    if (!(speed > 0)) return absl::InvalidArgumentError("--speed must be positive");
    for (LoadTraceRequest& request : mix.trace) {
      request.at_us = static_cast<int64_t>(static_cast<double>(request.at_us) / speed);
    }
    if (!mix.trace.empty()) mix.duration_us = mix.trace.back().at_us + 1;
  } else {
    mix.classes.emplace_back();
    RETURN_IF_ERROR(ApplyFlags(command, &mix.classes.back()));
  }
  if (command.duration) {
    ASSIGN_OR_RETURN(mix.duration_us, server::ParseDurationUs(*command.duration));
    std::erase_if(mix.trace, [&](const auto& each) { return each.at_us >= mix.duration_us; });
  }
  if (command.warm_up) {
    ASSIGN_OR_RETURN(mix.warm_up_us, server::ParseDurationUs(*command.warm_up));
  }
  if (command.seed) mix.seed = static_cast<uint64_t>(*command.seed);
  if (mix.duration_us <= mix.warm_up_us) {
    return absl::InvalidArgumentError("the duration must be longer than the warm-up");
  }
  return mix;
}

// Which models the server has, as far as they are wanted.
absl::StatusOr<std::vector<std::string>> ModelsOf(const BenchCommand& command,
                                                  const std::string& key) {
  if (!command.models.empty()) return command.models;
  ASSIGN_OR_RETURN(std::vector<std::string> models,
                   ListModels(command.url, {.key = key, .ca = command.ca}));
  const auto wanted =
      static_cast<size_t>(command.model_count.value_or(static_cast<int32_t>(models.size())));
  if (wanted < 1 || wanted > models.size()) {
    return absl::InvalidArgumentError(
        fmt::format("--models: the server has {}: {}", models.size(), fmt::join(models, ", ")));
  }
  models.resize(wanted);
  return models;
}

// How many tokens a word of our prompts has, where the server tells.
std::map<std::string, double> TokensPerWord(const BenchCommand& command, const std::string& key,
                                            const std::vector<std::string>& models) {
  constexpr int kWords = 64;
  std::string text;
  for (int i = 0; i < kWords / 4; ++i) text += "river between the stone ";
  std::map<std::string, double> out;
  for (const std::string& model : models) {
    const absl::StatusOr<std::string> answer =
        AskServer(command.url + "/tokenize",
                  {.key = key,
                   .ca = command.ca,
                   .body = json::serialize(json::object{{"model", model}, {"prompt", text}})});
    json::error_code error;
    const json::value value = answer.ok() ? json::parse(*answer, error) : json::value();
    const json::value* count =
        !error && value.is_object() ? value.get_object().if_contains("count") : nullptr;
    if (count != nullptr && count->is_number() && count->to_number<double>() > 0) {
      out[model] = count->to_number<double>() / kWords;
    }
  }
  return out;
}

// The server's own counts, where --admin names its port: before and after.
json::object ServerState(const Io& io, const BenchCommand& command) {
  if (command.admin.empty()) return {};
  const absl::StatusOr<json::value> state = AskAdmin(
      command.admin, "/admin/state", {.key = io.Variable("TERRACE_KEY"), .ca = command.ca});
  if (!state.ok()) return {{"error", std::string(Message(state.status()))}};
  json::object out;
  for (const char* name : {"version", "device", "totals", "process"}) {
    if (const json::value* found = state->as_object().if_contains(name)) out[name] = *found;
  }
  return out;
}

struct Measured {
  LoadOutcome outcome;
  json::object before, after;
};

json::object ResultJson(const BenchCommand& command, const LoadMix& mix, const LoadFigures& figures,
                        const Measured& measured, const std::vector<std::string>& models) {
  json::object out = figures.Json(measured.outcome.took_us);
  out["url"] = command.url;
  out["mix"] = !command.mix.empty()     ? command.mix
               : !command.trace.empty() ? command.trace
                                        : "flags";
  out["seed"] = mix.seed;
  out["warm_up_s"] = static_cast<double>(mix.warm_up_us) * 1e-6;
  out["late_s"] = static_cast<double>(measured.outcome.late_us) * 1e-6;
  out["stopped"] = measured.outcome.stopped;
  out["time_us"] = RealClock().WallUs();
  out["models"] = json::array(models.begin(), models.end());
  if (!command.admin.empty()) {
    out["server"] = json::object{{"before", measured.before}, {"after", measured.after}};
  }
  return out;
}

absl::StatusOr<LoadOptions> Options(const Invocation& invocation, const BenchCommand& command,
                                    const LoadMix& mix) {
  LoadOptions options;
  options.url = command.url;
  options.ca = command.ca;
  options.keys[""] = invocation.io->Variable("TERRACE_KEY");
  // What is asked beside the load is asked with the first key that there is.
  std::string key = options.keys[""];
  for (const LoadClass& each : mix.classes) {
    if (each.key_env.empty()) continue;
    options.keys[each.key_env] = invocation.io->Variable(each.key_env);
    if (options.keys[each.key_env].empty()) {
      return absl::InvalidArgumentError(
          fmt::format("class '{}': there is no variable {}", each.name, each.key_env));
    }
    if (key.empty()) key = options.keys[each.key_env];
  }
  ASSIGN_OR_RETURN(options.models, ModelsOf(command, key));
  std::vector<std::string> asked = options.models;
  for (const LoadClass& each : mix.classes) {
    asked.insert(asked.end(), each.models.begin(), each.models.end());
  }
  for (const LoadTraceRequest& each : mix.trace) {
    if (!each.model.empty()) asked.push_back(each.model);
  }
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  options.tokens_per_word = TokensPerWord(command, key, asked);
  if (invocation.io->err_is_terminal) {
    std::ostream* err = invocation.io->err;
    options.progress = [err, end = mix.duration_us](int64_t at_us, int64_t running) {
      *err << fmt::format("\r{} of {} s, {} running\x1b[K", at_us / 1'000'000, end / 1'000'000,
                          running)
           << std::flush;
    };
  }
  return options;
}

absl::Status Bench(const BenchCommand& command, Invocation* invocation) {
  ASSIGN_OR_RETURN(const LoadMix mix, MakeMix(command));
  ASSIGN_OR_RETURN(LoadOptions options, Options(*invocation, command, mix));
  std::vector<std::string> names;
  std::vector<int64_t> goals;
  for (const LoadClass& each : mix.classes) {
    names.push_back(each.name);
    goals.push_back(each.goal_us);
  }
  LoadFigures figures(names, goals, mix.duration_us);
  Measured measured;
  measured.before = ServerState(*invocation->io, command);
  {
    // A first Ctrl-C ends the load and still gives what it measured.
    sigset_t set, old;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    const Fd stop(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    options.stop_fd = stop.get();
    const absl::StatusOr<LoadOutcome> outcome = RunLoad(mix, options, &figures);
    signalfd_siginfo info;
    while (read(stop.get(), &info, sizeof info) == sizeof info) continue;
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    if (!outcome.ok()) return outcome.status();
    measured.outcome = *outcome;
  }
  measured.after = ServerState(*invocation->io, command);
  if (invocation->io->err_is_terminal) *invocation->io->err << "\r\x1b[K";
  const json::object result = ResultJson(command, mix, figures, measured, options.models);
  std::ostream& out = *invocation->io->out;
  if (invocation->json) {
    out << json::serialize(result) << "\n";
  } else {
    out << figures.Text(measured.outcome.took_us);
    if (measured.outcome.late_us > 100'000) {
      out << fmt::format("the load itself was late by up to {:.1f} s: this machine has no more\n",
                         static_cast<double>(measured.outcome.late_us) * 1e-6);
    }
  }
  if (!command.report.empty()) {
    RETURN_IF_ERROR(os::WriteFileAtomically(
        command.report,
        MakePage("terrace bench", {"vendor/uplot/uPlot.iife.min.js", "palette.js", "report.js"},
                 result)));
    *invocation->io->err << fmt::format("the report is in {}\n", command.report);
  }
  if (figures.answered() == 0) return absl::UnavailableError("no request was answered");
  if (figures.failed() == 0) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} requests failed", figures.failed()));
}

}  // namespace

void AddBenchCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<BenchCommand>();  // lives as long as the parser's callbacks
  Command command =
      root.Add("bench",
               "Put a load on a running server (any that speaks the OpenAI API) and print times to "
               "the first and the next token and throughput, by class and model; keys come from "
               "TERRACE_KEY",
               [invocation, options] { return Bench(*options, invocation); });
  command.Argument("mix", &options->mix,
                   {"MIX", "A file with classes of requests (docs/BENCHMARKS.md); else flags"});
  command.Option("--url", &options->url, {"URL", "The server (default http://127.0.0.1:8000)"});
  command.Option("--ca", &options->ca,
                 {"FILE", "Certificates (PEM) that may sign the server's; else the system's"});
  command.Option("--models", &options->model_count,
                 {"NUMBER", "Ask so many of its models (default: all)"});
  command.Option("--model", &options->models, {"NAME", "Ask this model; may be given often"});
  command.Option("--duration", &options->duration, {"DURATION", "How long (60s)"});
  command.Option("--warm-up", &options->warm_up, {"DURATION", "Its begin is not counted (0s)"});
  command.Option("--clients", &options->clients,
                 {"NUMBER", "Clients that each ask again when they have their answer (4)"});
  command.Option("--rate", &options->rate, {"NUMBER", "Instead of clients: requests a second"});
  command.Option("--prompt", &options->prompt, {"TOKENS", "Of a prompt: 128, or 30-300 (128)"});
  command.Option("--output", &options->output, {"TOKENS", "Of an answer, at most (64)"});
  command.Option("--zipf", &options->zipf, {"EXPONENT", "Skew of the models' popularity (0)"});
  command.Option("--goal", &options->goal, {"DURATION", "Count first tokens within this time"});
  command.Flag("--chat", &options->chat, "Ask for chats instead of completions");
  command.Option("--trace", &options->trace,
                 {"FILE", "Instead: requests at set times, as CSV (docs/BENCHMARKS.md)"});
  command.Option("--speed", &options->speed, {"FACTOR", "Run a trace faster or slower (1)"});
  command.Option("--seed", &options->seed, {"NUMBER", "Another one asks other texts (1)"});
  command.Option("--report", &options->report, {"FILE", "Write a page with charts, for a browser"});
  command.Option("--admin", &options->admin,
                 {"URL", "Of its admin port, to tell its own counts before and after"});
}

}  // namespace terrace::cli
