// vLLM: the command line of `vllm serve`, the YAML file of its --config, and the arguments of an
// engine as model.json of a model repository has them.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <optional>
#include <set>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_import/readers.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

const std::set<std::string, std::less<>>& Switches() {
  static const std::set<std::string, std::less<>> switches = {"enable-prefix-caching",
                                                              "enforce-eager",
                                                              "trust-remote-code",
                                                              "enable-lora",
                                                              "enable-expert-parallel",
                                                              "enable-chunked-prefill",
                                                              "disable-log-requests",
                                                              "disable-log-stats",
                                                              "enable-auto-tool-choice",
                                                              "enable-log-requests",
                                                              "headless",
                                                              "disable-custom-all-reduce",
                                                              "async-scheduling",
                                                              "enable-sleep-mode",
                                                              "no-enable-prefix-caching"};
  return switches;
}

const std::set<std::string, std::less<>>& Lists() {
  static const std::set<std::string, std::less<>> lists = {"served-model-name", "lora-modules"};
  return lists;
}

std::string Canonical(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (name == "tp") return "tensor-parallel-size";
  if (name == "pp") return "pipeline-parallel-size";
  if (name == "dp") return "data-parallel-size";
  if (name == "q") return "quantization";
  return name;
}

std::string KvType(const std::string& type) {
  if (type.starts_with("fp8")) return "i8";
  return type == "float16" || type == "half" ? "f16" : "";
}

// ["https://a", "*"] as `https://a,*`.
std::string Origins(const std::string& text) {
  json::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_array()) return "";
  std::string out;
  for (const json::value& each : value.get_array()) {
    if (!each.is_string()) return "";
    out += fmt::format("{}{}", out.empty() ? "" : ",", std::string_view(each.get_string()));
  }
  return out;
}

std::string LogLevel(const std::string& text) {
  const std::string low = ToLower(text);
  return low == "trace" ? "debug" : low == "critical" ? "error" : low;
}

const std::vector<ImportRule>& Rules() {
  constexpr std::string_view kAlways = "it is always so here";
  constexpr std::string_view kFile = "it follows from the model's file";
  static const std::vector<ImportRule> rules = {
      {"host", "server.host"},
      {"port", "server.port"},
      {"ssl-keyfile", "tls.key"},
      {"ssl-certfile", "tls.certificate"},
      {"allowed-origins", "server.cors_origins", false, "", &Origins},
      {"uvicorn-log-level", "log.level", false, "", &LogLevel},
      {"max-num-seqs", "scheduler.max_batch", false, "sequences of one model in a step"},
      {"max-num-batched-tokens", "scheduler.step_tokens", false, "for all models", &TokenCount},
      {"cpu-offload-gb", "memory.host_budget", false,
       "host memory for weights that do not fit; for devices with memory of their own",
       &GibibytesOf},
      {"kv-offloading-size", "kv.host_size", false, "part of memory.host_budget", &GibibytesOf},
      {"swap-space", "kv.host_size", false, "part of memory.host_budget", &GibibytesOf},
      {"max-model-len", "max_context", true, "", &TokenCount},
      {"tensor-parallel-size", "tensor_parallel", true},
      {"kv-cache-dtype", "kv_dtype", true, "the form of 8 bits here is integers with scales",
       &KvType},
      {"gpu-memory-utilization", "", false,
       "a share of a chip's memory: give the bytes as memory.device_budget"},
      {"api-key", "", false, "make keys with `terrace key add`; only their hashes are kept"},
      {"enable-prefix-caching", "", false, kAlways},
      {"enable-chunked-prefill", "", false, kAlways},
      {"enable-lora", "", false, kAlways},
      {"max-loras", "", false, "any number of adapters is served"},
      {"max-lora-rank", "", false, kFile},
      {"dtype", "", false, kFile},
      {"quantization", "", false,
       "it follows from the model's file; `terrace quantize` makes others"},
      {"load-format", "", false, kFile},
      {"tokenizer", "", false, kFile},
      {"trust-remote-code", "", false, "no code of a checkpoint is ever run"},
      {"enforce-eager", "", false,
       "device.graphs: false is what is meant, on chips that have them"},
      {"enable-expert-parallel", "", false,
       "expert_parallel of the model says on how many devices its experts are"},
      {"pipeline-parallel-size", "", false, "models are divided by tensor_parallel only"},
      {"data-parallel-size", "", false, "run a server for each copy"},
      {"chat-template", "", false, "the template in the model's file is used"},
      {"disable-log-requests", "", false, "no content is ever logged"},
      {"enable-auto-tool-choice", "", false, kAlways},
      {"tool-call-parser", "", false, "how calls are written follows from the chat template"},
      {"reasoning-parser", "", false, "how reasoning is marked follows from the chat template"},
      {"seed", "", false, "clients say it in their requests"},
  };
  return rules;
}

