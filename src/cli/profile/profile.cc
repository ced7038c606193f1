// terrace profile: a request, or a switch to a model, on a running server, seen from all sides: a
// timeline for Perfetto and for a browser, and a flame graph of the server's stacks meanwhile.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/page/page.h"
#include "cli/profile/stacks.h"
#include "cli/profile/timeline.h"
#include "os/atomic_file.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

struct ProfileCommand {
  std::string url = "http://127.0.0.1:8000";
  std::string admin = "http://127.0.0.1:8003";
  std::string ca, model, other, prompt;
  int32_t words = 64, output = 32;
  std::string out = "profile";
  bool no_stacks = false;
  bool is_switch = false;
};

std::string PromptOf(const ProfileCommand& command) {
  if (!command.prompt.empty()) return command.prompt;
  std::string text;
  for (int32_t i = 0; i < command.words; ++i) text += i % 2 == 0 ? "river " : "stone ";
  return text;
}

json::object BodyOf(const ProfileCommand& command, const std::string& model, int32_t tokens) {
  return {{"model", model},
          {"prompt", PromptOf(command)},
          {"max_tokens", tokens},
          {"temperature", 0},
          {"stream", true}};
}

// A folder of our own, until destroyed.
class Scratch {
 public:
  Scratch() {
    std::string path = (fs::temp_directory_path() / "terrace-profile-XXXXXX").string();
    if (mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Looks at the server until Stop, on a thread of its own.
class Watcher {
 public:
  Watcher(const std::string& admin, const AskOptions& ask, Timeline* timeline)
      : thread_([this, admin, ask, timeline] {
          while (!stop_.load()) {
            const absl::StatusOr<json::value> state = AskAdmin(admin, "/admin/state", ask);
            if (state.ok()) (void)timeline->AddState(state->as_object());
            usleep(2000);
          }
        }) {}
  ~Watcher() { Stop(); }
  void Stop() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

struct Profiled {
  std::string trace_id;
  std::vector<int64_t> token_us;  // on the server's clock
  std::optional<Stacks> stacks;
  std::string stacks_note;  // why there are none
};

class Profiler {
 public:
  Profiler(const ProfileCommand& command, Invocation* invocation)
      : command_(command),
        io_(*invocation->io),
        key_(io_.Variable("TERRACE_KEY")),
        timeline_(command.model) {}

  absl::Status Run(bool as_json);

 private:
  AskOptions Asking(std::string body = {}) const {
    return {.key = key_, .ca = command_.ca, .body = std::move(body)};
  }
  absl::Status Prepare();
  // The server's process, where it is one of this machine.
  void StartStacks(const std::string& folder);
  absl::Status Ask();
  absl::Status ReadTrace();
  absl::Status Write();
  void Tell(bool as_json);
  Stacks SpansAsStacks() const;

  const ProfileCommand& command_;
  Io& io_;
  const std::string key_;
  Timeline timeline_;
  RealClock clock_;
  int64_t ahead_us_ = 0;  // the server's clock less ours
  int64_t pid_ = 0;
  std::optional<PerfSampler> sampler_;
  Profiled profiled_;
};

absl::Status Profiler::Prepare() {
  const int64_t before = clock_.NowUs();
  ASSIGN_OR_RETURN(const json::value state, AskAdmin(command_.admin, "/admin/state", Asking()));
  const json::object& object = state.as_object();
  const json::value* at = object.if_contains("clock_us");
  if (at == nullptr || !at->is_number()) {
    return absl::FailedPreconditionError(command_.admin + " is no Terrace of this version");
  }
  ahead_us_ = at->to_number<int64_t>() - (before + clock_.NowUs()) / 2;
  if (const json::value* process = object.if_contains("process"); process->is_object()) {
    const json::value* pid = process->get_object().if_contains("pid");
    pid_ = pid != nullptr && pid->is_number() ? pid->to_number<int64_t>() : 0;
  }
  if (!command_.is_switch) return absl::OkStatus();
  RETURN_IF_ERROR(AskServer(fmt::format("{}/admin/models/{}/evict", command_.admin, command_.model),
                            Asking("{}"))
                      .status());
  if (command_.other.empty()) return absl::OkStatus();
  AskOptions ask = Asking(json::serialize(BodyOf(command_, command_.other, 4)));
  ask.timeout_s = 600;
  return AskServer(command_.url + "/v1/completions", ask).status();
}

void Profiler::StartStacks(const std::string& folder) {
  if (command_.no_stacks) {
    profiled_.stacks_note = "not asked for";
    return;
  }
  const bool here = command_.admin.find("//127.") != std::string::npos ||
                    command_.admin.find("//localhost") != std::string::npos ||
                    command_.admin.find("//[::1]") != std::string::npos;
  std::error_code error;
  if (!here || pid_ == 0 || !fs::exists(fmt::format("/proc/{}", pid_), error)) {
    profiled_.stacks_note = "the server runs on another machine";
    return;
  }
  absl::StatusOr<PerfSampler> sampler = PerfSampler::Start(pid_, folder);
  if (sampler.ok()) {
    sampler_.emplace(*std::move(sampler));
  } else {
    profiled_.stacks_note = Message(sampler.status());
  }
}

absl::Status Profiler::Ask() {
  std::random_device random;
  profiled_.trace_id =
      fmt::format("{:08x}{:08x}{:08x}{:08x}", random() | 1u, random(), random(), random());
  AskOptions ask = Asking(json::serialize(BodyOf(command_, command_.model, command_.output)));
  ask.headers = {fmt::format("traceparent: 00-{}-{:08x}{:08x}-01", profiled_.trace_id,
                             random() | 1u, random())};
  ask.timeout_s = 600;
  ask.on_line = [this](std::string_view line) {
    if (line.starts_with("data: {") && line.find("\"text\":\"\"") == std::string_view::npos) {
      profiled_.token_us.push_back(clock_.NowUs() + ahead_us_);
    }
  };
  return AskServer(command_.url + "/v1/completions", ask).status();
}

absl::Status Profiler::ReadTrace() {
  // It is kept once the connection has seen the answer's end.
  for (int i = 0; i < 100; ++i) {
    ASSIGN_OR_RETURN(
        const std::string trace,
        AskServer(fmt::format("{}/admin/traces?trace={}", command_.admin, profiled_.trace_id),
                  Asking()));
    if (trace.find("\"ph\":\"X\"") != std::string::npos) return timeline_.AddTrace(trace);
    usleep(20'000);
  }
  return absl::UnavailableError("the server kept no trace of the request");
}

// Without samples: where the request's time went, by its own parts.
Stacks Profiler::SpansAsStacks() const {
  Stacks out;
  const auto took = [&](std::string_view kind) {
    return static_cast<uint64_t>(std::max<int64_t>(0, timeline_.TookUs(kind)));
  };
  auto add = [&](std::vector<std::string> stack, uint64_t us) {
    if (us > 0) out[std::move(stack)] = us;
  };
  const uint64_t swap = std::min(took("swap"), took("prefill"));
  add({"request", "queue"}, took("queue"));
  add({"request", "prefill", "swap"}, swap);
  add({"request", "prefill"}, took("prefill") - swap);
  add({"request", "decode"}, took("decode"));
  const uint64_t parts = took("queue") + took("prefill") + took("decode");
  if (took("request") > parts) add({"request"}, took("request") - parts);
  return out;
}

absl::Status Profiler::Write() {
  const std::string what = command_.is_switch ? fmt::format("a switch to {}", command_.model)
                                              : fmt::format("a request to {}", command_.model);
  const bool sampled = profiled_.stacks.has_value() && !profiled_.stacks->empty();
  const Stacks stacks = sampled ? *profiled_.stacks : SpansAsStacks();
  json::object page = {
      {"what", what},
      {"time_us", clock_.WallUs()},
      {"timeline", timeline_.PageJson()},
      {"flame", json::object{{"unit", sampled ? "samples" : "us"},
                             {"note", profiled_.stacks_note},
                             {"tree", FlameTree(stacks, sampled ? "all threads" : "time")}}}};
  RETURN_IF_ERROR(os::WriteFileAtomically(
      command_.out + ".html",
      MakePage("terrace profile: " + what, {"palette.js", "profile.js"}, page)));
  RETURN_IF_ERROR(os::WriteFileAtomically(command_.out + ".json", timeline_.PerfettoJson()));
  return os::WriteFileAtomically(command_.out + ".folded", FoldedText(stacks));
}

void Profiler::Tell(bool as_json) {
  auto ms = [&](std::string_view kind) {
    return static_cast<double>(timeline_.TookUs(kind)) * 1e-3;
  };
  const bool sampled = profiled_.stacks.has_value() && !profiled_.stacks->empty();
  uint64_t samples = 0;
  if (sampled) {
    for (const auto& [stack, count] : *profiled_.stacks) samples += count;
  }
  if (as_json) {
    *io_.out << json::serialize(json::object{{"trace_id", profiled_.trace_id},
                                             {"request_ms", ms("request")},
                                             {"queue_ms", ms("queue")},
                                             {"swap_ms", ms("swap")},
                                             {"prefill_ms", ms("prefill")},
                                             {"decode_ms", ms("decode")},
                                             {"tokens", profiled_.token_us.size()},
                                             {"looks", timeline_.looks()},
                                             {"samples", samples},
                                             {"stacks_note", profiled_.stacks_note},
                                             {"page", command_.out + ".html"},
                                             {"perfetto", command_.out + ".json"},
                                             {"folded", command_.out + ".folded"}})
             << "\n";
    return;
  }
  *io_.out << fmt::format(
      "{:.1f} ms: queue {:.1f}, prefill {:.1f} (of it {:.1f} for weights), decode {:.1f}; {} "
      "pieces of text\n",
      ms("request"), ms("queue"), ms("prefill"), ms("swap"), ms("decode"),
      profiled_.token_us.size());
  *io_.out << (sampled ? fmt::format("{} stacks were sampled\n", samples)
                       : fmt::format("no stacks ({}): the flame graph is of the request's parts\n",
                                     profiled_.stacks_note));
  *io_.out << fmt::format(
      "{0}.html: timeline and flame graph; {0}.json: for ui.perfetto.dev; "
      "{0}.folded: stacks as text\n",
      command_.out);
}

absl::Status Profiler::Run(bool as_json) {
  RETURN_IF_ERROR(Prepare());
  const Scratch scratch;
  if (scratch.path().empty()) return ErrnoStatus(errno, "making a folder for samples");
  StartStacks(scratch.path());
  {
    Watcher watcher(command_.admin, Asking(), &timeline_);
    // A few looks at how things were before.
    usleep(30'000);
    const absl::Status asked = Ask();
    watcher.Stop();
    if (!asked.ok()) return asked;
  }
  if (sampler_) {
    absl::StatusOr<Stacks> stacks = sampler_->Stop();
    if (!stacks.ok()) {
      profiled_.stacks_note = Message(stacks.status());
    } else if (stacks->empty()) {
      profiled_.stacks_note = "the request was over before a sample was taken";
    } else {
      profiled_.stacks = *std::move(stacks);
    }
  }
  for (const int64_t at_us : profiled_.token_us) timeline_.AddToken(at_us);
  RETURN_IF_ERROR(ReadTrace());
  timeline_.Finish();
  RETURN_IF_ERROR(Write());
  Tell(as_json);
  return absl::OkStatus();
}

void AddOne(Command profile, Invocation* invocation, bool is_switch) {
  auto options = std::make_shared<ProfileCommand>();  // lives as long as the parser's callbacks
  options->is_switch = is_switch;
  Command command = profile.Add(
      is_switch ? "switch" : "request",
      is_switch
          ? "Take a model out of memory, ask it, and write what happened meanwhile as a page "
            "(timeline, flame graph), as Perfetto JSON and as folded stacks"
          : "Ask a model and write what happened meanwhile as a page (timeline, flame graph), "
            "as Perfetto JSON and as folded stacks",
      [invocation, options] { return Profiler(*options, invocation).Run(invocation->json); });
  command.Argument("model", &options->model, {"MODEL", "Its name, as the server calls it", true});
  command.Option("--url", &options->url, {"URL", "The server (default http://127.0.0.1:8000)"});
  command.Option("--admin", &options->admin,
                 {"URL", "Its admin port (default http://127.0.0.1:8003)"});
  command.Option("--ca", &options->ca,
                 {"FILE", "Certificates (PEM) that may sign the server's; else the system's"});
  command.Option("--prompt", &options->prompt, {"TEXT", "What to ask (default: --words of text)"});
  command.Option("--words", &options->words, {"NUMBER", "Words of the prompt (64)"});
  command.Option("--output", &options->output, {"TOKENS", "Of the answer, at most (32)"});
  command.Option("--out", &options->out,
                 {"PREFIX", "Writes PREFIX.html, PREFIX.json and PREFIX.folded (profile)"});
  command.Flag("--no-stacks", &options->no_stacks, "Do not sample stacks with perf");
  if (is_switch) {
    command.Option("--other", &options->other,
                   {"MODEL", "Ask this one first, so that it is what the switch is from"});
  }
}

}  // namespace

void AddProfileCommand(Command root, Invocation* invocation) {
  Command profile = root.AddGroup("profile",
                                  "Where time and memory go on a running server: flame graphs, "
                                  "timelines, pages of weights");
  AddOne(profile, invocation, /*is_switch=*/false);
  AddOne(profile, invocation, /*is_switch=*/true);
  AddProfilePages(profile, invocation);
}

}  // namespace terrace::cli
