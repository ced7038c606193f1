#include <bit>

#include "base/status.h"
#include "fmt/format.h"
#include "text/text_model.h"
#include "text/utf8.h"

namespace terrace {
namespace {

// Scores as priorities: the higher the score the lower the number. The usual trick of IEEE 754: bit
// patterns order like the numbers once negative ones are turned round.
uint32_t PriorityOfScore(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score == 0 ? 0.0f : score);
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

class SpmModel final : public TextModel {
 public:
  SpmModel(const TokenizerConfig& config, const Vocab* vocab, bool add_space_prefix)
      : vocab_(*vocab),
        unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1),
        add_space_prefix_(add_space_prefix) {}

  absl::Status Encode(std::string_view text, bool /*at_start*/, MergeScratch* scratch,
                      EncodeStats* stats, std::vector<int32_t>* ids) const override {
    std::string escaped;
    if (add_space_prefix_) escaped = kVisibleSpace;
    escaped += EscapeSpaces(text);

    scratch->symbols.clear();
    for (size_t at = 0; at < escaped.size();) {
      const size_t length = std::max<size_t>(1, Utf8CharLength(escaped, at));
      scratch->Add(static_cast<uint32_t>(at), static_cast<uint32_t>(length), -1);
      at += length;
    }
    stats->merge_steps += MergeSymbols(
        scratch, [&](const Symbol& left, const Symbol& right, uint32_t* priority, int32_t* id) {
          const size_t length = left.length + right.length;
          if (length > vocab_.max_token_bytes()) return false;
          *id = vocab_.FindOrdinary({escaped.data() + left.begin, length});
          if (*id < 0) return false;
          *priority = PriorityOfScore(vocab_.Score(*id));
          return true;
        });
    for (int32_t i = scratch->symbols.empty() ? -1 : 0; i >= 0; i = scratch->symbols[i].next) {
      const Symbol& symbol = scratch->symbols[i];
      const std::string_view piece(escaped.data() + symbol.begin, symbol.length);
      const int32_t id = symbol.id >= 0 ? symbol.id : vocab_.FindOrdinary(piece);
      if (id >= 0) {
        ids->push_back(id);
      } else {
        RETURN_IF_ERROR(AppendByteTokens(vocab_, piece, unknown_, ids));
      }
    }
    return absl::OkStatus();
  }

  std::string DecodeNormal(std::string_view spelling) const override {
    return UnescapeSpaces(spelling);
  }
  std::string DecodeUserDefined(std::string_view spelling) const override {
    return UnescapeSpaces(spelling);
  }
  size_t bytes() const override { return sizeof(*this); }

 private:
  const Vocab& vocab_;
  const int32_t unknown_;
  const bool add_space_prefix_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextModel>> MakeSpmModel(const TokenizerConfig& config,
                                                        const Vocab* vocab, bool add_space_prefix) {
  if (config.scores.empty()) {
    return absl::InvalidArgumentError("tokenizer scores: missing, and model 'llama' needs them");
  }
  return std::make_unique<SpmModel>(config, vocab, add_space_prefix);
}

std::string EscapeSpaces(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (char c : text) {
    if (c == ' ') {
      out += kVisibleSpace;
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string UnescapeSpaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t found = text.find(kVisibleSpace, at);
    out += text.substr(at, found == std::string_view::npos ? found : found - at);
    if (found == std::string_view::npos) return out;
    out.push_back(' ');
    at = found + kVisibleSpace.size();
  }
}

absl::Status AppendByteTokens(const Vocab& vocab, std::string_view text, int32_t unknown,
                              std::vector<int32_t>* ids) {
  for (char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    const int32_t id = vocab.ByteToken(byte) >= 0 ? vocab.ByteToken(byte) : unknown;
    if (id < 0) {
      return absl::InvalidArgumentError(
          fmt::format("the vocabulary has no token for byte 0x{:02X}", byte));
    }
    ids->push_back(id);
  }
  return absl::OkStatus();
}

}  // namespace terrace
