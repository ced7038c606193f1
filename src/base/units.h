// Byte units: constants, parsing ("6GiB", "512M") and printing ("5.8 GiB").
#ifndef TERRACE_BASE_UNITS_H_
#define TERRACE_BASE_UNITS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
inline constexpr uint64_t kTiB = uint64_t{1} << 40;

// Rounds `value` up to a multiple of `alignment` (a power of two).
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Bytes from text: a non-negative number and an optional unit (B, K, KB, KiB, M ... TiB; KB is 1000
// bytes, K and KiB 1024). InvalidArgument for anything else or for what does not fit in 63 bits.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// "512 B", "3.2 MiB", "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace terrace

#endif  // TERRACE_BASE_UNITS_H_
