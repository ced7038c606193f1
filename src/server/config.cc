#include "server/config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/status.h"
#include "base/text.h"

namespace terrace::server {
namespace {

using std::string_view;

constexpr uint64_t kMaxFileBytes = kMiB;
constexpr size_t kMaxModels = 10'000;

// Collects everything wrong with a configuration, so that one look at the message is enough.
class Reader {
 public:
  explicit Reader(const ConfigInputs& inputs) : inputs_(inputs) {}

  absl::StatusOr<LoadedConfig> Read() {
    if (!inputs_.file.empty()) ReadYaml();
    ReadEnvironment();
    ReadFlags();
    Validate();
    if (errors_.empty()) return std::move(loaded_);
    constexpr size_t kShown = 20;
    if (errors_.size() > kShown) {
      size_t more = errors_.size() - kShown;
      errors_.resize(kShown);
      errors_.push_back(fmt::format("and {} more", more));
    }
    return absl::InvalidArgumentError(fmt::format("{}", fmt::join(errors_, "\n")));
  }

 private:
  void Error(string_view place, string_view message) {
    errors_.push_back(fmt::format("{}: {}", place, message));
  }
  std::string Place(const YAML::Mark& mark) const {
    return mark.is_null() ? inputs_.file : fmt::format("{}:{}", inputs_.file, mark.line + 1);
  }

  void ReadYaml() {
    // yaml-cpp reports by exceptions; none leaves this function.
    try {
      std::vector<YAML::Node> documents = YAML::LoadAll(inputs_.yaml);
      if (documents.size() > 1) {
        Error(Place(documents[1].Mark()), "a second document begins; put everything into one");
        return;
      }
      if (documents.empty() || documents[0].IsNull()) return;
      if (!documents[0].IsMap()) {
        Error(Place(documents[0].Mark()),
              "expected keys with values, such as server: {port: 8000}");
        return;
      }
      ReadSection(documents[0], "");
    } catch (const YAML::Exception& error) {
      Error(Place(error.mark), error.msg);
    }
  }

  // Reads one mapping; `prefix` is "" or ends in a dot.
  void ReadSection(const YAML::Node& section, const std::string& prefix) {
    std::set<std::string> seen;
    for (const auto& entry : section) {
      std::string place = Place(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        Error(place, "a key must be a plain word");
        continue;
      }
      std::string name = prefix + entry.first.Scalar();
      if (!seen.insert(name).second) {
        Error(place, fmt::format("'{}' is given twice", name));
      } else if (name == "models") {
        ReadModels(entry.second);
      } else if (name == "tenants") {
        ReadTenants(entry.second);
      } else if (const ConfigKey* key = FindKey(name)) {
        if (!entry.second.IsScalar()) {
          Error(place, fmt::format("{}: expected a {}", name, key->kind));
        } else {
          Set(*key, entry.second.Scalar(), place);
        }
      } else if (IsSection(name)) {
        if (entry.second.IsMap()) {
          ReadSection(entry.second, name + ".");
        } else if (!entry.second.IsNull()) {
          Error(place, fmt::format("{}: expected keys below it", name));
        }
      } else {
        Error(place, Unknown(name, prefix));
      }
    }
  }

  void ReadModels(const YAML::Node& list) {
    if (list.IsNull()) return;
    if (!list.IsSequence()) {
      Error(Place(list.Mark()), "models: expected a list, such as - {name: m, source: m.gguf}");
      return;
    }
    if (list.size() > kMaxModels) {
      Error(Place(list.Mark()), fmt::format("models: more than {} entries", kMaxModels));
      return;
    }
    for (const YAML::Node& item : list) {
      std::string place = Place(item.Mark());
      if (!item.IsMap()) {
        Error(place, "models: expected an entry such as {name: m, source: m.gguf}");
        continue;
      }
      ModelConfig model;
      if (!ReadEntry(item, "model", ModelConfigKeys(), {"name", "source"}, &model)) continue;
      if (IsPath(model.source)) model.source = BesideFile(model.source);
      AddModel(std::move(model), place);
    }
  }

