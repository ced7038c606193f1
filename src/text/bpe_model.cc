#include <array>

#include "base/status.h"
#include "base/text.h"
#include "fmt/format.h"
#include "text/byte_level.h"
#include "text/merge_table.h"
#include "text/pre_tokenizer.h"
#include "text/text_model.h"
#include "text/utf8.h"

namespace terrace {
namespace {

bool FindMerge(const MergeTable& merges, const Symbol& left, const Symbol& right, uint32_t* rank,
               int32_t* id) {
  return left.id >= 0 && right.id >= 0 && merges.Find(left.id, right.id, rank, id);
}

// "gpt2": the text is cut into pieces by the family's patterns; in each piece bytes are merged.
class ByteLevelModel final : public TextModel {
 public:
  ByteLevelModel(const TokenizerConfig& config, const Vocab* vocab,
                 std::unique_ptr<PreTokenizer> pre, std::unique_ptr<MergeTable> merges)
      : vocab_(*vocab),
        unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1),
        pre_(std::move(pre)),
        merges_(std::move(merges)) {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string& spelling = alphabet_.Spelling(static_cast<uint8_t>(byte));
      byte_symbols_[byte] = merges_->FindSymbol(vocab_, spelling);
    }
  }

  absl::Status Encode(std::string_view text, bool /*at_start*/, MergeScratch* scratch,
                      EncodeStats* stats, std::vector<int32_t>* ids) const override {
    ASSIGN_OR_RETURN(const std::vector<PreTokenizer::Piece> pieces, pre_->Split(text, stats));
    for (const PreTokenizer::Piece& piece : pieces) {
      RETURN_IF_ERROR(
          EncodePiece(text.substr(piece.begin, piece.end - piece.begin), scratch, stats, ids));
    }
    return absl::OkStatus();
  }

  std::string DecodeNormal(std::string_view spelling) const override {
    return alphabet_.Decode(spelling);
  }
  std::string DecodeUserDefined(std::string_view spelling) const override {
    return std::string(spelling);
  }
  size_t bytes() const override { return sizeof(*this) + pre_->bytes() + merges_->bytes(); }

 private:
  absl::Status EncodePiece(std::string_view piece, MergeScratch* scratch, EncodeStats* stats,
                           std::vector<int32_t>* ids) const {
    if (pre_->ignore_merges() && piece.size() <= vocab_.max_token_bytes()) {
      std::string spelling;
      for (char c : piece) spelling += alphabet_.Spelling(static_cast<uint8_t>(c));
      const int32_t id = vocab_.FindOrdinary(spelling);
      if (id >= 0) {
        ids->push_back(id);
        return absl::OkStatus();
      }
    }
    scratch->symbols.clear();
    for (uint32_t i = 0; i < piece.size(); ++i) {
      scratch->Add(i, 1, byte_symbols_[static_cast<uint8_t>(piece[i])]);
    }
    stats->merge_steps += MergeSymbols(
        scratch, [&](const Symbol& left, const Symbol& right, uint32_t* rank, int32_t* id) {
          return FindMerge(*merges_, left, right, rank, id);
        });
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
      const Symbol& symbol = scratch->symbols[i];
      if (vocab_.Contains(symbol.id)) {
        ids->push_back(symbol.id);
      } else {
        RETURN_IF_ERROR(AppendBytes(piece.substr(symbol.begin, symbol.length), ids));
      }
    }
    return absl::OkStatus();
  }

  // The bytes of a symbol that merges know and the vocabulary does not, one by one.
  absl::Status AppendBytes(std::string_view text, std::vector<int32_t>* ids) const {
    for (char c : text) {
      const uint8_t byte = static_cast<uint8_t>(c);
      if (vocab_.Contains(byte_symbols_[byte])) {
        ids->push_back(byte_symbols_[byte]);
      } else {
        RETURN_IF_ERROR(AppendByteTokens(vocab_, {&c, 1}, unknown_, ids));
      }
    }
    return absl::OkStatus();
  }

  const Vocab& vocab_;
  const int32_t unknown_;
  const ByteLevelAlphabet alphabet_;
  const std::unique_ptr<PreTokenizer> pre_;
  const std::unique_ptr<MergeTable> merges_;
  std::array<int32_t, 256> byte_symbols_;
};

