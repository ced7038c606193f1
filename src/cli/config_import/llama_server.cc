// llama.cpp's server: its command line, and the INI file of presets that its router takes, whose
// keys are options without dashes or the names of their variables (LLAMA_ARG_...).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_import/readers.h"

namespace terrace::cli {
namespace {

// Short and other names of options, to the one that the rules use.
const std::map<std::string, std::string, std::less<>>& Aliases() {
  static const std::map<std::string, std::string, std::less<>> aliases = {
      {"m", "model"},
      {"a", "alias"},
      {"c", "ctx-size"},
      {"np", "parallel"},
      {"b", "batch-size"},
      {"ub", "ubatch-size"},
      {"t", "threads"},
      {"tb", "threads-batch"},
      {"ngl", "n-gpu-layers"},
      {"gpu-layers", "n-gpu-layers"},
      {"ctk", "cache-type-k"},
      {"ctv", "cache-type-v"},
      {"hf", "hf-repo"},
      {"hfr", "hf-repo"},
      {"hff", "hf-file"},
      {"hft", "hf-token"},
      {"mu", "model-url"},
      {"md", "model-draft"},
      {"draft", "draft-max"},
      {"draft-n", "draft-max"},
      {"spec-draft-model", "model-draft"},
      {"spec-draft-n-max", "draft-max"},
      {"fa", "flash-attn"},
      {"mm", "mmproj"},
      {"temperature", "temp"},
      {"s", "seed"},
      {"sm", "split-mode"},
      {"ts", "tensor-split"},
      {"dev", "device"},
      {"cb", "cont-batching"},
      {"kvu", "kv-unified"},
      {"v", "verbose"},
      {"embeddings", "embedding"},
      {"rerank", "reranking"},
      {"n", "n-predict"},
      {"predict", "n-predict"},
  };
  return aliases;
}

std::string Canonical(std::string name) {
  constexpr std::string_view kVariable = "LLAMA_ARG_";
  if (name.starts_with(kVariable)) name = ToLower(name.substr(kVariable.size()));
  std::replace(name.begin(), name.end(), '_', '-');
  const auto alias = Aliases().find(name);
  return alias == Aliases().end() ? name : alias->second;
}

std::string KvType(const std::string& type) {
  return type == "f16" ? "f16" : type == "q8_0" ? "i8" : "";
}

constexpr std::string_view kSampling =
    "clients say it in their requests; there is no default of a model";
constexpr std::string_view kMoves =
    "weights and KV move between the tiers by themselves; memory.device_budget bounds them";

const std::vector<ImportRule>& Rules() {
  static const std::vector<ImportRule> rules = {
      {"host", "server.host"},
      {"port", "server.port"},
      {"threads", "device.threads"},
      {"ssl-key-file", "tls.key"},
      {"ssl-cert-file", "tls.certificate"},
      {"log-file", "log.file"},
      {"parallel", "scheduler.max_batch", false, "sequences of one model in a step"},
      {"batch-size", "scheduler.step_tokens", false, "tokens of a step, for all models"},
      {"sleep-idle-seconds", "memory.hot_keep_time", false,
       "an idle model keeps its place so long, and after it until another needs it", &SecondsOf},
      {"cache-type-k", "kv_dtype", true, "for keys and values", &KvType},
      {"cache-type-v", "kv_dtype", true, "for keys and values", &KvType},
      {"draft-max", "speculation_tokens", true},
      {"kv-unified", "", false,
       "it says which part of ctx-size a request has; max_context has that"},
      {"models-max", "", false, "how many models are loaded follows from memory.device_budget"},
      {"models-autoload", "", false, "models are always loaded when they are asked for"},
      {"n-gpu-layers", "", false, kMoves},
      {"cpu-moe", "", false, kMoves},
      {"n-cpu-moe", "", false, kMoves},
      {"override-tensor", "", false, kMoves},
      {"tensor-split", "", false, kMoves},
      {"split-mode", "", false, kMoves},
      {"main-gpu", "", false, "device.number says which chip computes"},
      {"device", "", false, "device.kind and device.number say which chip computes"},
      {"fit", "", false, kMoves},
      {"mlock", "", false, kMoves},
      {"no-mmap", "", false, kMoves},
      {"mmap", "", false, kMoves},
      {"load-on-startup", "", false, "models are loaded when they are asked for"},
      {"stop-timeout", "", false, "server.drain_timeout bounds how long a stopping server waits"},
      {"api-key", "", false, "make keys with `terrace key add`; only their hashes are kept"},
      {"api-key-file", "", false, "make keys with `terrace key add`; only their hashes are kept"},
      {"hf-token", "", false, "`terrace pull` takes it from HF_TOKEN"},
      {"metrics", "", false, "metrics are always there, on server.metrics_port"},
      {"jinja", "", false, "the model's own chat template is always used"},
      {"chat-template", "", false, "the template in the model's file is used"},
      {"chat-template-file", "", false, "the template in the model's file is used"},
      {"flash-attn", "", false, "attention is always computed that way"},
      {"cont-batching", "", false, "requests always join while others run"},
      {"ubatch-size", "", false, "pieces of a step are chosen by the kernels"},
      {"threads-batch", "", false, "device.threads holds for prompts and streams"},
      {"mmproj", "", false, "images are not taken"},
      {"embedding", "", false, "/v1/embeddings is always there"},
      {"reranking", "", false, "/v1/rerank is always there; the model's key rerank says how"},
      {"n-predict", "", false, kSampling},
      {"temp", "", false, kSampling},
      {"top-k", "", false, kSampling},
      {"top-p", "", false, kSampling},
      {"min-p", "", false, kSampling},
      {"repeat-penalty", "", false, kSampling},
      {"presence-penalty", "", false, kSampling},
      {"frequency-penalty", "", false, kSampling},
      {"seed", "", false, kSampling},
  };
  return rules;
}

bool IsOn(const std::string& value) {
  const std::string low = ToLower(value);
  return low.empty() || low == "true" || low == "on" || low == "1" || low == "enabled";
}

// The settings of one model, those of all models first.
class ModelReader {
 public:
  ModelReader(const std::vector<Setting>& settings, const ImportPlace& place, Imported* out)
      : settings_(settings), place_(place), out_(out) {
    for (const Setting& setting : settings) last_[Canonical(setting.name)] = &setting;
  }

