// terrace verify stability: a running server under load for a while, and whether it grows: its
// memory beside what its ledger gave out, its descriptors, its threads, its ledger. A line is
// fitted through the looks at each; its rise must stay below a bound that leaves room for noise.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <ostream>
#include <thread>

#include "base/status.h"
#include "base/text.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/load/growth.h"
#include "cli/load/load.h"
#include "server/config.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct StabilityOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string admin = "http://127.0.0.1:8003";
  std::string ca;
  std::vector<std::string> models;
  std::optional<int64_t> requests;
  std::string duration = "5m";
  std::string prompt = "16-256";
  std::string output = "1-64";
  int32_t clients = 4;
};

int64_t Number(const json::object& object, const char* name) {
  const json::value* found = object.if_contains(name);
  return found != nullptr && found->is_number() ? found->to_number<int64_t>() : 0;
}

// What one look at /admin/state says.
struct Look {
  int64_t pid = 0, rss = 0, descriptors = 0, threads = 0;
  int64_t ledger = 0, kv = 0;        // bytes on the device and in host memory; of them KV
  int64_t waiting = 0, running = 0;  // requests
};

absl::StatusOr<Look> LookAt(const std::string& admin, const AskOptions& ask) {
  ASSIGN_OR_RETURN(const json::value state, AskAdmin(admin, "/admin/state", ask));
  const json::object& object = state.as_object();
  const json::value* process = object.if_contains("process");
  const json::value* tiers = object.if_contains("tiers");
  const json::value* models = object.if_contains("models");
  if (process == nullptr || !process->is_object() || tiers == nullptr || !tiers->is_array()) {
    return absl::FailedPreconditionError(admin + " is no Terrace of this version");
  }
  const json::object& about = process->get_object();
  Look look{.pid = Number(about, "pid"),
            .rss = Number(about, "rss_bytes"),
            .descriptors = Number(about, "descriptors"),
            .threads = Number(about, "threads")};
  for (const json::value& tier : tiers->get_array()) {
    const json::value* name = tier.as_object().if_contains("tier");
    if (name == nullptr || (*name != "device" && *name != "host")) continue;
    look.ledger += Number(tier.as_object(), "used_bytes");
    const json::value* lines = tier.as_object().if_contains("lines");
    if (lines == nullptr || !lines->is_array()) continue;
    for (const json::value& line : lines->get_array()) {
      const json::value* kind = line.as_object().if_contains("kind");
      if (kind != nullptr && *kind == "kv") look.kv += Number(line.as_object(), "bytes");
    }
  }
  if (models != nullptr && models->is_array()) {
    for (const json::value& model : models->get_array()) {
      look.waiting += Number(model.as_object(), "waiting");
      look.running += Number(model.as_object(), "running");
    }
  }
  return look;
}

class Stability {
 public:
  Stability(const StabilityOptions& options, Invocation* invocation)
      : options_(options),
        io_(*invocation->io),
        as_json_(invocation->json),
        ask_{.key = io_.Variable("TERRACE_KEY"), .ca = options.ca},
        growth_({{"memory beside the ledger", 0.05, 4 << 20, true},
                 {"descriptors", 0, 4, false},
                 {"threads", 0, 0.5, false},
                 {"ledger without KV", 0.05, 1 << 20, true}}) {}

  absl::Status Run();

 private:
  absl::StatusOr<LoadMix> Mix() const;
  absl::Status Prepare(LoadOptions* load);
  void TakeLook(int64_t at_us);
  // Waits for the last requests to leave the queue; how many do not.
  int64_t LeftBehind() const;
  absl::Status Tell(const LoadFigures& figures, const LoadOutcome& outcome);

  const StabilityOptions& options_;
  Io& io_;
  const bool as_json_;
  const AskOptions ask_;
  Growth growth_;
  int64_t pid_ = 0;
  std::vector<std::string> faults_;
};

absl::StatusOr<LoadMix> Stability::Mix() const {
  LoadMix mix;
  mix.classes.emplace_back();
  LoadClass& each = mix.classes.back();
  each.clients = options_.clients;
  if (each.clients < 1 || options_.requests.value_or(1) < 1) {
    return absl::InvalidArgumentError("--clients and --requests must be positive");
  }
  ASSIGN_OR_RETURN(each.prompt_tokens, ParseTokenRange(options_.prompt));
  ASSIGN_OR_RETURN(each.output_tokens, ParseTokenRange(options_.output));
  ASSIGN_OR_RETURN(mix.duration_us, server::ParseDurationUs(options_.duration));
  mix.most_requests = options_.requests.value_or(0);
  return mix;
}

// Every model is asked once, so that what is loaded for the first time is no growth.
absl::Status Stability::Prepare(LoadOptions* load) {
  load->url = options_.url;
  load->ca = options_.ca;
  load->keys[""] = ask_.key;
  load->models = options_.models;
  if (load->models.empty()) {
    ASSIGN_OR_RETURN(load->models, ListModels(options_.url, ask_));
  }
  for (const std::string& model : load->models) {
    const json::object body = {{"model", model}, {"prompt", "a"}, {"max_tokens", 1}};
    AskOptions ask = ask_;
    ask.body = json::serialize(body);
    ask.timeout_s = 600;
    RETURN_IF_ERROR(AskServer(options_.url + "/v1/completions", ask).status());
  }
  ASSIGN_OR_RETURN(const Look look, LookAt(options_.admin, ask_));
  pid_ = look.pid;
  return absl::OkStatus();
}

