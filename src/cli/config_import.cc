// terrace config import: other servers' configurations as terrace.yaml.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/config_import/imported.h"
#include "cli/config_import/readers.h"
#include "os/atomic_file.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

struct ImportCommand {
  std::string source;
  std::string command;
  std::string from;
  std::string name;
  std::string store;
  std::string out;
  bool strict = false;
  bool force = false;
};

const std::vector<std::string>& Programs() {
  static const std::vector<std::string> programs = {
      "llama-server",    "vllm",   "vllm.entrypoints.openai.api_server",
      "vllm-openai:",    "ollama", "tritonserver",
      "llama.cpp:server"};
  return programs;
}

// What a command is the start of.
absl::Status ReadCommand(const CommandLine& command, const ImportPlace& place, Imported* out) {
  const std::string program = command.words[0].substr(command.words[0].rfind('/') + 1);
  for (const Setting& setting : command.around) {
    out->Leave(setting, "part of the command that is not the server's own");
  }
  if (program == "llama-server" || program.starts_with("llama.cpp:"))
    return ReadLlamaServer(command, place, out);
  if (program == "ollama") return ReadOllama(command, place, out);
  if (program == "tritonserver") return ReadTriton(command, place, out);
  return ReadVllm(command, place, out);
}

// Folders by what is in them.
absl::StatusOr<std::string> FormOfFolder(const fs::path& folder, std::string* root) {
  std::error_code error;
  for (const char* below : {"", "models"}) {
    if (fs::is_directory(folder / below / "manifests", error)) {
      *root = (folder / below).string();
      return "ollama";
    }
  }
  if (fs::exists(folder / "config.pbtxt", error)) return "triton";
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code inner;
    if (fs::exists(entry.path() / "config.pbtxt", inner) ||
        fs::is_directory(entry.path() / "1", inner)) {
      return "triton";
    }
  }
  return absl::InvalidArgumentError(fmt::format(
      "{} is neither a model repository of Triton nor the models of Ollama", folder.string()));
}

// Files by their names and what is in them.
std::string FormOfFile(const fs::path& file, std::string_view text) {
  const std::string name = ToLower(file.filename().string());
  if (name.ends_with(".pbtxt")) return "triton";
  if (name.ends_with(".yaml") || name.ends_with(".yml")) return "vllm";
  if (name.starts_with("modelfile") || name.ends_with(".modelfile")) return "modelfile";
  for (std::string_view line : Split(text, '\n')) {
    line = StripSpace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (ToLower(line.substr(0, 5)) == "from ") return "modelfile";
    if (line[0] == '[' || line.starts_with("version")) return "ini";
    break;
  }
  return name.ends_with(".ini") ? "ini" : "command";
}

absl::Status ReadFile(const ImportCommand& command, std::string form, ImportPlace place,
                      Imported* out) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(command.source));
  const fs::path file = fs::absolute(command.source).lexically_normal();
  place.where = file.filename().string();
  place.folder = file.parent_path().string();
  if (form.empty()) form = FormOfFile(file, text);
  if (form == "triton") return ReadTritonRepository(place.folder, place, out);
  if (form == "vllm" && FormOfFile(file, text) == "vllm") return ReadVllmYaml(text, place, out);
  if (form == "modelfile" || (form == "ollama" && FormOfFile(file, text) == "modelfile")) {
    if (place.name.empty()) place.name = file.parent_path().filename().string();
    return ReadModelfile(text, place, out);
  }
  if (form == "ini" || (form == "llama" && FormOfFile(file, text) == "ini")) {
    absl::StatusOr<std::vector<IniSection>> sections = ParseIni(text, place.where);
    if (sections.ok() && form == "ini" && IsOwnIni(*sections)) return ReadOwnIni(text, place, out);
    // A unit file is an INI file too.
    if (absl::StatusOr<CommandLine> found = FindCommand(text, place.where, Programs());
        found.ok() && text.find("ExecStart=") != std::string::npos) {
      return ReadCommand(*found, place, out);
    }
    return ReadLlamaPreset(text, place, out);
  }
  ASSIGN_OR_RETURN(const CommandLine found, FindCommand(text, place.where, Programs()));
  return ReadCommand(found, place, out);
}

absl::Status Read(const ImportCommand& command, Imported* out) {
  ImportPlace place;
  place.name = command.name;
  place.store = command.store;
  place.folder = fs::current_path().string();
  for (const char* form :
       {"", "llama", "ollama", "triton", "vllm", "modelfile", "ini", "command"}) {
    if (command.from == form) break;
    if (std::string_view(form) == "command") {
      return absl::InvalidArgumentError(fmt::format(
          "--from: '{}' is none of llama, ollama, triton, vllm, modelfile, ini and command",
          command.from));
    }
  }
  if (command.source.empty() == command.command.empty()) {
    return absl::InvalidArgumentError("give a file or a folder, or a command line as --command");
  }
  if (!command.command.empty()) {
    absl::StatusOr<CommandLine> found = FindCommand(command.command, "command", Programs());
    if (!found.ok()) {
      return absl::InvalidArgumentError(
          "--command: it starts none of llama-server, vllm serve, ollama serve and tritonserver");
    }
    return ReadCommand(*found, place, out);
  }
  std::error_code error;
  if (!fs::is_directory(command.source, error)) {
    return ReadFile(command, command.from, place, out);
  }
  std::string root = command.source;
  std::string form = command.from;
  if (form.empty()) {
    ASSIGN_OR_RETURN(form, FormOfFolder(command.source, &root));
  }
  place.where = command.source;
  if (form == "ollama") return ReadOllamaStore(fs::absolute(root).string(), place, out);
  if (form == "triton") return ReadTritonRepository(command.source, place, out);
  return absl::InvalidArgumentError(
      fmt::format("{} is a folder, which {} has none of", command.source, form));
}