  void ReadTenants(const YAML::Node& list) {
    if (list.IsNull()) return;
    if (!list.IsSequence() || list.size() > kMaxModels) {
      Error(Place(list.Mark()), "tenants: expected a list, such as - {name: team, share: 2}");
      return;
    }
    for (const YAML::Node& item : list) {
      TenantConfig tenant;
      if (!item.IsMap()) {
        Error(Place(item.Mark()), "tenants: expected an entry such as {name: team, share: 2}");
      } else if (ReadEntry(item, "tenant", TenantConfigKeys(), {"name"}, &tenant)) {
        const auto& known = loaded_.config.tenants;
        if (std::any_of(known.begin(), known.end(),
                        [&](const TenantConfig& other) { return other.name == tenant.name; })) {
          Error(Place(item.Mark()), fmt::format("the tenant '{}' is given twice", tenant.name));
        }
        loaded_.config.tenants.push_back(std::move(tenant));
      }
    }
  }

  // One entry of the list of `what`s, with the keys that it needs.
  template <typename Target>
  bool ReadEntry(const YAML::Node& item, string_view what,
                 std::span<const ConfigKeyOf<Target>> keys,
                 std::initializer_list<string_view> needs, Target* target) {
    size_t errors_before = errors_.size();
    std::set<std::string> seen;
    for (const auto& entry : item) {
      std::string place = Place(entry.first.Mark());
      std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      auto key = std::find_if(keys.begin(), keys.end(),
                              [&](const ConfigKeyOf<Target>& k) { return k.name == name; });
      if (key == keys.end()) {
        std::vector<std::string> names;
        for (const ConfigKeyOf<Target>& k : keys) names.emplace_back(k.name);
        Error(place,
              fmt::format("unknown key '{}' of a {}; {}", name, what, Suggestion(name, names)));
      } else if (!seen.insert(name).second) {
        Error(place, fmt::format("'{}' is given twice", name));
      } else if (!entry.second.IsScalar()) {
        Error(place, fmt::format("{}s: {}: expected a {}", what, name, key->kind));
      } else if (absl::Status set = key->set(entry.second.Scalar(), target); !set.ok()) {
        Error(place, fmt::format("{}s: {}: {}", what, name, Message(set)));
      }
    }
    for (string_view needed : needs) {
      if (!seen.contains(std::string(needed))) {
        Error(Place(item.Mark()), fmt::format("a {} needs a {}", what, needed));
      }
    }
    return errors_.size() == errors_before;
  }

  void ReadEnvironment() {
    for (const auto& [variable, value] : inputs_.environment) {
      if (!variable.starts_with("TERRACE_") || variable == "TERRACE_CONFIG") continue;
      if (variable == "TERRACE_MODELS") {
        for (string_view text : Split(value, ',')) {
          if (!StripSpace(text).empty()) ReadModelFlag(StripSpace(text), variable);
        }
        continue;
      }
      const ConfigKey* found = nullptr;
      std::vector<std::string> names = {"TERRACE_CONFIG", "TERRACE_MODELS"};
      for (const ConfigKey& key : ConfigKeys()) {
        names.push_back(EnvironmentName(key.name));
        if (names.back() == variable) found = &key;
      }
      if (found != nullptr) {
        Set(*found, value, variable);
      } else {
        // Not an error: service managers put variables of their own into the environment.
        std::string nearest = NearestName(variable, names);
        loaded_.warnings.push_back(
            fmt::format("the variable {} sets no key{}", variable,
                        nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)));
      }
    }
  }

  void ReadFlags() {
    for (const auto& [name, value] : inputs_.flags) {
      if (const ConfigKey* key = FindKey(name)) {
        Set(*key, value, "--" + name);
      } else {
        Error("--" + name, Unknown(name, ""));
      }
    }
    for (const std::string& text : inputs_.models) ReadModelFlag(text, "--model");
  }

