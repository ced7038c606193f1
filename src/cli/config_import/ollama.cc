// Ollama: a Modelfile, its folder of models (manifests that name blobs by their digests), and the
// variables that `ollama serve` is started with.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_import/readers.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr std::string_view kSampling =
    "clients say it in their requests; there is no default of a model";

const std::vector<ImportRule>& ParameterRules() {
  constexpr std::string_view kMoves =
      "weights and KV move between the tiers by themselves; memory.device_budget bounds them";
  static const std::vector<ImportRule> rules = {
      {"num_ctx", "max_context", true},
      {"num_thread", "device.threads"},
      {"num_batch", "scheduler.step_tokens", false, "tokens of a step, for all models"},
      {"num_gpu", "", false, kMoves},
      {"main_gpu", "", false, "device.number says which chip computes"},
      {"use_mmap", "", false, kMoves},
      {"use_mlock", "", false, kMoves},
      {"low_vram", "", false, kMoves},
      {"num_keep", "", false, "a prompt that does not fit is refused, not cut"},
      {"num_predict", "", false, kSampling},
      {"temperature", "", false, kSampling},
      {"top_k", "", false, kSampling},
      {"top_p", "", false, kSampling},
      {"min_p", "", false, kSampling},
      {"typical_p", "", false, kSampling},
      {"seed", "", false, kSampling},
      {"stop", "", false, kSampling},
      {"repeat_penalty", "", false, kSampling},
      {"repeat_last_n", "", false, kSampling},
      {"presence_penalty", "", false, kSampling},
      {"frequency_penalty", "", false, kSampling},
  };
  return rules;
}

std::string KvType(const std::string& type) {
  return type == "f16" ? "f16" : type == "q8_0" ? "i8" : "";
}

// "5m", "300", "-1" (for ever).
std::string KeepAlive(const std::string& text) {
  if (text.starts_with('-')) return "8760h";
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })
             ? SecondsOf(text)
             : text;
}

const std::vector<ImportRule>& VariableRules() {
  static const std::vector<ImportRule> rules = {
      {"OLLAMA_KEEP_ALIVE", "memory.hot_keep_time", false,
       "an idle model keeps its place so long, and after it until another needs it", &KeepAlive},
      {"OLLAMA_NUM_PARALLEL", "scheduler.max_batch", false, "sequences of one model in a step"},
      {"OLLAMA_MAX_QUEUE", "scheduler.max_queue"},
      {"OLLAMA_ORIGINS", "server.cors_origins"},
      {"OLLAMA_KV_CACHE_TYPE", "kv.dtype", false, "", &KvType},
      {"OLLAMA_MODELS", "", false, "give the folder to `terrace config import` to take its models"},
      {"OLLAMA_MAX_LOADED_MODELS", "", false,
       "how many models are loaded follows from memory.device_budget"},
      {"OLLAMA_FLASH_ATTENTION", "", false, "attention is always computed that way"},
      {"OLLAMA_CONTEXT_LENGTH", "", false, "max_context of each model says it"},
      {"OLLAMA_DEBUG", "", false, "log.level: debug is what is meant"},
  };
  return rules;
}

// Lines of INSTRUCTION arguments; texts go on in quotes, single or threefold.
absl::StatusOr<std::vector<Setting>> ParseModelfile(std::string_view text,
                                                    const std::string& where) {
  std::vector<Setting> out;
  int number = 1;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = StripSpace(text.substr(at, end - at));
    const int begin = number;
    at = end + 1;
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t space = std::min(line.find_first_of(" \t"), line.size());
    const std::string place = fmt::format("{}:{}", where, begin);
    std::string word = ToLower(line.substr(0, space));
    std::string value(StripSpace(line.substr(space)));
    for (std::string_view quote : {"\"\"\"", "\""}) {
      // A message's text stands behind its role.
      const size_t opens = value.find(quote);
      if (opens == std::string::npos || (opens > 0 && (quote.size() == 1 || word != "message"))) {
        continue;
      }
      std::string body = value.substr(opens + quote.size());
      while (body.find(quote) == std::string::npos && at <= text.size()) {
        const size_t next = std::min(text.find('\n', at), text.size());
        body += fmt::format(
            "\n{}", text.substr(std::min(at, text.size()), next - std::min(at, text.size())));
        at = next + 1;
        ++number;
      }
      if (body.find(quote) == std::string::npos) {
        return absl::InvalidArgumentError(place + ": its text does not end");
      }
      value = value.substr(0, opens) + body.substr(0, body.find(quote));
      break;
    }
    if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyz") != std::string::npos) {
      return absl::InvalidArgumentError(
          fmt::format("{}: '{}' is no instruction of a Modelfile", place, ToValidUtf8(word)));
    }
    out.push_back({std::move(word), std::move(value), place});
  }
  return out;
}

