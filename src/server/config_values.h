// The text forms of configuration values: a setter for each kind (InvalidArgument says what would
// be right, and leaves `out` as it was) and how values are written back. Private to the table of
// keys.
#ifndef TERRACE_SERVER_CONFIG_VALUES_H_
#define TERRACE_SERVER_CONFIG_VALUES_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace terrace::server {

// From `low` to `high`, both allowed.
absl::Status SetInteger(std::string_view text, int32_t low, int32_t high, int32_t* out);
// `off` is -1 where the key has that word.
absl::Status SetPort(std::string_view text, bool may_be_off, int32_t* out);
// Above 0 and up to 1.
absl::Status SetRatio(std::string_view text, double* out);
// From 0 to 1000.
absl::Status SetWeight(std::string_view text, double* out);
// Above 1, or off (0).
absl::Status SetFactor(std::string_view text, double* out);
// As many numbers as `out` has, from `low` to `high`, with spaces between; one of them: a number.
absl::Status SetNumbers(std::string_view text, double low, double high, std::span<double> out);
absl::Status SetBytes(std::string_view text, uint64_t low, uint64_t* out);
// `off` is 0 of these two.
absl::Status SetBytesOrOff(std::string_view text, uint64_t low, uint64_t* out);
absl::Status SetDurationOrOff(std::string_view text, int64_t* out_us);
absl::Status SetSwitch(std::string_view text, bool* out);
absl::Status SetDuration(std::string_view text, int64_t* out_us);
absl::Status SetChoice(std::string_view text, std::initializer_list<std::string_view> choices,
                       std::string* out);
absl::Status SetText(std::string_view text, std::string* out);
// `word` stands for "not set": then `out` is empty.
absl::Status SetTextOr(std::string_view word, std::string_view text, std::string* out);
std::string TextOr(std::string_view word, const std::string& text);
// Networks as CidrList reads them, or all (empty).
absl::Status SetNetworks(std::string_view text, std::string* out);

// Bytes in a form that ParseBytes reads back to the same number.
std::string BytesText(uint64_t bytes);
std::string BytesOrOff(uint64_t bytes);
std::string DurationOrOff(int64_t us);
std::string PortText(int32_t port);
std::string SwitchText(bool on);  // on, off

}  // namespace terrace::server

#endif  // TERRACE_SERVER_CONFIG_VALUES_H_
