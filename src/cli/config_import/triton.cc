// Triton: a model repository (a folder for each model, with config.pbtxt and a folder for each
// version) and the server's command line.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <optional>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_import/readers.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

std::string PortOrOff(const std::string& value) {
  return ToLower(value) == "false" || value == "0" ? "off" : "";
}

const std::vector<ImportRule>& CommandRules() {
  constexpr std::string_view kOne = "the server's own; it has one address for all protocols";
  static const std::vector<ImportRule> rules = {
      {"http-port", "server.port"},
      {"http-address", "server.host"},
      {"grpc-port", "server.grpc_port"},
      {"grpc-address", "", false, kOne},
      {"metrics-port", "server.metrics_port"},
      {"metrics-address", "", false, kOne},
      {"allow-grpc", "server.grpc_port", false, "", &PortOrOff},
      {"allow-metrics", "server.metrics_port", false, "", &PortOrOff},
      {"exit-timeout-secs", "server.drain_timeout", false, "", &SecondsOf},
      {"model-control-mode", "", false, "models are loaded when they are asked for, or by request"},
      {"load-model", "", false, "models are loaded when they are asked for"},
      {"strict-readiness", "", false, "/ready says whether a request would be taken"},
      {"log-verbose", "", false, "log.level: debug is what is meant"},
  };
  return rules;
}

// A leaf with its path: "dynamic_batching.default_queue_policy.max_queue_size".
void Flatten(const std::vector<TextField>& fields, const std::string& prefix,
             const std::string& where, std::vector<Setting>* out) {
  for (const TextField& field : fields) {
    const std::string name = prefix.empty() ? field.name : prefix + "." + field.name;
    if (!field.is_message || field.fields.empty()) {
      out->push_back({name, field.value, fmt::format("{}:{}", where, field.line)});
    } else {
      Flatten(field.fields, name, where, out);
    }
  }
}

std::string SlaOf(const std::string& priority) {
  return priority == "PRIORITY_MAX"   ? "realtime"
         : priority == "PRIORITY_MIN" ? "batch"
                                      : "standard";
}

const std::vector<ImportRule>& ModelRules() {
  static const std::vector<ImportRule> rules = {
      {"max_batch_size", "scheduler.max_batch", false, "sequences of one model in a step"},
      {"dynamic_batching.default_queue_policy.max_queue_size", "scheduler.max_queue", false,
       "for all models together"},
      {"optimization.priority", "sla", true, "the class of its weights; requests name their own",
       &SlaOf},
      {"platform", "", false, "the weights' form says how they are served"},
      {"backend", "", false, "the weights' form says how they are served"},
      {"name", "", false, "the folder's name is the model's"},
      {"dynamic_batching.max_queue_delay_microseconds", "", false,
       "requests join while others run; nothing is held back for them"},
      {"dynamic_batching.preferred_batch_size", "", false,
       "requests join while others run; nothing is held back for them"},
      {"instance_group.kind", "", false, "device.kind says where models are computed"},
      {"instance_group.count", "", false, "a model is there once, for all of its requests"},
      {"instance_group.gpus", "", false, "device.number says which chip computes"},
      {"model_transaction_policy.decoupled", "", false, "answers can always be streamed"},
  };
  return rules;
}

// 0 for what is no version's folder.
int VersionOf(const std::string& name) {
  return name.starts_with('0') ? 0 : WholeNumber(name).value_or(0);
}

std::vector<int> VersionsIn(const fs::path& folder) {
  std::vector<int> versions;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code inner;
    const std::string name = entry.path().filename().string();
    if (entry.is_directory(inner) && VersionOf(name) > 0) versions.push_back(VersionOf(name));
  }
  std::sort(versions.rbegin(), versions.rend());
  return versions;
}

// The versions that the policy asks for, newest first, and what of the policy is taken.
std::vector<int> Served(const std::vector<TextField>& fields, const std::vector<int>& there) {
  const TextField* policy = nullptr;
  for (const TextField& field : fields) {
    if (field.name == "version_policy" && !field.fields.empty()) policy = &field.fields.front();
  }
  std::vector<int> served = there;
  size_t most = 1;
  if (policy != nullptr && policy->name == "all") most = there.size();
  if (policy != nullptr && policy->name == "latest") {
    for (const TextField& field : policy->fields) {
      if (field.name == "num_versions") most = static_cast<size_t>(VersionOf(field.value));
    }
  }
  if (policy != nullptr && policy->name == "specific") {
    most = there.size();
    std::erase_if(served, [&](int version) {
      return std::none_of(policy->fields.begin(), policy->fields.end(), [&](const TextField& each) {
        return each.name == "versions" && each.value == fmt::format("{}", version);
      });
    });
  }
  if (served.size() > most) served.resize(most);
  return served;
}

// Weights in a version's folder that can be served: a GGUF file or a checkpoint.
std::optional<std::string> WeightsIn(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    files.push_back(entry.path().filename().string());
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    if (file.ends_with(".gguf")) return (folder / file).string();
  }
  const bool checkpoint = std::find(files.begin(), files.end(), "config.json") != files.end();
  return checkpoint ? std::optional(folder.string()) : std::nullopt;
}

