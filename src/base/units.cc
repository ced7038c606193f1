#include "base/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/text.h"

namespace terrace {

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  std::string_view rest = StripSpace(text);
  double number = 0;
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || !(number >= 0)) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a size: write a number and a unit, for example 6GiB or 512MiB", text));
  }
  std::string unit = ToLower(StripSpace({end, rest.data() + rest.size()}));
  struct Unit {
    const char* name;
    double factor;
  };
  static constexpr Unit kUnits[] = {{"", 1},       {"b", 1},        {"k", 1024},   {"kib", 1024},
                                    {"m", 0x1p20}, {"mib", 0x1p20}, {"g", 0x1p30}, {"gib", 0x1p30},
                                    {"t", 0x1p40}, {"tib", 0x1p40}, {"kb", 1e3},   {"mb", 1e6},
                                    {"gb", 1e9},   {"tb", 1e12}};
  for (const Unit& candidate : kUnits) {
    if (unit != candidate.name) continue;
    double bytes = number * candidate.factor;
    if (!(bytes < 0x1p63)) {
      return absl::InvalidArgumentError(fmt::format("'{}' is too large for a size", text));
    }
    return static_cast<uint64_t>(std::llround(bytes));
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' has an unknown unit: use B, KiB, MiB, GiB or TiB", text));
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < kKiB) return fmt::format("{} B", bytes);
  static constexpr const char* kNames[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kNames[unit]);
}

}  // namespace terrace