fs::path StoreOf(const ImportPlace& place) {
  if (!place.store.empty()) return place.store;
  if (const char* models = std::getenv("OLLAMA_MODELS"); models != nullptr) return models;
  const char* home = std::getenv("HOME");
  return fs::path(home == nullptr ? "/" : home) / ".ollama" / "models";
}

// "llama3.2:3b" as the path of its manifest: host/namespace/name/tag.
fs::path ManifestOf(const std::string& name) {
  std::string rest = name.substr(0, name.rfind(':'));
  const std::string tag = name.size() > rest.size() ? name.substr(rest.size() + 1) : "latest";
  const auto slashes = std::count(rest.begin(), rest.end(), '/');
  if (slashes == 0) rest = "registry.ollama.ai/library/" + rest;
  if (slashes == 1) rest = "registry.ollama.ai/" + rest;
  return fs::path("manifests") / rest / tag;
}

// The reverse: as `ollama list` shows it, without the tag that is understood.
std::string NameOf(const fs::path& manifest) {
  std::string tag = manifest.filename().string();
  std::string name = manifest.parent_path().string();
  for (std::string_view prefix : {"registry.ollama.ai/library/", "registry.ollama.ai/"}) {
    if (!std::string_view(name).starts_with(prefix)) continue;
    name = name.substr(prefix.size());
    break;
  }
  return tag == "latest" ? name : name + ":" + tag;
}

std::string BlobOf(const fs::path& store, std::string digest) {
  std::replace(digest.begin(), digest.end(), ':', '-');
  return (store / "blobs" / digest).string();
}

void ReadParameters(const std::string& path, const std::string& where, size_t model,
                    Imported* out) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  json::error_code error;
  const json::value value = text.ok() ? json::parse(*text, error) : json::value();
  if (!text.ok() || error || !value.is_object()) {
    return out->Leave({"params", path, where}, "it cannot be read");
  }
  for (const auto& [key, each] : value.get_object()) {
    const std::string shown =
        each.is_string() ? std::string(each.get_string()) : json::serialize(each);
    const Setting setting{std::string(key), shown, where};
    ApplyRule(setting, setting.name, ParameterRules(), model, out);
  }
}