  // `preset`: its name in a file of presets; empty for a command. No model: false.
  bool Read(const std::string& preset, const Setting& section) {
    const Setting* file = Find("model");
    const Setting* url = Find("model-url");
    const Setting* hub = Find("hf-repo");
    const bool named_like_hub =
        !preset.empty() && file == nullptr && url == nullptr && hub == nullptr;
    if (preset.empty() && file == nullptr && url == nullptr && hub == nullptr) return false;
    const Setting* alias = Find("alias");
    const Setting& source = file != nullptr  ? *file
                            : url != nullptr ? *url
                            : hub != nullptr ? *hub
                                             : section;
    std::string name = preset;
    if (alias != nullptr) name = std::string(Split(alias->value, ',')[0]);
    if (name.empty()) name = place_.name.empty() ? NameAfter(source.value) : place_.name;
    model_ = out_->AddModel(alias != nullptr ? *alias : section, name);
    if (alias != nullptr && alias->value.find(',') != std::string::npos) {
      out_->Leave(*alias, "a model has one name; its first is taken");
    }
    if (file != nullptr || url != nullptr) {
      out_->TakeSource(model_, source, source.value, place_.folder);
      if (hub != nullptr) out_->Leave(*hub, "the model has a file of its own");
    } else if (!named_like_hub || preset.find('/') != std::string::npos) {
      Hub(source, named_like_hub ? preset : source.value);
    }
    return true;
  }

