#include "text/pipeline/splitter.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "text/pipeline/characters.h"

namespace terrace {
namespace {

using Kind = SplitStep::Kind;
using Behavior = SplitStep::Behavior;
using Prefix = SplitStep::Prefix;

constexpr size_t kMaxTextBytes = size_t{1} << 31;

constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Appends to `out` what `behavior` makes of `ranges`, which cover one piece.
void Keep(const std::vector<TextRange>& ranges, Behavior behavior, std::vector<TextRange>* out) {
  const size_t start = out->size();
  bool match_before = false;
  auto push = [&](const TextRange& range) { out->push_back({range.begin, range.end, false}); };
  switch (behavior) {
    case Behavior::kIsolated:
      for (const TextRange& range : ranges) push(range);
      return;
    case Behavior::kRemoved:
      for (const TextRange& range : ranges) {
        if (!range.match) push(range);
      }
      return;
    case Behavior::kContiguous:
      for (const TextRange& range : ranges) {
        if (out->size() > start && range.match == match_before) {
          out->back().end = range.end;
        } else {
          push(range);
        }
        match_before = range.match;
      }
      return;
    case Behavior::kWithPrevious:
      for (const TextRange& range : ranges) {
        if (range.match && !match_before && out->size() > start) {
          out->back().end = range.end;
        } else {
          push(range);
        }
        match_before = range.match;
      }
      return;
    case Behavior::kWithNext:
      for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->match && !match_before && out->size() > start) {
          out->back().begin = range->begin;
        } else {
          push(*range);
        }
        match_before = range->match;
      }
      std::reverse(out->begin() + static_cast<ptrdiff_t>(start), out->end());
      return;
  }
}

// Appends the ranges of `text`, cut at each `pattern`, their offsets counted from `base`.
void CutAtText(std::string_view text, uint32_t base, std::string_view pattern,
               std::vector<TextRange>* out) {
  auto push = [&](size_t begin, size_t end, bool match) {
    if (begin == end) return;
    out->push_back({base + static_cast<uint32_t>(begin), base + static_cast<uint32_t>(end), match});
  };
  size_t at = 0;
  while (!pattern.empty()) {
    const size_t found = text.find(pattern, at);
    if (found == std::string_view::npos) break;
    push(at, found, false);
    push(found, found + pattern.size(), true);
    at = found + pattern.size();
  }
  push(at, text.size(), false);
}