// What a manifest names, for the model `model`.
absl::Status ReadManifest(const fs::path& store, const fs::path& manifest, size_t model,
                          Imported* out) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile((store / manifest).string()));
  json::error_code error;
  const json::value value = json::parse(text, error);
  const json::value* layers =
      !error && value.is_object() ? value.get_object().if_contains("layers") : nullptr;
  const std::string where = manifest.string();
  if (layers == nullptr || !layers->is_array()) {
    return absl::InvalidArgumentError(where + " is no manifest of a model");
  }
  for (const json::value& each : layers->get_array()) {
    const json::object* layer = each.if_object();
    auto member = [&](const char* key) {
      const json::value* found = layer == nullptr ? nullptr : layer->if_contains(key);
      return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
    };
    const std::string type = member("mediaType");
    const std::string kind = type.substr(type.rfind('.') + 1);
    const std::string blob = BlobOf(store, member("digest"));
    const Setting setting{kind, blob, where};
    if (kind == "model") {
      out->TakeSource(model, setting, blob, "/");
    } else if (kind == "adapter") {
      const size_t adapter = out->AddModel(setting, out->ModelName(model) + "-adapter");
      out->TakeSource(adapter, setting, blob, "/");
      out->TakeFor(adapter, setting, "base", out->ModelName(model),
                   "asked for by its own name; the model's name is the model without it");
    } else if (kind == "params") {
      ReadParameters(blob, where, model, out);
    } else if (kind == "template") {
      out->Leave(setting, "the chat template in the model's file is used");
    } else if (kind == "system" || kind == "messages") {
      out->Leave(setting, "clients send it");
    } else if (kind == "license") {
      out->Leave(setting, "the terms of the model, to be kept with it");
    } else if (kind == "projector") {
      out->Leave(setting, "images are not taken");
    } else {
      out->Leave(setting, "a kind of layer that is not known here");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadFrom(const Setting& setting, const ImportPlace& place, size_t model,
                      Imported* out) {
  std::error_code error;
  const fs::path path = fs::path(place.folder) / setting.value;
  if (fs::exists(path, error) || setting.value.starts_with('/') || setting.value.starts_with('.') ||
      ToLower(setting.value).ends_with(".gguf")) {
    out->TakeSource(model, setting, setting.value, place.folder);
    return absl::OkStatus();
  }
  for (std::string_view hub : {"hf.co/", "huggingface.co/"}) {
    if (!setting.value.starts_with(hub)) continue;
    const std::string name = setting.value.substr(hub.size());
    out->TakeSource(model, setting, "hf:" + name.substr(0, name.find(':')), "");
    return absl::OkStatus();
  }
  const fs::path store = StoreOf(place);
  const fs::path manifest = ManifestOf(setting.value);
  if (!fs::exists(store / manifest, error)) {
    return absl::NotFoundError(
        fmt::format("{}: '{}' is neither a file here nor in the models of Ollama in {} (--store "
                    "names another folder)",
                    setting.where, setting.value, store.string()));
  }
  return ReadManifest(store, manifest, model, out);
}

}  // namespace

absl::Status ReadModelfile(std::string_view text, const ImportPlace& place, Imported* out) {
  ASSIGN_OR_RETURN(const std::vector<Setting> settings, ParseModelfile(text, place.where));
  const auto from = std::find_if(settings.begin(), settings.end(),
                                 [](const Setting& each) { return each.name == "from"; });
  if (from == settings.end()) return absl::InvalidArgumentError(place.where + " has no FROM");
  const std::string name = place.name.empty() ? NameAfter(from->value) : place.name;
  const size_t model = out->AddModel(*from, name);
  for (const Setting& setting : settings) {
    if (setting.name == "from") {
      if (&setting != &*from) {
        out->Leave(setting, "a model has one source here");
      } else {
        RETURN_IF_ERROR(ReadFrom(setting, place, model, out));
      }
    } else if (setting.name == "parameter") {
      const size_t space = std::min(setting.value.find_first_of(" \t"), setting.value.size());
      const Setting parameter{setting.value.substr(0, space),
                              std::string(StripSpace(setting.value.substr(space))), setting.where};
      ApplyRule(parameter, parameter.name, ParameterRules(), model, out);
    } else if (setting.name == "adapter") {
      const size_t adapter = out->AddModel(setting, name + "-adapter");
      out->TakeSource(adapter, setting, setting.value, place.folder);
      out->TakeFor(adapter, setting, "base", out->ModelName(model),
                   "asked for by its own name; the model's name is the model without it");
    } else if (setting.name == "template") {
      out->Leave(setting, "the chat template in the model's file is used");
    } else if (setting.name == "system" || setting.name == "message") {
      out->Leave(setting, "clients send it");
    } else if (setting.name == "license") {
      out->Leave(setting, "the terms of the model, to be kept with it");
    } else {
      out->Leave(setting, "an instruction that is not known here");
    }
  }
  out->DropModelsWithoutSource();
  return absl::OkStatus();
}

absl::Status ReadOllamaStore(const std::string& folder, const ImportPlace& /*place*/,
                             Imported* out) {
  std::error_code error;
  std::vector<fs::path> manifests;
  const fs::path root = fs::path(folder) / "manifests";
  for (fs::recursive_directory_iterator each(root, error), end; each != end && !error;
       each.increment(error)) {
    std::error_code inner;
    if (each->is_regular_file(inner)) manifests.push_back(fs::relative(each->path(), root, inner));
  }
  if (error) return absl::UnavailableError(fmt::format("{}: {}", root.string(), error.message()));
  std::sort(manifests.begin(), manifests.end());
  for (const fs::path& manifest : manifests) {
    const size_t model = out->AddModel({"manifest", manifest.string(), folder}, NameOf(manifest));
    const absl::Status status = ReadManifest(folder, "manifests" / manifest, model, out);
    if (!status.ok()) out->Leave({"manifest", manifest.string(), folder}, Message(status));
  }
  out->DropModelsWithoutSource();
  return absl::OkStatus();
}

absl::Status ReadOllama(const CommandLine& command, const ImportPlace& place, Imported* out) {
  std::string store = place.store;
  bool has_port = false;
  for (const Setting& variable : command.variables) {
    if (variable.name == "OLLAMA_MODELS" && store.empty()) store = variable.value;
    if (variable.name != "OLLAMA_HOST") {
      ApplyRule(variable, variable.name, VariableRules(), 0, out);
      continue;
    }
    // [scheme://]host[:port]
    std::string host = variable.value.substr(
        variable.value.find("://") == std::string::npos ? 0 : variable.value.find("://") + 3);
    const size_t colon = host.rfind(':');
    const bool port = colon != std::string::npos && host.find(']', colon) == std::string::npos;
    has_port |= port;
    if (port) out->Take(variable, "server.port", host.substr(colon + 1));
    if (const std::string address = host.substr(0, port ? colon : host.size()); !address.empty()) {
      out->Take(variable, "server.host", address);
    }
  }
  if (!has_port) {
    out->Take({"port", "11434", command.where}, "server.port", "11434",
              "where its clients call it");
  }
  for (size_t i = 1; i < command.words.size(); ++i) {
    if (command.words[i] != "serve") {
      out->Leave({command.words[i], "", command.where}, "the server takes no such argument");
    }
  }
  if (store.empty()) store = StoreOf(place).string();
  std::error_code error;
  if (!fs::is_directory(fs::path(store) / "manifests", error)) {
    out->Leave({"OLLAMA_MODELS", store, command.where}, "there are no models in this folder");
    return absl::OkStatus();
  }
  return ReadOllamaStore(store, place, out);
}

}  // namespace terrace::cli