// A path on this machine, or a repository of the hub.
std::string SourceOf(const std::string& model, const std::string& folder) {
  std::error_code error;
  const bool path = model.starts_with('/') || model.starts_with('.') || model.starts_with('~') ||
                    std::filesystem::exists(std::filesystem::path(folder) / model, error);
  if (path || model.find("://") != std::string::npos) return model;
  return "hf:" + model;
}

// name=path, or {"name", "path", "base_model_name"}.
void ReadAdapter(const Setting& setting, const ImportPlace& place, size_t model, Imported* out) {
  json::error_code error;
  const json::value value = json::parse(setting.value, error);
  std::string name, path;
  auto text = [&](const char* key) {
    const json::value* found = value.get_object().if_contains(key);
    return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
  };
  if (!error && value.is_object()) {
    name = text("name");
    path = text("path");
  } else if (const size_t equals = setting.value.find('='); equals != std::string::npos) {
    name = setting.value.substr(0, equals);
    path = setting.value.substr(equals + 1);
  }
  if (name.empty() || path.empty()) return out->Leave(setting, "neither name=path nor an object");
  const size_t adapter = out->AddModel(setting, name);
  out->TakeSource(adapter, setting, path, place.folder);
  out->TakeFor(adapter, setting, "base", out->ModelName(model));
}

void ReadSpeculation(const Setting& setting, const ImportPlace& place, size_t model,
                     Imported* out) {
  json::error_code error;
  const json::value value = json::parse(setting.value, error);
  if (error || !value.is_object()) return out->Leave(setting, "no JSON object");
  std::string method, draft;
  std::string rest;
  for (const auto& [key, each] : value.get_object()) {
    const std::string text =
        each.is_string() ? std::string(each.get_string()) : json::serialize(each);
    if (key == "method") {
      method = text;
    } else if (key == "model") {
      draft = text;
    } else if (key == "num_speculative_tokens") {
      out->TakeFor(model, setting, "speculation_tokens", text);
    } else {
      rest += fmt::format(" {}={}", std::string_view(key), text);
    }
  }
  if (method == "ngram" || draft == "[ngram]") {
    out->TakeFor(model, setting, "speculation", "ngram");
  } else if (!draft.empty() && (method.empty() || method == "draft_model")) {
    const size_t other = out->AddModel(setting, NameAfter(draft));
    out->TakeSource(other, setting, SourceOf(draft, place.folder), place.folder);
    out->TakeFor(model, setting, "speculation", "draft:" + out->ModelName(other));
  } else {
    out->Leave(setting,
               fmt::format("the method '{}' is not there; ngram and draft models are", method));
  }
  if (!rest.empty()) out->Leave(setting, "of it not taken over:" + rest);
}