json::object SettingJson(const Setting& setting) {
  return {{"where", ToValidUtf8(setting.where)},
          {"setting", ToValidUtf8(setting.name)},
          {"value", Shown(setting)}};
}

void WriteJson(const Imported& imported, const std::string& yaml, std::ostream& out) {
  json::array taken, left, steps;
  for (const Imported::Taken& each : imported.taken()) {
    json::object entry = SettingJson(each.setting);
    entry["key"] = each.as;
    entry["becomes"] = ToValidUtf8(each.value);
    entry["remark"] = each.remark;
    taken.push_back(std::move(entry));
  }
  for (const Imported::Left& each : imported.left()) {
    json::object entry = SettingJson(each.setting);
    entry["why"] = each.why;
    left.push_back(std::move(entry));
  }
  for (const std::string& step : imported.steps()) steps.emplace_back(step);
  out << json::serialize(json::object{{"yaml", yaml},
                                      {"taken", std::move(taken)},
                                      {"not_taken", std::move(left)},
                                      {"steps", std::move(steps)}})
      << "\n";
}

// What a person should know beside the file: on the error stream, so that the file can be piped.
void Report(const Imported& imported, std::ostream& err) {
  for (const Imported::Taken& each : imported.taken()) {
    if (each.remark.empty()) continue;
    err << fmt::format("{}: {} became {}: {} ({})\n", each.setting.where, each.setting.name,
                       each.as, each.value, each.remark);
  }
  for (const Imported::Left& each : imported.left()) {
    const std::string value = Shown(each.setting);
    err << fmt::format("{}: not taken over: {}{}: {}\n", each.setting.where, each.setting.name,
                       value.empty() ? "" : " = " + value, each.why);
  }
  for (const std::string& step : imported.steps()) err << fmt::format("to do: {}\n", step);
  err << fmt::format("{} model{}, {} settings taken over, {} not\n", imported.model_count(),
                     imported.model_count() == 1 ? "" : "s", imported.taken().size(),
                     imported.left().size());
}

absl::Status RunImport(const Invocation& invocation, const ImportCommand& command) {
  std::error_code error;
  Imported imported(command.source.empty()
                        ? fs::current_path().string()
                        : fs::absolute(command.source, error).parent_path().string());
  RETURN_IF_ERROR(Read(command, &imported));
  imported.Settle();
  if (imported.taken().empty()) {
    Report(imported, *invocation.io->err);
    return absl::InvalidArgumentError("there is nothing in it that can be taken over");
  }
  ASSIGN_OR_RETURN(const std::string yaml,
                   imported.Yaml(command.source.empty() ? "a command line" : command.source));
  if (!command.out.empty()) {
    if (!command.force && fs::exists(command.out, error)) {
      return absl::AlreadyExistsError(
          fmt::format("{} is there already; --force writes over it", command.out));
    }
    RETURN_IF_ERROR(os::WriteFileAtomically(command.out, yaml));
  }
  if (invocation.json) {
    WriteJson(imported, yaml, *invocation.io->out);
  } else {
    if (command.out.empty()) *invocation.io->out << yaml;
    Report(imported, *invocation.io->err);
  }
  if (!command.strict || imported.left().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("--strict: {} settings were not taken over", imported.left().size()));
}

}  // namespace

void AddConfigImport(Command config, Invocation* invocation) {
  auto options = std::make_shared<ImportCommand>();  // lives as long as the parser's callbacks
  Command command = config.Add(
      "import",
      "Make terrace.yaml of another server's configuration: llama.cpp's (presets, command line), "
      "Ollama's (Modelfile, its models), Triton's (model repository), vLLM's (command line, YAML), "
      "or an INI file of our own keys; what is not taken over is listed",
      [invocation, options] { return RunImport(*invocation, *options); });
  command.Argument("source", &options->source,
                   {"SOURCE",
                    "A file (presets, Modelfile, config.pbtxt, YAML, INI, a script or unit file "
                    "with the command) or a folder (model repository, Ollama's models)"});
  command.Option("--command", &options->command,
                 {"TEXT", "A command line instead, such as 'llama-server -m chat.gguf -c 8192'"});
  command.Option("--from", &options->from,
                 {"FORM",
                  "llama, ollama, triton, vllm, modelfile, ini or command, where it cannot be told "
                  "from the source"});
  command.Option("--name", &options->name, {"NAME", "Of the model, where the source has none"});
  command.Option("--store", &options->store,
                 {"FOLDER", "Ollama's models (default: OLLAMA_MODELS, else ~/.ollama/models)"});
  command.Option("--out", &options->out, {"FILE", "Write it there (default: to the output)"});
  command.Flag("--force", &options->force, "Write over a file that is there");
  command.Flag("--strict", &options->strict, "Fail if anything is not taken over");
}

}  // namespace terrace::cli