  void ReadModelFlag(string_view text, const std::string& place) {
    absl::StatusOr<ModelConfig> model = ParseModelFlag(text);
    if (model.ok()) {
      AddModel(*std::move(model), place);
    } else {
      Error(place, Message(model.status()));
    }
  }

  void AddModel(ModelConfig model, const std::string& place) {
    for (const ModelConfig& other : loaded_.config.models) {
      if (other.name == model.name) {
        Error(place, fmt::format("the model '{}' is given twice", model.name));
        return;
      }
    }
    loaded_.config.models.push_back(std::move(model));
  }

  void Set(const ConfigKey& key, string_view value, const std::string& place) {
    if (absl::Status set = key.set(value, &loaded_.config); !set.ok()) {
      Error(place, fmt::format("{}: {}", key.name, Message(set)));
      return;
    }
    loaded_.origins.insert_or_assign(std::string(key.name), place);
    // Paths in a file are meant from where the file lies.
    std::string* path = key.name == "storage.disk.path" ? &loaded_.config.storage.disk_path
                        : key.name == "log.file"        ? &loaded_.config.log.file
                        : key.name == "log.access"      ? &loaded_.config.log.access
                        : key.name == "auth.keys"       ? &loaded_.config.auth.keys
                        : key.name == "tls.certificate" ? &loaded_.config.tls.certificate
                        : key.name == "tls.key"         ? &loaded_.config.tls.key
                                                        : nullptr;
    bool from_file = !inputs_.file.empty() && place.starts_with(inputs_.file + ":");
    if (path != nullptr && !path->empty() && from_file) *path = BesideFile(*path);
  }

  // What only shows when all keys are known.
  void Validate() {
    const Config& c = loaded_.config;
    const std::pair<string_view, int32_t> ports[] = {{"server.port", c.server.port},
                                                     {"server.metrics_port", c.server.metrics_port},
                                                     {"server.grpc_port", c.server.grpc_port},
                                                     {"server.admin_port", c.server.admin_port}};
    for (size_t i = 0; i < std::size(ports); ++i) {
      for (size_t j = i + 1; j < std::size(ports); ++j) {
        if (ports[i].second <= 0 || ports[i].second != ports[j].second) continue;
        Error(
            Origin(ports[j].first, ports[i].first),
            fmt::format("{} and {} are both {}", ports[i].first, ports[j].first, ports[i].second));
      }
    }
    if (c.device.kind == DeviceKind::kSim && c.memory.device_budget_bytes &&
        *c.memory.device_budget_bytes > c.device.sim_memory_bytes) {
      Error(Origin("memory.device_budget", "device.sim.memory"),
            fmt::format("memory.device_budget is {}, more than device.sim.memory, which is {}",
                        FormatBytes(*c.memory.device_budget_bytes),
                        FormatBytes(c.device.sim_memory_bytes)));
    }
    for (const ModelConfig& model : c.models) {
      if (!model.base.empty()) ValidateAdapter(model);
    }
  }

  void ValidateAdapter(const ModelConfig& adapter) {
    const std::vector<ModelConfig>& models = loaded_.config.models;
    const auto base = std::find_if(models.begin(), models.end(),
                                   [&](const auto& model) { return model.name == adapter.base; });
    if (base == models.end() || !base->base.empty()) {
      Error("models",
            fmt::format("base of '{}': '{}' is {}", adapter.name, adapter.base,
                        base == models.end() ? "no entry of models" : "an adapter itself"));
    }
    const std::pair<string_view, bool> others[] = {
        {"max_context", adapter.max_context != 0},
        {"kv_dtype", !adapter.kv_dtype.empty()},
        {"speculation", adapter.speculation != "off"},
        {"sha256", !adapter.sha256.empty()},
        {"tensor_parallel", adapter.tensor_parallel > 1},
        {"expert_parallel", adapter.expert_parallel > 1}};
    for (const auto& [key, set] : others) {
      if (!set) continue;
      Error("models", fmt::format("'{}' is an adapter: {} is that of its base", adapter.name, key));
    }
  }

