#include "text/pipeline/character_map.h"

#include <utf8proc.h>

#include <cstring>

#include "text/pipeline/characters.h"

namespace terrace {
namespace {

// A grapheme of more bytes is not looked up whole (as the reference library does it).
constexpr size_t kMaxGraphemeBytes = 5;

// The parts of a unit of the double array (the Darts-clone format).
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) == 1; }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t LabelOf(uint32_t unit) { return unit & (0x80000000u | 0xff); }
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

absl::StatusOr<CharacterMap> CharacterMap::Create(std::string_view bytes) {
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes)) {
    return absl::InvalidArgumentError("a precompiled character map of under 4 bytes");
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > bytes.size() || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0) {
    return absl::InvalidArgumentError("a precompiled character map whose trie does not fit it");
  }
  CharacterMap map;
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.replacements_ = std::string(bytes.substr(trie_bytes));
  return map;
}

bool CharacterMap::Find(std::string_view key, std::string_view* replacement) const {
  uint64_t node = OffsetOf(units_[0]);
  for (char c : key) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (byte == 0) return false;
    node ^= byte;
    if (node >= units_.size()) return false;
    const uint32_t unit = units_[node];
    if (LabelOf(unit) != byte) return false;
    node ^= OffsetOf(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) return false;
    const uint64_t at = ValueOf(units_[node]);
    if (at > replacements_.size()) return false;
    const std::string_view rest = std::string_view(replacements_).substr(at);
    *replacement = rest.substr(0, rest.find('\0'));
    return true;  // the shortest, as the reference library takes it
  }
  return false;
}

std::string CharacterMap::Apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  std::string_view replacement;
  auto character_by_character = [&](std::string_view grapheme) {
    ForEachCharacter(grapheme, [&](size_t at, jinja::CodePoint c) {
      const std::string_view character = grapheme.substr(at, c.bytes);
      out += Find(character, &replacement) ? replacement : character;
    });
  };
  utf8proc_int32_t state = 0, before = -1;
  size_t begin = 0;
  auto flush = [&](size_t end) {
    const std::string_view grapheme = text.substr(begin, end - begin);
    begin = end;
    if (grapheme.empty()) return;
    if (grapheme.size() <= kMaxGraphemeBytes && Find(grapheme, &replacement)) {
      out += replacement;
    } else {
      character_by_character(grapheme);
    }
  };
  ForEachCharacter(text, [&](size_t at, jinja::CodePoint c) {
    const auto now = static_cast<utf8proc_int32_t>(c.value);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, now, &state)) flush(at);
    before = now;
  });
  flush(text.size());
  return out;
}

absl::StatusOr<std::string> DecodeBase64(std::string_view text) {
  auto value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const int digit = value(c);
    if (digit < 0) return absl::InvalidArgumentError("text that is not base64");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return out;
}

}  // namespace terrace
