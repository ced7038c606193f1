#include "text/pipeline/normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"
#include "text/pipeline/characters.h"

namespace terrace {
namespace {

using Kind = NormalizerStep::Kind;

constexpr size_t kMaxTextBytes = size_t{1} << 31;

std::string UnicodeForm(std::string_view text, int options) {
  return ChangeWellFormed(text, [&](std::string_view run) {
    utf8proc_uint8_t* raw = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                     static_cast<utf8proc_ssize_t>(run.size()), &raw,
                     static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
    std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(raw, &std::free);
    // Fails for lack of memory only, and for runs over its own limits: the run stays as it is.
    return size < 0 ? std::string(run)
                    : std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
  });
}

// The characters of `text` for which `keep` holds; ill-formed bytes stay.
template <typename Keep>
std::string Filter(std::string_view text, const Keep& keep) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](size_t at, jinja::CodePoint c) {
    if (!c.valid || keep(c.value)) out += text.substr(at, c.bytes);
  });
  return out;
}

std::string Lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](size_t at, jinja::CodePoint c) {
    if (c.valid) {
      jinja::AppendLower(c.value, &out);
    } else {
      out += text[at];
    }
  });
  return out;
}

// BERT's cleaning: control characters go, white space becomes a space.
std::string Clean(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](size_t at, jinja::CodePoint c) {
    const bool space =
        c.valid && (IsWhiteSpace(c.value) || c.value == '\t' || c.value == '\n' || c.value == '\r');
    if (space) {
      out += ' ';
    } else if (!c.valid || !(c.value == 0 || c.value == 0xfffd || IsOther(c.value))) {
      out += text.substr(at, c.bytes);
    }
  });
  return out;
}

std::string SetChineseApart(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](size_t at, jinja::CodePoint c) {
    const bool apart = c.valid && IsChineseChar(c.value);
    if (apart) out += ' ';
    out += text.substr(at, c.bytes);
    if (apart) out += ' ';
  });
  return out;
}

std::string Bert(const NormalizerStep& step, std::string text) {
  if (step.clean) text = Clean(text);
  if (step.chinese) text = SetChineseApart(text);
  if (step.accents) {
    text = Filter(UnicodeForm(text, UTF8PROC_DECOMPOSE),
                  [](uint32_t c) { return !IsNonSpacingMark(c); });
  }
  return step.lowercase ? Lowercase(text) : text;
}

std::string_view StripEnds(const NormalizerStep& step, std::string_view text) {
  auto space = [](jinja::CodePoint c) { return c.valid && IsWhiteSpace(c.value); };
  while (step.left && !text.empty()) {
    const jinja::CodePoint c = jinja::DecodeAt(text, 0);
    if (!space(c)) break;
    text.remove_prefix(c.bytes);
  }
  while (step.right && !text.empty()) {
    const size_t start = jinja::PreviousAt(text, text.size());
    if (!space(jinja::DecodeAt(text, start))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

absl::StatusOr<std::string> ReplaceText(const NormalizerStep& step, std::string_view text) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found =
        step.pattern.empty() ? std::string_view::npos : text.find(step.pattern, at);
    out += text.substr(at, found == std::string_view::npos ? found : found - at);
    if (found == std::string_view::npos) return out;
    out += step.content;
    at = found + step.pattern.size();
    if (out.size() > kMaxTextBytes) {
      return absl::InvalidArgumentError("the tokenizer's normalizers make the text too long");
    }
  }
}

absl::StatusOr<std::string> ReplacePattern(const NormalizerStep& step, const TextPattern& pattern,
                                           std::string_view text, EncodeStats* stats) {
  TextPattern::Scratch scratch;
  if (!scratch.ok()) return absl::ResourceExhaustedError("no memory for matching patterns");
  bool too_long = false;
  std::vector<TextRange> ranges;
  std::string out = ChangeWellFormed(text, [&](std::string_view run) {
    std::string changed;
    ranges.clear();
    pattern.Cut(run, 0, static_cast<uint32_t>(run.size()), &scratch, stats, &ranges);
    for (const TextRange& range : ranges) {
      too_long = too_long || changed.size() > kMaxTextBytes;
      if (too_long) break;
      changed += range.match ? std::string_view(step.content)
                             : run.substr(range.begin, range.end - range.begin);
    }
    return changed;
  });
  if (too_long) {
    return absl::InvalidArgumentError("the tokenizer's normalizers make the text too long");
  }
  return out;
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Create(const std::vector<NormalizerStep>& steps) {
  Normalizer normalizer;
  for (const NormalizerStep& spec : steps) {
    Step step{spec, std::nullopt, std::nullopt};
    if (spec.kind == Kind::kReplacePattern) {
      ASSIGN_OR_RETURN(step.pattern, TextPattern::Compile(spec.pattern));
    } else if (spec.kind == Kind::kPrecompiled) {
      ASSIGN_OR_RETURN(step.map, CharacterMap::Create(spec.pattern));
      step.spec.pattern.clear();
    }
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

absl::StatusOr<std::string> Normalizer::Apply(std::string_view text, EncodeStats* stats) const {
  std::string result(text);
  for (const Step& step : steps_) {
    ASSIGN_OR_RETURN(result, ApplyStep(step, std::move(result), stats));
    if (result.size() > kMaxTextBytes) {
      return absl::InvalidArgumentError("the tokenizer's normalizers make the text too long");
    }
  }
  return result;
}

absl::StatusOr<std::string> Normalizer::ApplyStep(const Step& step, std::string text,
                                                  EncodeStats* stats) const {
  switch (step.spec.kind) {
    case Kind::kNfc:
      return UnicodeForm(text, UTF8PROC_COMPOSE);
    case Kind::kNfd:
      return UnicodeForm(text, UTF8PROC_DECOMPOSE);
    case Kind::kNfkc:
      return UnicodeForm(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case Kind::kNfkd:
      return UnicodeForm(text, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case Kind::kLowercase:
      return Lowercase(text);
    case Kind::kStripAccents:
      return Filter(text, [](uint32_t c) { return !IsMark(c); });
    case Kind::kStrip:
      return std::string(StripEnds(step.spec, text));
    case Kind::kPrepend:
      return text.empty() ? text : step.spec.content + text;
    case Kind::kReplaceText:
      return ReplaceText(step.spec, text);
    case Kind::kReplacePattern:
      return ReplacePattern(step.spec, *step.pattern, text, stats);
    case Kind::kBert:
      return Bert(step.spec, std::move(text));
    case Kind::kByteLevel: {
      std::string out;
      for (char c : text) out += alphabet_.Spelling(static_cast<uint8_t>(c));
      return out;
    }
    case Kind::kPrecompiled:
      return ChangeWellFormed(text, [&](std::string_view run) { return step.map->Apply(run); });
  }
  return text;
}

size_t Normalizer::bytes() const {
  size_t total = sizeof(*this) + steps_.capacity() * sizeof(Step);
  for (const Step& step : steps_) {
    if (step.pattern) total += step.pattern->bytes();
    if (step.map) total += step.map->bytes();
  }
  return total;
}

}  // namespace terrace
