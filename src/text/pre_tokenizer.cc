#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include <algorithm>

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

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
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

struct PreTokenizer::Compiled {
  std::vector<std::unique_ptr<pcre2_code, CodeDeleter>> codes;
};

namespace {

// The matching state of one Split.
struct Matcher {
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data;
  std::unique_ptr<pcre2_match_context, ContextDeleter> context;
  EncodeStats* stats;

  // Looks in subject[from, end) for `code`: the match, or npos twice.
  struct Found {
    size_t begin = std::string_view::npos, end = std::string_view::npos;
    bool gave_up = false;
  };
  Found Match(const pcre2_code* code, std::string_view subject, size_t from) {
    ++stats->pattern_matches;
    const size_t steps = kStepsAtLeast + kStepsPerByte * (subject.size() - from);
    pcre2_set_match_limit(context.get(),
                          static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
    const int result =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                    PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (result == PCRE2_ERROR_NOMATCH) return {};
    if (result < 0) {
      ++stats->pattern_limits;
      return {.gave_up = true};
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    return {range[0], range[1]};
  }
};

using Piece = PreTokenizer::Piece;

// Appends the pieces of the well-formed text[piece] under `code`.
void SplitPiece(const pcre2_code* code, std::string_view text, Piece piece, Matcher* matcher,
                std::vector<Piece>* out) {
  // The subject is the piece alone, so that look-around sees its borders as the ends of the text.
  const std::string_view whole = text.substr(piece.begin, piece.end - piece.begin);
  auto emit = [&](size_t begin, size_t end) {
    if (begin == end) return;
    out->push_back(
        {static_cast<uint32_t>(piece.begin + begin), static_cast<uint32_t>(piece.begin + end)});
  };
  std::string_view subject = whole;
  bool windowed = false;
  size_t at = 0, done = 0;
  while (at < whole.size()) {
    const Matcher::Found found = matcher->Match(code, subject, at);
    if (found.gave_up && !windowed) {
      windowed = true;
      subject = whole.substr(0, done + SafeCut(whole.substr(done), kWindowBytes));
      at = done;
      continue;
    }
    if (found.begin == std::string_view::npos) {
      // The rest of the subject is one piece; where it is a window, the next one follows.
      emit(done, subject.size());
      at = done = subject.size();
      if (windowed) subject = whole.substr(0, done + SafeCut(whole.substr(done), kWindowBytes));
      continue;
    }
    emit(done, found.begin);
    emit(found.begin, found.end);
    at = done = found.end;
    // No pattern of ours matches the empty text; go on by a character all the same.
    if (found.begin == found.end && at < whole.size()) at += Utf8CharLength(whole, at);
    if (windowed && at >= subject.size()) {
      subject = whole.substr(0, at + SafeCut(whole.substr(at), kWindowBytes));
    }
  }
  emit(done, whole.size());
}

}  // namespace

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const PrePatterns* family) {
  std::unique_ptr<PreTokenizer> result(new PreTokenizer);
  result->family_ = family;
  result->compiled_ = std::make_unique<Compiled>();
  Compiled& compiled = *result->compiled_;
  for (std::string_view pattern : family->patterns) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &offset, nullptr);
    if (code == nullptr) {
      return absl::InternalError(
          fmt::format("pre-tokenizer pattern '{}': PCRE2 error {} at {}", pattern, error, offset));
    }
    compiled.codes.emplace_back(code);
    // Without run-time code generation matching is interpreted: slower, the same result.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  return result;
}

absl::StatusOr<std::vector<PreTokenizer::Piece>> PreTokenizer::Split(std::string_view text,
                                                                     EncodeStats* stats) const {
  // Runs of well-formed text, and apart from them ill-formed bytes, which no pattern sees.
  std::vector<Piece> pieces, next, ill_formed;
  uint32_t begin = 0;
  for (uint32_t at = 0; at < text.size();) {
    const uint32_t length = static_cast<uint32_t>(Utf8CharLength(text, at));
    if (length > 0) {
      at += length;
      continue;
    }
    if (begin < at) pieces.push_back({begin, at});
    ill_formed.push_back({at, at + 1});
    begin = ++at;
  }
  if (begin < text.size()) pieces.push_back({begin, static_cast<uint32_t>(text.size())});

  // Only the whole match is asked for: one pair of offsets.
  Matcher matcher{
      std::unique_ptr<pcre2_match_data, MatchDataDeleter>(pcre2_match_data_create(1, nullptr)),
      std::unique_ptr<pcre2_match_context, ContextDeleter>(pcre2_match_context_create(nullptr)),
      stats};
  if (matcher.data == nullptr || matcher.context == nullptr) {
    return absl::ResourceExhaustedError("no memory for splitting text by patterns");
  }
  pcre2_set_heap_limit(matcher.context.get(), kHeapLimitKib);
  for (const auto& code : compiled_->codes) {
    next.clear();
    for (const Piece& piece : pieces) SplitPiece(code.get(), text, piece, &matcher, &next);
    pieces.swap(next);
  }
  if (ill_formed.empty()) return pieces;
  next.resize(pieces.size() + ill_formed.size());
  std::merge(pieces.begin(), pieces.end(), ill_formed.begin(), ill_formed.end(), next.begin(),
             [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return next;
}

size_t PreTokenizer::bytes() const {
  size_t total = sizeof(*this) + sizeof(Compiled);
  for (const auto& code : compiled_->codes) {
    size_t size = 0, jit = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_SIZE, &size);
    pcre2_pattern_info(code.get(), PCRE2_INFO_JITSIZE, &jit);
    total += size + jit;
  }
  return total;
}

}  // namespace terrace
