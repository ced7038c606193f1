// What the readers share: rules, conversions, and the INI file of our own keys.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_import/readers.h"
#include "server/config.h"

namespace terrace::cli {

void ApplyRule(const Setting& setting, const std::string& name,
               const std::vector<ImportRule>& rules, size_t model, Imported* out) {
  const auto rule = std::find_if(rules.begin(), rules.end(),
                                 [&](const ImportRule& each) { return each.name == name; });
  if (rule == rules.end()) {
    return out->Leave(setting, "there is nothing like it here, or it is not known");
  }
  if (rule->key.empty()) return out->Leave(setting, rule->remark);
  const std::string value = rule->convert != nullptr ? rule->convert(setting.value) : setting.value;
  if (value.empty()) {
    return out->Leave(setting, fmt::format("{} has no value that means this", rule->key));
  }
  if (rule->of_model) {
    out->TakeFor(model, setting, rule->key, value, rule->remark);
  } else {
    out->Take(setting, rule->key, value, rule->remark);
  }
}

std::string TokenCount(const std::string& text) {
  char* end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  const std::string_view unit = end;
  if (end == text.c_str() || !(number > 0) || number > 1e9) return "";
  // Small letters are thousands, capitals 1024: vLLM's own rule.
  if (unit == "k") {
    number *= 1000;
  } else if (unit == "K") {
    number *= 1024;
  } else if (unit == "m") {
    number *= 1e6;
  } else if (unit == "M") {
    number *= 1024 * 1024;
  } else if (!unit.empty()) {
    return "";
  }
  return number < 2e9 ? fmt::format("{:.0f}", std::floor(number)) : "";
}

std::string SecondsOf(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != 0 || !(seconds >= 0) || seconds > 1e9) return "";
  return fmt::format("{:.0f}ms", seconds * 1000);
}

std::string GibibytesOf(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != 0 || !(number >= 0) || number > 1e6) return "";
  return number == 0 ? "off" : fmt::format("{}GiB", number);
}

std::string NameAfter(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  path = path.substr(path.rfind('/') + 1);
  if (ToLower(path).ends_with(".gguf")) path.remove_suffix(5);
  const size_t part = path.find("-00001-of-");
  return std::string(path.substr(0, part));
}

bool IsOwnIni(const std::vector<IniSection>& sections) {
  bool own = false;
  for (const IniSection& section : sections) {
    own |= section.name.starts_with("model ");
    for (const server::ConfigKey& key : server::ConfigKeys()) {
      own |= key.name.starts_with(section.name + ".");
    }
  }
  return own;
}

absl::Status ReadOwnIni(std::string_view ini, const ImportPlace& place, Imported* out) {
  ASSIGN_OR_RETURN(const std::vector<IniSection> sections, ParseIni(ini, place.where));
  for (const IniSection& section : sections) {
    if (!section.name.starts_with("model ")) {
      for (const Setting& setting : section.settings) {
        out->Take(
            setting,
            section.name.empty() ? setting.name : fmt::format("{}.{}", section.name, setting.name),
            setting.value);
      }
      continue;
    }
    const std::string name(StripSpace(std::string_view(section.name).substr(6)));
    const size_t model = out->AddModel({"section", section.name, place.where}, name);
    for (const Setting& setting : section.settings) {
      if (setting.name == "source" && server::IsPath(setting.value)) {
        out->TakeSource(model, setting, setting.value, place.folder);
      } else {
        out->TakeFor(model, setting, setting.name, setting.value);
      }
    }
  }
  out->DropModelsWithoutSource();
  return absl::OkStatus();
}

}  // namespace terrace::cli