  // What is not the model's place or name, whether there is a model or not.
  void ReadRest(bool has_model) {
    for (const Setting& setting : settings_) {
      const std::string name = Canonical(setting.name);
      if (IsModels(name)) continue;  // the command's reader takes these
      const bool adapter = name == "lora" || name == "lora-scaled";
      if (last_[name] != &setting && !adapter) {
        out_->Leave(setting, "it is given again, and the last counts");
      } else if (!has_model && (IsPlace(name) || OfModel(name))) {
        out_->Leave(setting, "without a model");
      } else if (IsPlace(name)) {
        continue;
      } else if (name == "ctx-size") {
        Context(setting);
      } else if (name == "model-draft") {
        Draft(setting);
      } else if (adapter) {
        Adapter(setting, name == "lora-scaled");
      } else {
        ApplyRule(setting, name, Rules(), model_, out_);
      }
    }
  }

  static bool IsModels(std::string_view name) {
    return name == "models-dir" || name == "models-preset";
  }

 private:
  static bool IsPlace(std::string_view name) {
    return name == "model" || name == "model-url" || name == "hf-repo" || name == "hf-file" ||
           name == "alias";
  }
  static bool OfModel(std::string_view name) {
    return name == "ctx-size" || name == "model-draft" || name == "lora" || name == "lora-scaled" ||
           std::any_of(Rules().begin(), Rules().end(),
                       [&](const ImportRule& rule) { return rule.name == name && rule.of_model; });
  }

  const Setting* Find(std::string_view name) const {
    const auto found = last_.find(name);
    return found == last_.end() || found->second->value.empty() ? nullptr : found->second;
  }

  void Hub(const Setting& setting, const std::string& value) {
    const Setting* file = Find("hf-file");
    const std::string repository = value.substr(0, value.find(':'));
    if (file != nullptr) {
      out_->TakeSource(model_, setting, fmt::format("hf:{}:{}", repository, file->value), "");
      return;
    }
    out_->TakeSource(model_, setting, "hf:" + repository, "");
    if (value.size() > repository.size()) {
      out_->AddStep(fmt::format("name the file of {} that is {}: hf:{}:FILE", repository,
                                value.substr(repository.size() + 1), repository));
    }
  }

  // The context is that of all slots together, unless they share it.
  void Context(const Setting& setting) {
    const std::string tokens = TokenCount(setting.value);
    if (tokens.empty()) {
      return out_->Leave(setting, "0 is what the model was trained for, as max_context: auto");
    }
    const Setting* slots = Find("parallel");
    const Setting* unified = Find("kv-unified");
    const bool shared =
        last_.contains("kv-unified") && (unified == nullptr || IsOn(unified->value));
    const int count = slots == nullptr || shared ? 1 : WholeNumber(slots->value).value_or(1);
    if (count <= 1) return out_->TakeFor(model_, setting, "max_context", tokens);
    out_->TakeFor(model_, setting, "max_context",
                  fmt::format("{}", WholeNumber(tokens).value_or(0) / count),
                  fmt::format("the part of each of {} slots", count));
  }

  void Draft(const Setting& setting) {
    const size_t draft = out_->AddModel(setting, out_->ModelName(model_) + "-draft");
    out_->TakeSource(draft, setting, setting.value, place_.folder);
    out_->TakeFor(model_, setting, "speculation", "draft:" + out_->ModelName(draft));
  }

  void Adapter(const Setting& setting, bool scaled) {
    for (std::string_view path : Split(setting.value, ',')) {
      const std::string_view scale = scaled ? path.substr(path.rfind(':') + 1) : "1";
      if (scale != "1" && scale != "1.0") {
        out_->Leave(setting, "an adapter is applied as it is, not scaled");
        continue;
      }
      if (scaled) path = path.substr(0, path.rfind(':'));
      const size_t adapter =
          out_->AddModel(setting, fmt::format("{}:{}", out_->ModelName(model_), NameAfter(path)));
      out_->TakeSource(adapter, setting, std::string(path), place_.folder);
      out_->TakeFor(adapter, setting, "base", out_->ModelName(model_),
                    "asked for by its own name; the model's name is the model without it");
    }
  }

