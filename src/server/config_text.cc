// The text form of values and names that are not only the table's.
#include <fmt/format.h>

#include <cstdlib>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/text.h"
#include "server/config.h"

namespace terrace::server {

using std::string_view;

std::string EnvironmentName(string_view key) {
  std::string name = "TERRACE_";
  for (char c : key) {
    name += c == '.' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

absl::StatusOr<int64_t> ParseDurationUs(string_view text) {
  absl::Duration duration;
  // The widest duration in use is days; a tenth of the range of int64 leaves room for sums.
  if (!absl::ParseDuration(std::string(text), &duration) || duration < absl::ZeroDuration() ||
      duration > absl::Hours(24 * 365 * 100)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a duration: write a number and a unit, for example 300s, 5m or 200ms", text));
  }
  return absl::ToInt64Microseconds(duration);
}

std::string FormatDurationUs(int64_t us) { return absl::FormatDuration(absl::Microseconds(us)); }

absl::Status CheckModelName(string_view name) {
  constexpr string_view kExtra = "._:/@+-";
  bool good = !name.empty() && name.size() <= 128 && name[0] != '/' && name[0] != '-';
  for (char c : name) {
    good = good && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    kExtra.find(c) != string_view::npos);
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not a model name: use 1 to 128 letters, digits and . _ : / @ + -, and begin with "
      "none of / and -",
      ToValidUtf8(name.substr(0, 128))));
}

std::string DefaultDataFolder() {
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data == '/') {
    return std::string(data) + "/terrace";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.local/share/terrace";
  }
  return "/var/lib/terrace";
}

}  // namespace terrace::server
