#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "text/text_pattern.h"
#include "text/utf8.h"

namespace terrace {

struct PreTokenizer::Compiled {
  std::vector<TextPattern> patterns;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const PrePatterns* family) {
  std::unique_ptr<PreTokenizer> result(new PreTokenizer);
  result->family_ = family;
  result->compiled_ = std::make_unique<Compiled>();
  for (std::string_view pattern : family->patterns) {
    auto compiled = TextPattern::Compile(pattern);
    if (!compiled.ok()) return absl::InternalError(compiled.status().message());
    result->compiled_->patterns.push_back(*std::move(compiled));
  }
  return result;
}

absl::StatusOr<std::vector<PreTokenizer::Piece>> PreTokenizer::Split(std::string_view text,
                                                                     EncodeStats* stats) const {
  // Runs of well-formed text, and apart from them ill-formed bytes, which no pattern sees.
  std::vector<TextRange> ranges, next;
  std::vector<Piece> ill_formed;
  uint32_t begin = 0;
  for (uint32_t at = 0; at < text.size();) {
    const uint32_t length = static_cast<uint32_t>(Utf8CharLength(text, at));
    if (length > 0) {
      at += length;
      continue;
    }
    if (begin < at) ranges.push_back({begin, at});
    ill_formed.push_back({at, at + 1});
    begin = ++at;
  }
  if (begin < text.size()) ranges.push_back({begin, static_cast<uint32_t>(text.size())});

  TextPattern::Scratch scratch;
  if (!scratch.ok()) {
    return absl::ResourceExhaustedError("no memory for splitting text by patterns");
  }
  for (const TextPattern& pattern : compiled_->patterns) {
    next.clear();
    for (const TextRange& range : ranges) {
      pattern.Cut(text, range.begin, range.end, &scratch, stats, &next);
    }
    ranges.swap(next);
  }
  std::vector<Piece> pieces;
  pieces.reserve(ranges.size() + ill_formed.size());
  for (const TextRange& range : ranges) pieces.push_back({range.begin, range.end});
  if (ill_formed.empty()) return pieces;
  std::vector<Piece> all(pieces.size() + ill_formed.size());
  std::merge(pieces.begin(), pieces.end(), ill_formed.begin(), ill_formed.end(), all.begin(),
             [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return all;
}

size_t PreTokenizer::bytes() const {
  size_t total = sizeof(*this) + sizeof(Compiled);
  for (const TextPattern& pattern : compiled_->patterns) total += pattern.bytes();
  return total;
}

}  // namespace terrace