  const std::vector<Setting>& settings_;
  const ImportPlace& place_;
  Imported* const out_;
  std::map<std::string, const Setting*, std::less<>> last_;  // the last of a name counts
  size_t model_ = 0;
};

// Models of a folder: files, and folders with the parts of one.
void ReadFolder(const Setting& setting, const ImportPlace& place, Imported* out) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(place.folder) / setting.value;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code inner;
    if (!entry.is_directory(inner)) {
      files.push_back(entry.path());
      continue;
    }
    std::vector<std::filesystem::path> parts;
    for (const auto& part : std::filesystem::directory_iterator(entry.path(), inner)) {
      const std::string name = part.path().filename().string();
      if (name.ends_with(".gguf") && !name.starts_with("mmproj")) parts.push_back(part.path());
    }
    std::sort(parts.begin(), parts.end());
    if (!parts.empty()) files.push_back(parts.front());
  }
  if (error) return out->Leave(setting, fmt::format("it cannot be read: {}", error.message()));
  std::sort(files.begin(), files.end());
  for (const std::filesystem::path& file : files) {
    if (!file.string().ends_with(".gguf")) continue;
    const size_t model = out->AddModel(setting, NameAfter(file.string()));
    out->TakeSource(model, setting, file.string(), place.folder);
  }
}

}  // namespace

absl::Status ReadLlamaPreset(std::string_view ini, const ImportPlace& place, Imported* out) {
  ASSIGN_OR_RETURN(const std::vector<IniSection> sections, ParseIni(ini, place.where));
  std::vector<Setting> common;
  for (const IniSection& section : sections) {
    if (section.name != "*") continue;
    common.insert(common.end(), section.settings.begin(), section.settings.end());
  }
  for (const IniSection& section : sections) {
    if (section.name.empty()) {
      for (const Setting& setting : section.settings) {
        out->Leave(setting, setting.name == "version" ? "the file's own" : "outside of a section");
      }
    }
    if (section.name.empty() || section.name == "*") continue;
    std::vector<Setting> settings = common;
    settings.insert(settings.end(), section.settings.begin(), section.settings.end());
    ModelReader reader(settings, place, out);
    reader.ReadRest(reader.Read(section.name, {"section", section.name, place.where}));
  }
  if (out->model_count() == 0) ModelReader(common, place, out).ReadRest(false);
  out->DropModelsWithoutSource();
  return absl::OkStatus();
}

absl::Status ReadLlamaServer(const CommandLine& command, const ImportPlace& place, Imported* out) {
  const std::vector<std::string> words(command.words.begin() + 1, command.words.end());
  std::vector<Setting> settings;
  for (const Setting& variable : command.variables) {
    if (variable.name.starts_with("LLAMA_ARG_")) {
      settings.push_back(variable);
    } else {
      out->Leave(variable, "a variable that is not known here");
    }
  }
  for (const Setting& option : ParseOptions(words, command.where, {}, {})) {
    if (option.name.empty()) {
      out->Leave(option, "the server takes no such argument");
    } else {
      settings.push_back(option);
    }
  }
  for (const Setting& setting : settings) {
    const std::string name = Canonical(setting.name);
    if (name == "models-dir") ReadFolder(setting, place, out);
    if (name != "models-preset") continue;
    ImportPlace inside = place;
    inside.where = std::filesystem::path(setting.value).filename().string();
    const std::filesystem::path path = std::filesystem::path(place.folder) / setting.value;
    ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path.string()));
    RETURN_IF_ERROR(ReadLlamaPreset(text, inside, out));
  }
  const bool has_port = std::any_of(settings.begin(), settings.end(), [](const Setting& each) {
    return Canonical(each.name) == "port";
  });
  if (!has_port) {
    out->Take({"port", "8080", command.where}, "server.port", "8080", "where its clients call it");
  }
  ModelReader reader(settings, place, out);
  const bool has_model = reader.Read("", {"llama-server", "", command.where});
  reader.ReadRest(has_model);
  out->DropModelsWithoutSource();
  return absl::OkStatus();
}

}  // namespace terrace::cli
