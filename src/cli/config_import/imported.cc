#include "cli/config_import/imported.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_import/words.h"
#include "server/config.h"

namespace terrace::cli {
namespace {

// Why our key would not take the value; empty if it does, or if there is no such key.
template <typename Target>
std::optional<std::string> Refusal(std::span<const server::ConfigKeyOf<Target>> keys,
                                   std::string_view name, const std::string& value) {
  for (const server::ConfigKeyOf<Target>& key : keys) {
    if (key.name != name) continue;
    Target scratch;
    const absl::Status status = key.set(value, &scratch);
    if (status.ok()) return std::nullopt;
    return fmt::format("{} takes no '{}': {}", name, value, Message(status));
  }
  return fmt::format("there is no key {}", name);
}

// A scalar of YAML: in quotes unless it is plainly a word or a number of ours.
std::string Scalar(const std::string& text) {
  constexpr std::string_view kPlain = "._/+-";
  bool plain = !text.empty() && text[0] != '-' && text != "on" && text != "off" && text != "yes" &&
               text != "no" && text != "null";
  for (const char c : text) {
    plain = plain && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      kPlain.find(c) != std::string_view::npos);
  }
  if (plain) return text;
  std::string out = "\"";
  for (const char c : ToValidUtf8(text)) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// One line of a comment, however many the text has.
std::string Comment(std::string_view text) {
  std::string out;
  for (const char c : ToValidUtf8(text)) {
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string Listed(const Imported::Left& left) {
  const std::string shown = Shown(left.setting);
  return fmt::format("{}: {}{}: {}", left.setting.where, left.setting.name,
                     shown.empty() ? "" : fmt::format(" = {}", shown), left.why);
}

// "a.b.c" as nested mappings, in the order of the names.
void WriteNested(const std::map<std::string, std::string, std::less<>>& keys, std::string* out) {
  std::vector<std::string_view> open;
  for (const auto& [key, value] : keys) {
    std::vector<std::string_view> parts = Split(key, '.');
    size_t same = 0;
    while (same < open.size() && same + 1 < parts.size() && open[same] == parts[same]) ++same;
    open.resize(same);
    for (; open.size() + 1 < parts.size(); open.push_back(parts[open.size()])) {
      *out += fmt::format("{:{}}{}:\n", "", 2 * open.size(), parts[open.size()]);
    }
    *out += fmt::format("{:{}}{}: {}\n", "", 2 * open.size(), parts.back(), Scalar(value));
  }
}

}  // namespace

std::string Shown(const Setting& setting) {
  const std::string name = ToLower(setting.name);
  for (const char* secret : {"api-key", "api_key", "password", "secret", "token"}) {
    if (name.find(secret) != std::string::npos && name.find("file") == std::string::npos &&
        !WholeNumber(setting.value)) {
      return "(not shown)";
    }
  }
  constexpr size_t kMost = 120;
  if (setting.value.size() <= kMost) return Comment(setting.value);
  return Comment(setting.value.substr(0, kMost)) + "...";
}

void Imported::Take(const Setting& setting, std::string_view key, const std::string& value,
                    std::string_view remark) {
  if (const auto why = Refusal(server::ConfigKeys(), key, value)) return Leave(setting, *why);
  std::string kept = value;
  if (key == "tls.key" || key == "tls.certificate" || key == "log.file") {
    kept = (std::filesystem::path(folder_) / value).lexically_normal().string();
  }
  if (auto before = keys_.find(key); before != keys_.end() && before->second != value) {
    const std::optional<int> ours = WholeNumber(before->second), theirs = WholeNumber(value);
    if (!ours || !theirs) {
      return Leave(setting,
                   fmt::format("{} is {} already, and is one for all models", key, before->second));
    }
    if (*ours > *theirs) kept = before->second;
  }
  keys_[std::string(key)] = kept;
  taken_.push_back({setting, std::string(key), kept, std::string(remark)});
}

void Imported::Leave(const Setting& setting, std::string_view why) {
  // Settings of all models are met once for each.
  for (const Left& left : left_) {
    if (left.setting.where == setting.where && left.setting.name == setting.name &&
        left.setting.value == setting.value && left.why == why) {
      return;
    }
  }
  left_.push_back({setting, std::string(why)});
}

size_t Imported::AddModel(const Setting& setting, const std::string& name) {
  std::string good;
  for (const char c : name) {
    const bool fits = server::CheckModelName(std::string("m") + c).ok();
    good += fits ? c : '-';
  }
  while (!good.empty() && (good[0] == '/' || good[0] == '-')) good.erase(0, 1);
  good = good.substr(0, 120);
  if (good.empty()) good = "model";
  const std::string wanted = good;
  auto is_there = [&] {
    return std::any_of(models_.begin(), models_.end(),
                       [&](const Keys& model) { return model.at("name") == good; });
  };
  for (int number = 2; is_there(); ++number) good = fmt::format("{}-{}", wanted, number);
  models_.push_back({{"name", good}});
  taken_.push_back({setting, fmt::format("models[{}].name", good), good,
                    good == name ? "" : fmt::format("'{}' cannot be its name here", name)});
  return models_.size() - 1;
}

void Imported::TakeFor(size_t model, const Setting& setting, std::string_view key,
                       const std::string& value, std::string_view remark) {
  if (const auto why = Refusal(server::ModelConfigKeys(), key, value)) return Leave(setting, *why);
  Keys& keys = models_[model];
  if (const auto before = keys.find(key); before != keys.end() && before->second != value) {
    return Leave(setting, fmt::format("{} of {} is {} already", key, keys["name"], before->second));
  }
  keys[std::string(key)] = value;
  taken_.push_back(
      {setting, fmt::format("models[{}].{}", keys["name"], key), value, std::string(remark)});
}

void Imported::TakeSource(size_t model, const Setting& setting, const std::string& source,
                          const std::string& folder) {
  if (source.starts_with("hf:")) {
    std::string name = ModelName(model);
    std::replace(name.begin(), name.end(), '/', '-');
    std::replace(name.begin(), name.end(), ':', '-');
    TakeFor(model, setting, "source", name, "a name in the store, once it is fetched");
    AddStep(fmt::format("terrace pull {} --name {}", source, name));
    return;
  }
  if (source.find("://") != std::string::npos) {
    return TakeFor(model, setting, "source", source);
  }
  std::filesystem::path path(source);
  if (source.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    path = std::filesystem::path(home == nullptr ? "/" : home) / source.substr(2);
  } else if (path.is_relative()) {
    path = std::filesystem::path(folder) / path;
  }
  std::error_code error;
  path = std::filesystem::absolute(path, error).lexically_normal();
  const bool there = std::filesystem::exists(path, error);
  TakeFor(model, setting, "source", path.string(), there ? "" : "there is no such file here");
  if (!there) AddStep(fmt::format("put {} where it was, or change its source", path.string()));
}

bool Imported::HasSource(size_t model) const { return models_[model].contains("source"); }

void Imported::Settle() {
  std::vector<std::string> used;
  for (const char* key : {"server.port", "server.grpc_port", "server.metrics_port"}) {
    if (const auto found = keys_.find(key); found != keys_.end()) used.push_back(found->second);
  }
  auto is_used = [&](const std::string& port) {
    return std::find(used.begin(), used.end(), port) != used.end();
  };
  int next = 8000;
  for (const server::ConfigKey& key : server::ConfigKeys()) {
    const std::string_view name = key.name;
    const std::string port(key.default_text);
    if (!name.starts_with("server.") || !name.ends_with("port") || keys_.contains(name) ||
        !is_used(port)) {
      continue;
    }
    while (is_used(std::to_string(next)) || (next > 8000 && next < 8004)) ++next;
    keys_[std::string(name)] = std::to_string(next);
    used.push_back(std::to_string(next));
    AddStep(fmt::format("{} is {}, since {} is taken", name, next, port));
  }
  const auto host = keys_.find("server.host");
  if (host != keys_.end() && host->second != "127.0.0.1" && host->second != "localhost" &&
      host->second != "::1") {
    AddStep(
        "terrace key add NAME: a server that listens beyond this machine refuses requests "
        "without a key");
  }
}

void Imported::DropModelsWithoutSource() {
  for (size_t i = models_.size(); i-- > 0;) {
    if (HasSource(i)) continue;
    const std::string mark = fmt::format("models[{}].", ModelName(i));
    for (auto taken = taken_.begin(); taken != taken_.end();) {
      if (!taken->as.starts_with(mark)) {
        ++taken;
        continue;
      }
      Leave(taken->setting, "its model has no weights that can be served");
      taken = taken_.erase(taken);
    }
    models_.erase(models_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

absl::StatusOr<std::string> Imported::Yaml(const std::string& source) const {
  std::string out = fmt::format("# Made by `terrace config import` from {}.\n", Comment(source));
  if (!steps_.empty()) out += "# To do before the server starts:\n";
  for (const std::string& step : steps_) out += fmt::format("#   {}\n", Comment(step));
  WriteNested(keys_, &out);
  out += models_.empty() ? "models: []\n" : "models:\n";
  for (const Keys& model : models_) {
    out += fmt::format("  - name: {}\n    source: {}\n", Scalar(model.at("name")),
                       Scalar(model.at("source")));
    for (const auto& [key, value] : model) {
      if (key != "name" && key != "source") out += fmt::format("    {}: {}\n", key, Scalar(value));
    }
  }
  if (!left_.empty()) out += "# Not taken over:\n";
  for (const Left& left : left_) out += fmt::format("#   {}\n", Listed(left));
  server::ConfigInputs inputs;
  inputs.file = "terrace.yaml";
  inputs.yaml = out;
  if (absl::Status status = server::LoadConfig(inputs).status(); !status.ok()) {
    return absl::InternalError(
        fmt::format("what would be written is not valid: {}", Message(status)));
  }
  return out;
}

}  // namespace terrace::cli
