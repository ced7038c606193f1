#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pre_tokenizer.h"

#include <pcre2.h>

#include <algorithm>

#include "fmt/format.h"
#include "text/utf8.h"

namespace terrace {
namespace {

// Enough for any match that our patterns can make of 16 MiB; a match that needs more is cut instead.
constexpr uint32_t kMatchLimit = 100'000'000;
// Interpreted matching (where the platform forbids run-time code) keeps its frames on the heap, up
// to this many KiB.
constexpr uint32_t kHeapLimitKib = 64 << 10;
// The window that a match is repeated in if it hit a limit.
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
  std::unique_ptr<pcre2_match_context, ContextDeleter> context;

  // Appends the pieces of the well-formed text[piece] under code `index`.
  void SplitPiece(size_t index, std::string_view text, PreTokenizer::Piece piece,
                  pcre2_match_data* data, std::vector<PreTokenizer::Piece>* out,
                  EncodeStats* stats) const;
};

void PreTokenizer::Compiled::SplitPiece(size_t index, std::string_view text,
                                        PreTokenizer::Piece piece, pcre2_match_data* data,
                                        std::vector<PreTokenizer::Piece>* out,
                                        EncodeStats* stats) const {
  // The subject is the piece alone, so that look-around sees its borders as the ends of the text.
  const std::string_view subject = text.substr(piece.begin, piece.end - piece.begin);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  size_t at = 0, done = 0;
  auto emit = [&](size_t begin, size_t end) {
    if (begin < end) {
      out->push_back({static_cast<uint32_t>(piece.begin + begin),
                      static_cast<uint32_t>(piece.begin + end)});
    }
  };
  auto match = [&](size_t end) {
    return pcre2_match(codes[index].get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), end, at,
                       PCRE2_NO_UTF_CHECK, data, context.get());
  };
  while (at < subject.size()) {
    ++stats->pattern_matches;
    int result = match(subject.size());
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
      // A limit was hit. What a short window holds is split as a text of its own; if even that is
      // too much, the window is one piece.
      ++stats->pattern_limits;
      const size_t window = at + SafeCut(subject.substr(at), kWindowBytes);
      result = match(window);
      if (result < 0) {
        emit(done, at);
        emit(at, window);
        at = done = window;
        continue;
      }
    }
    if (result < 0) break;
    const size_t begin = range[0], end = range[1];
    emit(done, begin);
    emit(begin, end);
    done = end;
    // No pattern of ours matches the empty string; go on by a character all the same.
    at = end;
    if (end == begin && end < subject.size()) at += Utf8CharLength(subject, end);
  }
  emit(done, subject.size());
}

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
  compiled.context.reset(pcre2_match_context_create(nullptr));
  if (compiled.context == nullptr) return absl::ResourceExhaustedError("no memory for PCRE2");
  pcre2_set_match_limit(compiled.context.get(), kMatchLimit);
  pcre2_set_heap_limit(compiled.context.get(), kHeapLimitKib);
  return result;
}

std::vector<PreTokenizer::Piece> PreTokenizer::Split(std::string_view text,
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
  std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create(1, nullptr));
  if (data != nullptr) {
    for (size_t i = 0; i < compiled_->codes.size(); ++i) {
      next.clear();
      for (const Piece& piece : pieces) {
        compiled_->SplitPiece(i, text, piece, data.get(), &next, stats);
      }
      pieces.swap(next);
    }
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
