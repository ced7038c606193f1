#include "server/config_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "server/cidr.h"
#include "server/config.h"

namespace terrace::server {
namespace {

using std::string_view;

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

}  // namespace

absl::Status SetInteger(string_view text, int32_t low, int32_t high, int32_t* out) {
  int32_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Invalid(fmt::format("'{}' is not a whole number from {} to {}", text, low, high));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status SetPort(string_view text, bool may_be_off, int32_t* out) {
  if (may_be_off && text == "off") {
    *out = -1;
    return absl::OkStatus();
  }
  if (SetInteger(text, 0, 65535, out).ok()) return absl::OkStatus();
  // Kubernetes sets NAME_PORT for each service of the namespace.
  string_view hint = text.substr(0, 6) == "tcp://"
                         ? "; Kubernetes sets such a variable for a service of that name, which "
                           "enableServiceLinks: false in the pod prevents"
                         : "";
  return Invalid(
      fmt::format("'{}' is not a port: write a number from 0 (any free one) to 65535{}{}", text,
                  may_be_off ? ", or off" : "", hint));
}

absl::Status SetRatio(string_view text, double* out) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value <= 1)) {
    return Invalid(fmt::format("'{}' is not a share: write a number above 0 and up to 1", text));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status SetWeight(string_view text, double* out) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= 1000)) {
    return Invalid(fmt::format("'{}' is not a weight: write a number from 0 up", text));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status SetFactor(string_view text, double* out) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number = error == std::errc() && end == text.data() + text.size();
  if (text != "off" && !(number && value > 1 && value <= 1000)) {
    return Invalid(fmt::format("'{}' is not a factor: write a number above 1, or off", text));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status SetNumbers(string_view text, double low, double high, std::span<double> out) {
  std::vector<double> values;
  bool good = true;
  for (const string_view part : Split(text, ' ')) {
    if (part.empty()) continue;
    double value = 0;
    auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    good &= error == std::errc() && end == part.data() + part.size();
    good &= value >= low && value <= high;
    values.push_back(value);
  }
  if (!good || values.size() != out.size()) {
    const std::string what = out.size() == 1 ? "a number" : fmt::format("{} numbers", out.size());
    return Invalid(fmt::format("'{}' is not {} from {} to {}", text, what, low, high));
  }
  std::copy(values.begin(), values.end(), out.begin());
  return absl::OkStatus();
}

absl::Status SetBytes(string_view text, uint64_t low, uint64_t* out) {
  ASSIGN_OR_RETURN(uint64_t bytes, ParseBytes(text));
  if (bytes < low) return Invalid(fmt::format("'{}' is less than {}", text, FormatBytes(low)));
  *out = bytes;
  return absl::OkStatus();
}

absl::Status SetSwitch(string_view text, bool* out) {
  if (text != "on" && text != "off" && text != "true" && text != "false") {
    return Invalid(fmt::format("'{}' is neither on nor off", text));
  }
  *out = text == "on" || text == "true";
  return absl::OkStatus();
}

absl::Status SetDuration(string_view text, int64_t* out) {
  ASSIGN_OR_RETURN(*out, ParseDurationUs(text));
  return absl::OkStatus();
}

absl::Status SetChoice(string_view text, std::initializer_list<string_view> choices,
                       std::string* out) {
  for (string_view choice : choices) {
    if (text != choice) continue;
    *out = text;
    return absl::OkStatus();
  }
  return Invalid(fmt::format("'{}' is not one of {}", text, fmt::join(choices, ", ")));
}

absl::Status SetText(string_view text, std::string* out) {
  if (text.empty()) return Invalid("the value is empty");
  if (text.find('\0') != string_view::npos) return Invalid("the value has a zero byte");
  *out = text;
  return absl::OkStatus();
}

std::string BytesText(uint64_t bytes) {
  struct Unit {
    uint64_t bytes;
    const char* name;
  };
  for (Unit unit : {Unit{kTiB, "TiB"}, Unit{kGiB, "GiB"}, Unit{kMiB, "MiB"}, Unit{kKiB, "KiB"}}) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return fmt::format("{}{}", bytes / unit.bytes, unit.name);
    }
  }
  return fmt::format("{}B", bytes);
}

std::string SwitchText(bool on) { return on ? "on" : "off"; }

std::string PortText(int32_t port) { return port < 0 ? "off" : fmt::format("{}", port); }

absl::Status SetTextOr(string_view word, string_view text, std::string* out) {
  if (text == word) {
    out->clear();
    return absl::OkStatus();
  }
  return SetText(text, out);
}
std::string TextOr(string_view word, const std::string& text) {
  return text.empty() ? std::string(word) : text;
}

absl::Status SetNetworks(string_view text, std::string* out) {
  if (text == "all") {
    out->clear();
    return absl::OkStatus();
  }
  if (absl::Status status = CidrList::Parse(text).status(); !status.ok()) return status;
  return SetText(text, out);
}

absl::Status SetBytesOrOff(string_view text, uint64_t low, uint64_t* out) {
  if (text != "off") return SetBytes(text, low, out);
  *out = 0;
  return absl::OkStatus();
}

std::string BytesOrOff(uint64_t bytes) { return bytes == 0 ? "off" : BytesText(bytes); }

absl::Status SetDurationOrOff(string_view text, int64_t* out_us) {
  if (text != "off") return SetDuration(text, out_us);
  *out_us = 0;
  return absl::OkStatus();
}

std::string DurationOrOff(int64_t us) { return us == 0 ? "off" : FormatDurationUs(us); }

}  // namespace terrace::server