std::string ReplaceSpaces(std::string_view text, std::string_view replacement) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    if (c == ' ') {
      out += replacement;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

struct Splitter::Run {
  SplitText split;
  EncodeStats* stats = nullptr;
  TextPattern::Scratch scratch;
  std::vector<TextRange> ranges;  // of one piece
  std::vector<TextRange> next;
  bool first = false;

  std::string_view View(const TextRange& range) const {
    return std::string_view(split.text).substr(range.begin, range.end - range.begin);
  }

  // Makes `ranges` of `piece`: each character for which `hit` holds is a match.
  template <typename Hit>
  void CutAtCharacters(const TextRange& piece, const Hit& hit) {
    ranges.clear();
    ForEachCharacter(View(piece), [&](size_t at, jinja::CodePoint c) {
      const uint32_t begin = piece.begin + static_cast<uint32_t>(at), end = begin + c.bytes;
      const bool match = c.valid && hit(c.value);
      if (!match && !ranges.empty() && !ranges.back().match) {
        ranges.back().end = end;
      } else {
        ranges.push_back({begin, end, match});
      }
    });
  }

  // Every `length` characters a piece.
  void CutAtLength(const TextRange& piece, int32_t length) {
    ranges.clear();
    int32_t count = 0;
    ForEachCharacter(View(piece), [&](size_t at, jinja::CodePoint c) {
      const uint32_t begin = piece.begin + static_cast<uint32_t>(at), end = begin + c.bytes;
      if (count++ % length == 0) {
        ranges.push_back({begin, end, false});
      } else {
        ranges.back().end = end;
      }
    });
  }
};

absl::StatusOr<Splitter> Splitter::Create(const std::vector<SplitStep>& steps) {
  Splitter splitter;
  for (const SplitStep& spec : steps) {
    Step step{spec, std::nullopt};
    if (spec.kind == Kind::kPattern) {
      ASSIGN_OR_RETURN(step.pattern, TextPattern::Compile(spec.pattern));
    } else if (spec.kind == Kind::kByteLevel && spec.cut) {
      ASSIGN_OR_RETURN(step.pattern, TextPattern::Compile(kByteLevelPattern));
    }
    splitter.steps_.push_back(std::move(step));
  }
  return splitter;
}

absl::StatusOr<SplitText> Splitter::Split(std::string text, bool first, EncodeStats* stats) const {
  Run run;
  run.split.text = std::move(text);
  run.stats = stats;
  run.first = first;
  if (!run.scratch.ok()) {
    return absl::ResourceExhaustedError("no memory for splitting text by patterns");
  }
  const std::string_view whole = run.split.text;
  bool open = false;
  ForEachCharacter(whole, [&](size_t at, jinja::CodePoint c) {
    const auto begin = static_cast<uint32_t>(at);
    if (c.valid && open) {
      run.split.pieces.back().end = begin + c.bytes;
    } else {
      run.split.pieces.push_back({begin, begin + c.bytes, false});
    }
    open = c.valid;
  });
  for (const Step& step : steps_) {
    if (step.spec.kind == Kind::kByteLevel || step.spec.kind == Kind::kMetaspace) {
      // Spelling makes up to three bytes of one, and may put a prefix before each piece.
      if (run.split.text.size() > kMaxTextBytes / 8) {
        return absl::InvalidArgumentError("the tokenizer's steps make the text too long");
      }
      Respell(step, &run);
    } else {
      Apply(step, &run);
    }
  }
  return std::move(run.split);
}

void Splitter::Apply(const Step& step, Run* run) const {
  const SplitStep& spec = step.spec;
  run->next.clear();
  for (const TextRange& piece : run->split.pieces) {
    switch (spec.kind) {
      case Kind::kText:
        run->ranges.clear();
        CutAtText(run->View(piece), piece.begin, spec.pattern, &run->ranges);
        break;
      case Kind::kPattern: {
        run->ranges.clear();
        const jinja::CodePoint c = jinja::DecodeAt(run->split.text, piece.begin);
        if (c.valid) {
          step.pattern->Cut(run->split.text, piece.begin, piece.end, &run->scratch, run->stats,
                            &run->ranges);
        } else {
          run->ranges.push_back({piece.begin, piece.end, false});
        }
        break;
      }
      case Kind::kSpace:
        run->CutAtCharacters(piece, IsWhiteSpace);
        break;
      case Kind::kDigits:
        run->CutAtCharacters(piece, IsNumber);
        break;
      case Kind::kPunctuation:
        run->CutAtCharacters(piece, IsPunctuation);
        break;
      case Kind::kLength:
        run->CutAtLength(piece, spec.length);
        break;
      case Kind::kBert: {
        run->CutAtCharacters(piece, IsWhiteSpace);
        std::vector<TextRange> words;
        Keep(run->ranges, Behavior::kRemoved, &words);
        for (const TextRange& word : words) {
          run->CutAtCharacters(word, IsPunctuation);
          Keep(run->ranges, Behavior::kIsolated, &run->next);
        }
        continue;
      }
      case Kind::kMetaspace:
      case Kind::kByteLevel:
        break;
    }
    if (spec.invert) {
      for (TextRange& range : run->ranges) range.match = !range.match;
    }
    Keep(run->ranges, spec.behavior, &run->next);
  }
  run->split.pieces.swap(run->next);
}

void Splitter::Respell(const Step& step, Run* run) const {
  const SplitStep& spec = step.spec;
  const bool byte_level = spec.kind == Kind::kByteLevel;
  const std::string_view space = byte_level ? std::string_view(" ") : spec.pattern;
  std::string text, content;
  std::vector<TextRange> parts;
  run->next.clear();
  for (const TextRange& piece : run->split.pieces) {
    const bool well_formed = jinja::DecodeAt(run->split.text, piece.begin).valid;
    content = byte_level ? std::string(run->View(piece)) : ReplaceSpaces(run->View(piece), space);
    const bool prefixed = spec.prefix == Prefix::kAlways ||
                          (spec.prefix == Prefix::kFirst && run->first && piece.begin == 0);
    if (prefixed && !content.starts_with(space)) content.insert(0, space);
    const auto size = static_cast<uint32_t>(content.size());
    parts.clear();
    if (!spec.cut || !well_formed) {
      parts.push_back({0, size, false});
    } else if (byte_level) {
      step.pattern->Cut(content, 0, size, &run->scratch, run->stats, &parts);
    } else {
      run->ranges.clear();
      CutAtText(content, 0, space, &run->ranges);
      Keep(run->ranges, Behavior::kWithNext, &parts);
    }
    for (const TextRange& part : parts) {
      const auto begin = static_cast<uint32_t>(text.size());
      const std::string_view view =
          std::string_view(content).substr(part.begin, part.end - part.begin);
      if (byte_level) {
        for (char c : view) text += alphabet_.Spelling(static_cast<uint8_t>(c));
      } else {
        text += view;
      }
      run->next.push_back({begin, static_cast<uint32_t>(text.size()), false});
    }
  }
  run->split.text = std::move(text);
  run->split.pieces.swap(run->next);
}

size_t Splitter::bytes() const {
  size_t total = sizeof(*this) + steps_.capacity() * sizeof(Step);
  for (const Step& step : steps_) {
    if (step.pattern) total += step.pattern->bytes();
  }
  return total;
}

}  // namespace terrace