void Stability::TakeLook(int64_t at_us) {
  const absl::StatusOr<Look> look = LookAt(options_.admin, ask_);
  if (!look.ok()) {
    if (faults_.size() < 20) faults_.emplace_back(Message(look.status()));
    return;
  }
  if (look->pid != pid_) {
    faults_.push_back(
        fmt::format("the server was started again (process {}, then {})", pid_, look->pid));
    pid_ = look->pid;
  }
  growth_.Add(
      at_us, {static_cast<double>(look->rss - look->ledger), static_cast<double>(look->descriptors),
              static_cast<double>(look->threads), static_cast<double>(look->ledger - look->kv)});
}

int64_t Stability::LeftBehind() const {
  for (int i = 0; i < 100; ++i) {
    const absl::StatusOr<Look> look = LookAt(options_.admin, ask_);
    if (!look.ok() || look->waiting + look->running == 0) return 0;
    if (i == 99) return look->waiting + look->running;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return 0;
}

absl::Status Stability::Tell(const LoadFigures& figures, const LoadOutcome& outcome) {
  std::vector<std::string> faults = faults_;
  for (const Growth::Row& row : growth_.Rows()) {
    if (!row.holds) {
      faults.push_back(fmt::format("{} rose by {} (at most {})", row.name, row.Shown(row.rise),
                                   row.Shown(row.bound)));
    }
  }
  if (growth_.looks() < Growth::kLeast) {
    faults.push_back(
        fmt::format("only {} looks at the server: too short to tell", growth_.looks()));
  }
  if (const int64_t left = LeftBehind(); left > 0) {
    faults.push_back(fmt::format("{} requests are still in the queue", left));
  }
  if (figures.failed() > 0) faults.push_back(fmt::format("{} requests failed", figures.failed()));
  if (figures.answered() == 0) faults.emplace_back("no request was answered");
  if (as_json_) {
    json::object out = {{"load", figures.Json(outcome.took_us)},
                        {"looks", growth_.looks()},
                        {"growth", growth_.Json()},
                        {"faults", json::array(faults.begin(), faults.end())}};
    *io_.out << json::serialize(out) << "\n";
  } else {
    *io_.out << figures.Text(outcome.took_us) << growth_.Text();
    for (const std::string& fault : faults) *io_.out << "FAULT: " << ToValidUtf8(fault) << "\n";
  }
  if (faults.empty()) return absl::OkStatus();
  return absl::InternalError(fmt::format("the server is not stable: {}", faults[0]));
}

absl::Status Stability::Run() {
  ASSIGN_OR_RETURN(const LoadMix mix, Mix());
  LoadOptions load;
  RETURN_IF_ERROR(Prepare(&load));
  // Some 400 looks; by requests it is not known how long it takes.
  load.progress_us = std::clamp<int64_t>(mix.duration_us / 400, 50'000, 2'000'000);
  if (mix.most_requests > 0) load.progress_us = 100'000;
  load.progress = [this](int64_t at_us, int64_t) { TakeLook(at_us); };
  LoadFigures figures({"requests"}, {0}, mix.duration_us);
  ASSIGN_OR_RETURN(const LoadOutcome outcome, RunLoad(mix, load, &figures));
  return Tell(figures, outcome);
}

}  // namespace

void AddVerifyStability(Command verify, Invocation* invocation) {
  auto options = std::make_shared<StabilityOptions>();  // lives as long as the parser's callbacks
  Command command =
      verify.Add("stability",
                 "Put a load on a running server and watch it for leaks: memory beside the ledger, "
                 "descriptors, threads, ledger; fails if one of them grows, or a request fails",
                 [invocation, options] { return Stability(*options, invocation).Run(); });
  command.Option("--url", &options->url, {"URL", "The server (default http://127.0.0.1:8000)"});
  command.Option("--admin", &options->admin,
                 {"URL", "Its admin port (default http://127.0.0.1:8003)"});
  command.Option("--ca", &options->ca,
                 {"FILE", "Certificates (PEM) that may sign the server's; else the system's"});
  command.Option("--model", &options->models,
                 {"NAME", "Ask this model; may be given often (default: all)"});
  command.Option("--duration", &options->duration, {"DURATION", "How long (5m)"});
  command.Option("--requests", &options->requests,
                 {"NUMBER", "End after so many, if that is earlier"});
  command.Option("--clients", &options->clients, {"NUMBER", "That ask at once (4)"});
  command.Option("--prompt", &options->prompt, {"TOKENS", "Of a prompt (16-256)"});
  command.Option("--output", &options->output, {"TOKENS", "Of an answer (1-64)"});
}

}  // namespace terrace::cli
