#include "base/retry_after.h"

#include <charconv>
#include <string>

#include "absl/strings/cord.h"

namespace terrace {
namespace {

constexpr char kUrl[] = "terrace/retry_after_s";

}  // namespace

void SetRetryAfter(int seconds, absl::Status* status) {
  // Through string_view: Cord's constructor from a string is a template, whose name clang mangles
  // otherwise than the compiler of Debian's absl did.
  const std::string text = std::to_string(seconds);
  status->SetPayload(kUrl, absl::Cord(absl::string_view(text.data(), text.size())));
}

int RetryAfterSeconds(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  int seconds = 0;
  if (payload) {
    const std::string text(*payload);
    std::from_chars(text.data(), text.data() + text.size(), seconds);
  }
  return seconds;
}

}  // namespace terrace