absl::Status ReadSettings(const std::vector<Setting>& settings, const ImportPlace& place,
                          Imported* out) {
  const Setting *model_setting = nullptr, *name_setting = nullptr;
  for (const Setting& setting : settings) {
    const std::string name = Canonical(setting.name);
    if (name == "model" || name == "model-tag") model_setting = &setting;
    if (name == "served-model-name" && name_setting == nullptr) name_setting = &setting;
  }
  if (model_setting == nullptr) {
    return absl::InvalidArgumentError(place.where + ": it names no model");
  }
  const std::string name = name_setting != nullptr ? name_setting->value
                           : !place.name.empty()   ? place.name
                                                   : model_setting->value;
  const size_t model =
      out->AddModel(name_setting != nullptr ? *name_setting : *model_setting, name);
  out->TakeSource(model, *model_setting, SourceOf(model_setting->value, place.folder),
                  place.folder);
  std::vector<Setting> rest;
  for (const Setting& setting : settings) {
    const std::string canonical = Canonical(setting.name);
    if (&setting == model_setting || &setting == name_setting) continue;
    if (canonical == "served-model-name") {
      out->Leave(setting, "a model has one name; its first is taken");
    } else if (canonical == "model" || canonical == "model-tag") {
      out->Leave(setting, "it is given again, and the last counts");
    } else {
      rest.push_back(setting);
    }
  }
  ReadVllmArguments(rest, place, model, out);
  return absl::OkStatus();
}

// A mapping as settings; nested ones as JSON, lists once for each.
absl::StatusOr<std::vector<Setting>> YamlSettings(std::string_view yaml, const std::string& where) {
  std::vector<Setting> out;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (!root.IsMap()) return absl::InvalidArgumentError(where + ": no mapping");
    for (const auto& entry : root) {
      const std::string name = entry.first.Scalar();
      const std::string place = fmt::format("{}:{}", where, entry.first.Mark().line + 1);
      const YAML::Node& value = entry.second;
      if (value.IsSequence()) {
        for (const YAML::Node& each : value) {
          out.push_back({name, each.IsScalar() ? each.Scalar() : YAML::Dump(each), place});
        }
      } else if (value.IsMap()) {
        json::object object;
        for (const auto& inner : value) {
          object[inner.first.Scalar()] =
              inner.second.IsScalar() ? inner.second.Scalar() : YAML::Dump(inner.second);
        }
        out.push_back({name, json::serialize(object), place});
      } else {
        out.push_back({name, value.IsScalar() ? value.Scalar() : "", place});
      }
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", where, error.what()));
  }
  return out;
}

}  // namespace

void ReadVllmArguments(const std::vector<Setting>& settings, const ImportPlace& place, size_t model,
                       Imported* out) {
  for (const Setting& setting : settings) {
    const std::string name = Canonical(setting.name);
    if (name == "lora-modules") {
      ReadAdapter(setting, place, model, out);
    } else if (name == "speculative-config") {
      ReadSpeculation(setting, place, model, out);
    } else if (ToLower(setting.value) == "false" && Switches().contains(name)) {
      out->Leave(setting, "a switch that is off");
    } else {
      ApplyRule(setting, name, Rules(), model, out);
    }
  }
}

absl::Status ReadVllmYaml(std::string_view yaml, const ImportPlace& place, Imported* out) {
  ASSIGN_OR_RETURN(const std::vector<Setting> settings, YamlSettings(yaml, place.where));
  return ReadSettings(settings, place, out);
}

absl::Status ReadVllm(const CommandLine& command, const ImportPlace& place, Imported* out) {
  size_t first = 1;
  if (first < command.words.size() && command.words[first] == "serve") ++first;
  const std::vector<std::string> words(command.words.begin() + static_cast<std::ptrdiff_t>(first),
                                       command.words.end());
  for (const Setting& variable : command.variables) {
    out->Leave(variable, "a variable that is not known here");
  }
  std::vector<Setting> settings;
  std::optional<Setting> file;
  std::set<std::string> said;
  for (Setting& option : ParseOptions(words, command.where, Switches(), Lists())) {
    if (option.name.empty()) option.name = "model";
    if (option.name == "config") {
      file = std::move(option);
      continue;
    }
    said.insert(Canonical(option.name));
    settings.push_back(std::move(option));
  }
  if (file) {
    const std::filesystem::path path = std::filesystem::path(place.folder) / file->value;
    ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path.string()));
    ASSIGN_OR_RETURN(std::vector<Setting> of_file, YamlSettings(text, path.filename().string()));
    for (Setting& setting : of_file) {
      // What the file says gives way to the command.
      if (said.contains(Canonical(setting.name))) {
        out->Leave(setting, "the command line says something else");
      } else {
        settings.push_back(std::move(setting));
      }
    }
  }
  return ReadSettings(settings, place, out);
}

}  // namespace terrace::cli
