#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/text_pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "text/utf8.h"

namespace terrace {
namespace {

// Matching steps allowed for one match: our patterns need a few a byte they look at.
constexpr uint32_t kStepsAtLeast = 100'000;
constexpr uint32_t kStepsPerByte = 4;
// Interpreted matching (where the platform forbids run-time code) keeps its frames on the heap, up
// to this many KiB.
constexpr uint32_t kHeapLimitKib = 64 << 10;
// Where a match hit a limit, what follows is split in windows of this size.
constexpr size_t kWindowBytes = 4096;
// Longer patterns are no tokenizer's.
constexpr size_t kMaxPatternBytes = 64 << 10;

struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// A cut of at most `limit` bytes that does not split a character of well-formed `text`.
size_t SafeCut(std::string_view text, size_t limit) {
  if (text.size() <= limit) return text.size();
  while (limit > 0 && (static_cast<uint8_t>(text[limit]) & 0xC0) == 0x80) --limit;
  return limit;
}

}  // namespace

struct TextPattern::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* code;
};

struct TextPattern::Scratch::State {
  // Only the whole match is asked for: one pair of offsets.
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, ContextDeleter> context{pcre2_match_context_create(nullptr)};

  // Looks in subject[from, end) for `code`: the match, or npos twice.
  struct Found {
    size_t begin = std::string_view::npos, end = std::string_view::npos;
    bool gave_up = false;
  };
  Found Match(const pcre2_code* code, std::string_view subject, size_t from, EncodeStats* stats) {
    ++stats->pattern_matches;
    const size_t steps = kStepsAtLeast + kStepsPerByte * (subject.size() - from);
    pcre2_set_match_limit(context.get(),
                          static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
    const int result =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                    PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) return {};
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (result < 0 || range[0] < from || range[1] < range[0]) {
      ++stats->pattern_limits;
      return {.gave_up = true};
    }
    return {range[0], range[1]};
  }
};

TextPattern::Scratch::Scratch() : state_(std::make_unique<State>()) {
  if (ok()) pcre2_set_heap_limit(state_->context.get(), kHeapLimitKib);
}
TextPattern::Scratch::~Scratch() = default;
bool TextPattern::Scratch::ok() const {
  return state_->data != nullptr && state_->context != nullptr;
}

TextPattern::TextPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;
TextPattern::~TextPattern() = default;

absl::StatusOr<TextPattern> TextPattern::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(fmt::format("a pattern of {} bytes, at most {} are accepted",
                                                  pattern.size(), kMaxPatternBytes));
  }
  // "(*..." at the start would set PCRE2's own limits and modes.
  if (pattern.starts_with("(*")) {
    return absl::InvalidArgumentError("a pattern begins with '(*'");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C, &error,
                    &offset, nullptr);
  if (code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(fmt::format("pattern '{}': {} at {}", pattern,
                                                  reinterpret_cast<const char*>(message), offset));
  }
  auto owned = std::make_unique<Code>(code);
  // Without run-time code generation matching is interpreted: slower, the same result.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return TextPattern(std::move(owned));
}

void TextPattern::Cut(std::string_view text, uint32_t begin, uint32_t end, Scratch* scratch,
                      EncodeStats* stats, std::vector<TextRange>* out) const {
  const std::string_view whole = text.substr(begin, end - begin);
  auto emit = [&](size_t from, size_t to, bool match) {
    if (from == to) return;
    out->push_back({static_cast<uint32_t>(begin + from), static_cast<uint32_t>(begin + to), match});
  };
  std::string_view subject = whole;
  bool windowed = false;
  size_t at = 0, done = 0;
  while (at < whole.size()) {
    const auto found = scratch->state_->Match(code_->code, subject, at, stats);
    if (found.gave_up && !windowed) {
      windowed = true;
      subject = whole.substr(0, done + SafeCut(whole.substr(done), kWindowBytes));
      at = done;
      continue;
    }
    if (found.begin == std::string_view::npos) {
      // The rest of the subject is one piece; where it is a window, the next one follows.
      emit(done, subject.size(), false);
      at = done = subject.size();
      if (windowed) subject = whole.substr(0, done + SafeCut(whole.substr(done), kWindowBytes));
      continue;
    }
    emit(done, found.begin, false);
    emit(found.begin, found.end, true);
    at = done = found.end;
    // After an empty match go on by a character.
    if (found.begin == found.end && at < whole.size()) at += Utf8CharLength(whole, at);
    if (windowed && at >= subject.size()) {
      subject = whole.substr(0, at + SafeCut(whole.substr(at), kWindowBytes));
    }
  }
  emit(done, whole.size(), false);
}

size_t TextPattern::bytes() const {
  size_t size = 0, jit = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_SIZE, &size);
  pcre2_pattern_info(code_->code, PCRE2_INFO_JITSIZE, &jit);
  return sizeof(*this) + size + jit;
}

}  // namespace terrace