  std::string Origin(string_view key, string_view other) const {
    for (string_view name : {key, other}) {
      if (auto found = loaded_.origins.find(name); found != loaded_.origins.end()) {
        return found->second;
      }
    }
    return "configuration";
  }

  std::string BesideFile(const std::string& path) const {
    std::filesystem::path file(inputs_.file);
    return (file.parent_path() / path).lexically_normal().string();
  }

  static const ConfigKey* FindKey(string_view name) {
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.name == name) return &key;
    }
    return nullptr;
  }
  static bool IsSection(const std::string& name) {
    return std::any_of(ConfigKeys().begin(), ConfigKeys().end(),
                       [&](const ConfigKey& key) { return key.name.starts_with(name + "."); });
  }

  static std::string Suggestion(string_view name, const std::vector<std::string>& names) {
    std::string nearest = NearestName(name, names);
    return nearest.empty() ? fmt::format("there are {}", fmt::join(names, ", "))
                           : fmt::format("did you mean '{}'?", nearest);
  }

  // The message for a key that does not exist: the nearest of its section, else the same word in
  // another section, else what there is.
  static std::string Unknown(const std::string& name, const std::string& prefix) {
    std::vector<std::string> siblings;  // one level below prefix, by full name
    std::vector<std::string> all = {"models", "tenants"};
    for (const ConfigKey& key : ConfigKeys()) {
      all.emplace_back(key.name);
      if (!key.name.starts_with(prefix)) continue;
      std::string sibling(key.name.substr(0, key.name.find('.', prefix.size())));
      if (siblings.empty() || siblings.back() != sibling) siblings.push_back(sibling);
    }
    if (prefix.empty()) {
      siblings.emplace_back("models");
      siblings.emplace_back("tenants");
    }
    std::vector<std::string> words;
    for (const std::string& sibling : siblings) words.push_back(sibling.substr(prefix.size()));
    std::string word = name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);

    // A flag gives the whole name at once, a file section by section.
    bool whole = prefix.empty() && word.size() < name.size();
    std::string nearest = whole ? NearestName(name, all) : NearestName(word, words);
    if (!nearest.empty() && !whole) nearest = prefix + nearest;
    for (size_t i = 0; nearest.empty() && i < all.size(); ++i) {
      if (all[i].ends_with("." + word)) nearest = all[i];
    }
    if (!nearest.empty()) return fmt::format("unknown key '{}'; did you mean '{}'?", name, nearest);
    return fmt::format("unknown key '{}'; there are {}", name, fmt::join(siblings, ", "));
  }

  const ConfigInputs& inputs_;
  LoadedConfig loaded_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::StatusOr<LoadedConfig> LoadConfig(const ConfigInputs& inputs) {
  return Reader(inputs).Read();
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        fmt::format("{} is a folder, not a configuration file", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, fmt::format("opening {}", path));
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return ErrnoStatus(errno, fmt::format("reading {}", path));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} is larger than {}", path, FormatBytes(kMaxFileBytes)));
  }
  return text;
}

absl::StatusOr<ModelConfig> ParseModelFlag(string_view text) {
  size_t split = text.find('=');
  if (split == string_view::npos || split + 1 == text.size()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not NAME=SOURCE, such as chat=models/chat.gguf", text));
  }
  ModelConfig model;
  RETURN_IF_ERROR(CheckModelName(text.substr(0, split)));
  model.name = text.substr(0, split);
  model.source = text.substr(split + 1);
  return model;
}

bool IsPath(string_view source) {
  if (source.find("://") != string_view::npos || source.starts_with("hf:")) return false;
  return source.find('/') != string_view::npos || ToLower(source).ends_with(".gguf");
}

}  // namespace terrace::server
