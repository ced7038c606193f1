#include "cli/load/mix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <functional>
#include <map>

#include "base/status.h"
#include "base/text.h"
#include "server/config.h"

namespace terrace::cli {
namespace {

absl::StatusOr<double> ParseReal(std::string_view text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(value >= low && value <= high)) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a number from {} to {}", ToValidUtf8(text), low, high));
  }
  return value;
}

template <typename T>
absl::Status SetReal(std::string_view text, double low, double high, T* out) {
  ASSIGN_OR_RETURN(const double value, ParseReal(text, low, high));
  *out = static_cast<T>(value);
  return absl::OkStatus();
}

absl::Status SetDuration(std::string_view text, int64_t* out) {
  ASSIGN_OR_RETURN(*out, server::ParseDurationUs(text));
  return absl::OkStatus();
}

absl::Status SetRange(std::string_view text, TokenRange* out) {
  ASSIGN_OR_RETURN(*out, ParseTokenRange(text));
  return absl::OkStatus();
}

using ClassSetter = std::function<absl::Status(std::string_view, LoadClass*)>;

const std::map<std::string, ClassSetter, std::less<>>& ClassKeys() {
  static const std::map<std::string, ClassSetter, std::less<>> keys = {
      {"name", [](auto text, auto* c) { return c->name = text, absl::OkStatus(); }},
      {"models",  // one of them; a list is handled before
       [](auto text, auto* c) { return c->models.emplace_back(text), absl::OkStatus(); }},
      {"zipf", [](auto text, auto* c) { return SetReal(text, 0, 10, &c->zipf); }},
      {"rate", [](auto text, auto* c) { return SetReal(text, 1e-6, 1e6, &c->rate); }},
      {"clients", [](auto text, auto* c) { return SetReal(text, 1, 100'000, &c->clients); }},
      {"pause", [](auto text, auto* c) { return SetDuration(text, &c->pause_us); }},
      {"prompt_tokens", [](auto text, auto* c) { return SetRange(text, &c->prompt_tokens); }},
      {"output_tokens", [](auto text, auto* c) { return SetRange(text, &c->output_tokens); }},
      {"shared_tokens",
       [](auto text, auto* c) { return SetReal(text, 0, 1e6, &c->shared_tokens); }},
      {"sla", [](auto text, auto* c) { return c->sla = text, absl::OkStatus(); }},
      {"key_env", [](auto text, auto* c) { return c->key_env = text, absl::OkStatus(); }},
      {"goal", [](auto text, auto* c) { return SetDuration(text, &c->goal_us); }},
      {"chat",
       [](auto text, auto* c) {
         c->chat = text == "true" || text == "on";
         return c->chat || text == "false" || text == "off"
                    ? absl::OkStatus()
                    : absl::InvalidArgumentError("it is true or false");
       }},
  };
  return keys;
}

std::string At(const YAML::Node& node) { return fmt::format("line {}", node.Mark().line + 1); }

absl::Status Unknown(const YAML::Node& node, const std::string& key,
                     const std::vector<std::string>& known) {
  const std::string nearest = NearestName(key, known);
  return absl::InvalidArgumentError(
      fmt::format("{}: unknown key '{}'; {}", At(node), key,
                  nearest.empty() ? fmt::format("there are {}", fmt::join(known, ", "))
                                  : fmt::format("did you mean '{}'?", nearest)));
}

absl::Status ReadClass(const YAML::Node& node, LoadClass* out) {
  if (!node.IsMap()) return absl::InvalidArgumentError(At(node) + ": a class is a mapping");
  for (const auto& entry : node) {
    const std::string key = entry.first.Scalar();
    const auto found = ClassKeys().find(key);
    if (found == ClassKeys().end()) {
      std::vector<std::string> known;
      for (const auto& [name, setter] : ClassKeys()) known.push_back(name);
      return Unknown(entry.first, key, known);
    }
    std::vector<YAML::Node> values;
    if (key == "models" && entry.second.IsSequence()) {
      for (const YAML::Node& each : entry.second) values.push_back(each);
    } else {
      values.push_back(entry.second);
    }
    for (const YAML::Node& value : values) {
      if (!value.IsScalar()) {
        return absl::InvalidArgumentError(fmt::format("{}: {}: a value", At(entry.first), key));
      }
      const absl::Status status = found->second(value.Scalar(), out);
      if (!status.ok()) return WithContext(status, fmt::format("{}: {}", At(entry.first), key));
    }
  }
  if ((out->rate > 0) == (out->clients > 0)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: class '{}': either a rate or clients", At(node), out->name));
  }
  return absl::OkStatus();
}

absl::Status ReadTop(const YAML::Node& root, LoadMix* mix) {
  for (const auto& entry : root) {
    const std::string key = entry.first.Scalar();
    absl::Status status;
    if (key == "classes" && entry.second.IsSequence()) {
      for (const YAML::Node& each : entry.second) {
        mix->classes.emplace_back();
        RETURN_IF_ERROR(ReadClass(each, &mix->classes.back()));
      }
    } else if (key == "duration") {
      status = SetDuration(entry.second.Scalar(), &mix->duration_us);
    } else if (key == "warm_up") {
      status = SetDuration(entry.second.Scalar(), &mix->warm_up_us);
    } else if (key == "seed") {
      status = SetReal(entry.second.Scalar(), 0, 9e15, &mix->seed);
    } else {
      return Unknown(entry.first, key, {"duration", "warm_up", "seed", "classes"});
    }
    if (!status.ok()) return WithContext(status, fmt::format("{}: {}", At(entry.first), key));
  }
  return absl::OkStatus();
}

// Seconds since some day, of "2023-11-16 18:15:46.6805900" or of a number.
std::optional<double> TimeOf(std::string_view text) {
  if (const auto number = ParseReal(text, 0, 1e12); number.ok()) return *number;
  std::tm parts = {};
  const std::string copy(text);
  const char* rest = strptime(copy.c_str(), "%Y-%m-%d", &parts);
  if (rest == nullptr || (*rest != ' ' && *rest != 'T')) return std::nullopt;
  rest = strptime(rest + 1, "%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  double fraction = 0;
  if (*rest == '.') {
    const auto part = ParseReal(std::string_view(rest, std::min<size_t>(strlen(rest), 9)), 0, 1);
    if (!part.ok()) return std::nullopt;
    fraction = *part;
  }
  return static_cast<double>(timegm(&parts)) + fraction;
}

struct Columns {
  std::optional<size_t> time, prompt, output, model, load_class;
};

absl::StatusOr<Columns> ReadHeading(std::string_view line) {
  Columns columns;
  const std::vector<std::string_view> names = Split(line, ',');
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = ToLower(StripSpace(names[i]));
    if (name == "seconds" || name == "timestamp") columns.time = i;
    if (name == "prompt_tokens" || name == "contexttokens") columns.prompt = i;
    if (name == "output_tokens" || name == "generatedtokens") columns.output = i;
    if (name == "model") columns.model = i;
    if (name == "class") columns.load_class = i;
  }
  if (columns.time && columns.prompt && columns.output) return columns;
  return absl::InvalidArgumentError(
      "line 1: a heading that names at least seconds, prompt_tokens and output_tokens");
}

absl::Status ReadLine(const Columns& columns, std::string_view line, double* first, LoadMix* mix) {
  const std::vector<std::string_view> cells = Split(line, ',');
  auto cell = [&](std::optional<size_t> column) {
    return column && *column < cells.size() ? StripSpace(cells[*column]) : std::string_view();
  };
  LoadTraceRequest request;
  const std::optional<double> time = TimeOf(cell(columns.time));
  if (!time)
    return absl::InvalidArgumentError("its time is neither seconds nor a date with a time");
  if (mix->trace.empty()) *first = *time;
  request.at_us = static_cast<int64_t>((*time - *first) * 1e6);
  RETURN_IF_ERROR(SetReal(cell(columns.prompt), 1, 1e7, &request.prompt_tokens));
  RETURN_IF_ERROR(SetReal(cell(columns.output), 1, 1e7, &request.output_tokens));
  request.model = cell(columns.model);
  const std::string name(cell(columns.load_class).empty() ? "requests" : cell(columns.load_class));
  const auto found = std::find_if(mix->classes.begin(), mix->classes.end(),
                                  [&](const LoadClass& each) { return each.name == name; });
  request.load_class = static_cast<size_t>(found - mix->classes.begin());
  if (found == mix->classes.end()) {
    mix->classes.emplace_back();
    mix->classes.back().name = name;
  }
  mix->trace.push_back(std::move(request));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenRange> ParseTokenRange(std::string_view text) {
  TokenRange range;
  const size_t dash = text.find('-');
  RETURN_IF_ERROR(SetReal(text.substr(0, dash), 1, 1e7, &range.least));
  range.most = range.least;
  if (dash != std::string_view::npos) {
    RETURN_IF_ERROR(SetReal(text.substr(dash + 1), range.least, 1e7, &range.most));
  }
  return range;
}

absl::StatusOr<LoadMix> ParseMix(std::string_view yaml) {
  LoadMix mix;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (!root.IsMap()) return absl::InvalidArgumentError("a mix is a mapping with classes");
    RETURN_IF_ERROR(ReadTop(root, &mix));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (mix.classes.empty()) return absl::InvalidArgumentError("a mix has at least one class");
  return mix;
}

absl::StatusOr<LoadMix> ParseLoadTrace(std::string_view csv) {
  LoadMix mix;
  std::optional<Columns> columns;
  double first = 0;
  int number = 0;
  for (std::string_view line : Split(csv, '\n')) {
    ++number;
    line = StripSpace(line);
    if (line.empty() || line[0] == '#') continue;
    if (!columns) {
      ASSIGN_OR_RETURN(columns, ReadHeading(line));
      continue;
    }
    const absl::Status status = ReadLine(*columns, line, &first, &mix);
    if (!status.ok()) return WithContext(status, fmt::format("line {}", number));
  }
  if (mix.trace.empty()) return absl::InvalidArgumentError("the trace has no requests");
  std::stable_sort(mix.trace.begin(), mix.trace.end(),
                   [](const auto& a, const auto& b) { return a.at_us < b.at_us; });
  if (mix.trace.front().at_us < 0) {
    const int64_t begin = mix.trace.front().at_us;
    for (LoadTraceRequest& request : mix.trace) request.at_us -= begin;
  }
  mix.duration_us = mix.trace.back().at_us + 1;
  return mix;
}

}  // namespace terrace::cli
