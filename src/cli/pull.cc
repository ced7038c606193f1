#include "cli/pull.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>
#include <ostream>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "weights/pull.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct PullCommand {
  ConfigOptions config;
  std::string source;
  std::string name;
  std::string version;
  std::string sha256;
  std::string hub;
};

// One line that is written over while bytes come; silent where nobody watches.
class ProgressLine {
 public:
  ProgressLine(std::ostream* err, bool is_terminal) : err_(err), is_terminal_(is_terminal) {}

  void Update(const weights::PullProgress& progress) {
    if (!is_terminal_) return;
    constexpr int64_t kIntervalUs = 100000;
    int64_t now_us = clock_.NowUs();
    if (progress.file != file_) {
      End();
      file_ = progress.file;
      start_us_ = now_us;
      start_bytes_ = progress.done_bytes;
    } else if (now_us - last_us_ < kIntervalUs && progress.done_bytes != progress.total_bytes) {
      return;
    }
    last_us_ = now_us;
    shown_ = true;
    double seconds = static_cast<double>(now_us - start_us_) / 1e6;
    uint64_t moved = progress.done_bytes - start_bytes_;
    std::string share = progress.total_bytes == 0
                            ? ""
                            : fmt::format(" of {} ({}%)", FormatBytes(progress.total_bytes),
                                          progress.done_bytes * 100 / progress.total_bytes);
    std::string rate =
        seconds < 0.2
            ? ""
            : fmt::format(", {}/s",
                          FormatBytes(static_cast<uint64_t>(static_cast<double>(moved) / seconds)));
    // \x1b[K clears what a longer line left behind.
    *err_ << fmt::format("\r{}: {}{}{}\x1b[K", file_, FormatBytes(progress.done_bytes), share, rate)
          << std::flush;
  }
  void End() {
    if (shown_) *err_ << "\n";
    shown_ = false;
  }

 private:
  std::ostream* err_;
  bool is_terminal_;
  RealClock clock_;
  std::string file_;
  int64_t start_us_ = 0, last_us_ = 0;
  uint64_t start_bytes_ = 0;
  bool shown_ = false;
};

void WriteResult(const weights::PullResult& result, bool as_json, std::ostream& out) {
  const weights::StoredVersion& version = result.version;
  if (!as_json) {
    out << fmt::format("{}@{}  {}  {}{}\n", result.name, version.version,
                       FormatBytes(version.bytes), version.path,
                       result.already_there ? "  (was there already)" : "");
    return;
  }
  json::array files;
  for (const weights::StoredFile& file : version.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  out << json::serialize(json::object{{"name", result.name},
                                      {"version", version.version},
                                      {"path", version.path},
                                      {"bytes", version.bytes},
                                      {"already_there", result.already_there},
                                      {"resumed_at_bytes", result.resumed_at_bytes},
                                      {"files", std::move(files)}})
      << "\n";
}

absl::Status RunPull(const Invocation& invocation, const PullCommand& command) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, command.config.Load(*invocation.io));
  weights::PullOptions options;
  options.name = command.name;
  options.version = command.version;
  options.sha256 = command.sha256;
  std::string hub = command.hub.empty() ? invocation.io->Variable("HF_ENDPOINT") : command.hub;
  if (!hub.empty()) options.hub = hub;
  // Only hubs take this token; it must not go to other web servers.
  if (command.source.starts_with("hf:")) {
    options.fetch.bearer_token = invocation.io->Variable("HF_TOKEN");
  }
  options.fetch.environment = ObjectEnvironment(
      loaded.config, [io = invocation.io](std::string_view name) { return io->Variable(name); });
  ProgressLine line(invocation.io->err, invocation.io->err_is_terminal);
  options.progress = [&](const weights::PullProgress& progress) { line.Update(progress); };
  weights::ModelStore store(StoreFolder(loaded.config));
  auto result = weights::Pull(command.source, store, options);
  line.End();
  if (!result.ok()) return result.status();
  WriteResult(*result, invocation.json, *invocation.io->out);
  return absl::OkStatus();
}

}  // namespace

void AddPullCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<PullCommand>();  // lives as long as the parser's callbacks
  Command command = root.Add("pull", "Fetch a model into the store; resumes what was interrupted",
                             [invocation, options] { return RunPull(*invocation, *options); });
  command.Argument(
      "source", &options->source,
      {"SOURCE",
       "A path, a file:, http:, https: or s3://bucket/key URL of a GGUF file (any part of a split "
       "set), or hf:owner/name[:file] (a GGUF file, or its checkpoint); s3: takes AWS_* variables",
       true});
  command.Option("--name", &options->name, {"NAME", "Name in the store; else from the source"});
  command.Option("--version", &options->version, {"VERSION", "Version; else the next number"});
  command.Option("--sha256", &options->sha256, {"HEX", "What the file's SHA-256 must be"});
  command.Option(
      "--hub", &options->hub,
      {"URL", fmt::format("Hub of hf: sources (HF_ENDPOINT; else {})", weights::kDefaultHub)});
  options->config.AddTo(command, {"storage"});
}

}  // namespace terrace::cli