// model.json of the backend that runs vLLM: the arguments of its engine.
bool ReadEngine(const fs::path& file, size_t model, Imported* out) {
  const absl::StatusOr<std::string> text = ReadSmallFile(file.string());
  if (!text.ok()) return false;
  json::error_code error;
  const json::value value = json::parse(*text, error);
  const std::string where = (file.parent_path().filename() / file.filename()).string();
  if (error || !value.is_object()) {
    out->Leave({file.filename().string(), "", where}, "no JSON object");
    return false;
  }
  std::vector<Setting> rest;
  for (const auto& [key, each] : value.get_object()) {
    const Setting setting{std::string(key),
                          each.is_string() ? std::string(each.get_string()) : json::serialize(each),
                          where};
    if (key != "model") {
      rest.push_back(setting);
      continue;
    }
    std::error_code there;
    const bool path = setting.value.starts_with('/') || setting.value.starts_with('.') ||
                      fs::exists(file.parent_path() / setting.value, there);
    out->TakeSource(model, setting, (path ? "" : "hf:") + setting.value,
                    file.parent_path().string());
  }
  ReadVllmArguments(rest, {.where = where, .folder = file.parent_path().string()}, model, out);
  return out->HasSource(model);
}

absl::Status ReadModelFolder(const fs::path& folder, Imported* out) {
  const std::string name = folder.filename().string();
  const std::string where = name + "/config.pbtxt";
  std::vector<TextField> fields;
  std::error_code error;
  if (fs::exists(folder / "config.pbtxt", error)) {
    ASSIGN_OR_RETURN(const std::string text, ReadSmallFile((folder / "config.pbtxt").string()));
    absl::StatusOr<std::vector<TextField>> parsed = ParseProtoText(text);
    if (!parsed.ok()) return WithContext(parsed.status(), where);
    fields = *std::move(parsed);
  }
  const Setting whole{"model", name, folder.string()};
  const std::vector<int> versions = Served(fields, VersionsIn(folder));
  std::vector<size_t> models;
  for (const int version : versions) {
    const fs::path inside = folder / fmt::format("{}", version);
    // The newest has the model's own name, others that of their version.
    const size_t model =
        out->AddModel(whole, models.empty() ? name : fmt::format("{}@{}", name, version));
    const Setting of_version{"version", fmt::format("{}", version), folder.string()};
    if (const std::optional<std::string> weights = WeightsIn(inside)) {
      out->TakeSource(model, of_version, *weights, "/");
    } else if (!ReadEngine(inside / "model.json", model, out)) {
      out->Leave(of_version,
                 "it has neither a GGUF file, a checkpoint with config.json, nor a model.json that "
                 "names one");
    }
    models.push_back(model);
  }
  if (models.empty()) {
    out->Leave(whole, "it has no version that can be served");
  }
  std::vector<Setting> settings;
  Flatten(fields, "", where, &settings);
  for (const Setting& setting : settings) {
    if (setting.name.starts_with("version_policy")) {
      continue;  // what it says is which versions are there
    }
    const auto rule = std::find_if(
        ModelRules().begin(), ModelRules().end(),
        [&](const ImportRule& each) { return each.name == setting.name && each.of_model; });
    if (rule != ModelRules().end() && models.empty()) {
      out->Leave(setting, "without a model");
    } else if (setting.name == "max_batch_size" && setting.value == "0") {
      out->Leave(setting, "requests are always computed together");
    } else if (rule == ModelRules().end()) {
      ApplyRule(setting, setting.name, ModelRules(), 0, out);
    } else {
      for (const size_t model : models) {
        ApplyRule(setting, setting.name, ModelRules(), model, out);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTritonRepository(const std::string& folder, const ImportPlace& place,
                                  Imported* out) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / "config.pbtxt", error)) {
    RETURN_IF_ERROR(ReadModelFolder(fs::absolute(fs::path(folder)).lexically_normal(), out));
  }
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code inner;
    const bool configured = fs::exists(entry.path() / "config.pbtxt", inner);
    if (configured || (entry.is_directory(inner) && !VersionsIn(entry.path()).empty())) {
      models.push_back(entry.path());
    }
  }
  if (error) return absl::UnavailableError(fmt::format("{}: {}", folder, error.message()));
  std::sort(models.begin(), models.end());
  for (const fs::path& model : models) {
    const absl::Status status = ReadModelFolder(model, out);
    if (!status.ok()) return WithContext(status, place.where);
  }
  out->DropModelsWithoutSource();
  return absl::OkStatus();
}

absl::Status ReadTriton(const CommandLine& command, const ImportPlace& place, Imported* out) {
  for (const Setting& variable : command.variables) {
    out->Leave(variable, "a variable that is not known here");
  }
  const std::vector<std::string> words(command.words.begin() + 1, command.words.end());
  for (const Setting& option : ParseOptions(words, command.where, {}, {})) {
    if (option.name == "model-repository" || option.name == "model-store") {
      if (option.value.find("://") != std::string::npos) {
        out->Leave(option, "a repository in an object store: bring it to this machine first");
        continue;
      }
      ImportPlace inside = place;
      inside.where = option.value;
      RETURN_IF_ERROR(
          ReadTritonRepository((fs::path(place.folder) / option.value).string(), inside, out));
    } else {
      ApplyRule(option, option.name, CommandRules(), 0, out);
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::cli