// "gemma4": spaces are made visible, characters are merged line by line, a run of line breaks that
// is a token is taken as it is, and what has no token becomes bytes.
class EscapedModel final : public TextModel {
 public:
  EscapedModel(const TokenizerConfig& config, const Vocab* vocab,
               std::unique_ptr<MergeTable> merges)
      : vocab_(*vocab),
        unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1),
        add_space_prefix_(config.add_space_prefix.value_or(false)),
        merges_(std::move(merges)) {}

  absl::Status Encode(std::string_view text, bool /*at_start*/, MergeScratch* scratch,
                      EncodeStats* stats, std::vector<int32_t>* ids) const override {
    std::string escaped;
    if (add_space_prefix_) escaped = kVisibleSpace;
    escaped += EscapeSpaces(text);
    const std::string_view view = escaped;
    for (size_t at = 0; at < view.size();) {
      const bool breaks = view[at] == '\n';
      size_t end = breaks ? view.find_first_not_of('\n', at) : view.find('\n', at);
      if (end == std::string_view::npos) end = view.size();
      const std::string_view run = view.substr(at, end - at);
      at = end;
      const int32_t whole =
          breaks && run.size() <= vocab_.max_token_bytes() ? vocab_.FindOrdinary(run) : -1;
      if (whole >= 0) {
        ids->push_back(whole);
      } else {
        RETURN_IF_ERROR(EncodeRun(run, scratch, stats, ids));
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
  size_t bytes() const override { return sizeof(*this) + merges_->bytes(); }

 private:
  absl::Status EncodeRun(std::string_view run, MergeScratch* scratch, EncodeStats* stats,
                         std::vector<int32_t>* ids) const {
    scratch->symbols.clear();
    for (size_t at = 0; at < run.size();) {
      const size_t length = std::max<size_t>(1, Utf8CharLength(run, at));
      scratch->Add(static_cast<uint32_t>(at), static_cast<uint32_t>(length),
                   merges_->FindSymbol(vocab_, run.substr(at, length)));
      at += length;
    }
    stats->merge_steps += MergeSymbols(
        scratch, [&](const Symbol& left, const Symbol& right, uint32_t* rank, int32_t* id) {
          return FindMerge(*merges_, left, right, rank, id);
        });
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
      const Symbol& symbol = scratch->symbols[i];
      if (vocab_.Contains(symbol.id)) {
        ids->push_back(symbol.id);
      } else {
        RETURN_IF_ERROR(
            AppendByteTokens(vocab_, run.substr(symbol.begin, symbol.length), unknown_, ids));
      }
    }
    return absl::OkStatus();
  }

  const Vocab& vocab_;
  const int32_t unknown_;
  const bool add_space_prefix_;
  const std::unique_ptr<MergeTable> merges_;
};

absl::Status UnknownPre(std::string_view pre) {
  const std::vector<std::string> names = PrePatternNames();
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  const std::string nearest = NearestName(pre, names);
  return absl::InvalidArgumentError(
      fmt::format("tokenizer pre '{}' is not known{}; known are: {}", pre,
                  nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest), known));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextModel>> MakeBpeModel(const TokenizerConfig& config,
                                                        const Vocab* vocab, bool* add_bos,
                                                        std::vector<std::string>* warnings) {
  ASSIGN_OR_RETURN(auto merges, MergeTable::Create(config, *vocab));
  if (config.model == "gemma4") {
    *add_bos = true;
    return std::make_unique<EscapedModel>(config, vocab, std::move(merges));
  }
  if (config.pre.empty()) {
    warnings->push_back(
        "tokenizer pre is missing; 'default' is used, which may split text unlike "
        "the model's training");
  }
  const PrePatterns* family = FindPrePatterns(config.pre.empty() ? "default" : config.pre);
  if (family == nullptr) return UnknownPre(config.pre);
  *add_bos = family->add_bos;
  ASSIGN_OR_RETURN(auto pre, PreTokenizer::Create(family));
  return std::make_unique<ByteLevelModel>(config, vocab, std::move(pre), std::move(merges));
}

}  // namespace terrace
