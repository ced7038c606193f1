#include "base/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace terrace {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// The length of the well-formed sequence at `text[0]`, or 0. `*prefix` gets the length of the
// maximal ill-formed part to replace (Unicode 15, section 3.9).
size_t SequenceLength(std::string_view text, size_t* prefix) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  *prefix = 1;
  uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (length == 0) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size()) return 0;
    uint8_t low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte(i) < low || byte(i) > high) return 0;
    *prefix = i + 1;
  }
  return length;
}

}  // namespace

std::string_view StripSpace(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string ToLower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool IsValidUtf8(std::string_view text) {
  size_t prefix = 0;
  while (!text.empty()) {
    size_t length = SequenceLength(text, &prefix);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ToValidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t prefix = 0;
  while (!text.empty()) {
    size_t length = SequenceLength(text, &prefix);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(prefix);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = name.size() / 2 + 1;
  for (const std::string& candidate : names) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        size_t replaced = diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace terrace
