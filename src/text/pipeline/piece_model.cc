#include "text/pipeline/piece_model.h"

#include <string>
#include <utility>

#include "base/status.h"
#include "text/merge_table.h"
#include "text/pipeline/characters.h"

namespace terrace {
namespace {

// Byte-pair encoding (Sennrich et al. 2016) by ranked merges over characters.
class BpePieces final : public PieceModel {
 public:
  BpePieces(const TokenizerConfig& config, const Vocab* vocab, std::unique_ptr<MergeTable> merges)
      : vocab_(*vocab),
        pipeline_(*config.pipeline),
        unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1),
        merges_(std::move(merges)),
        plain_(pipeline_.continuing_prefix.empty() && pipeline_.word_suffix.empty()) {
    std::string spelling;
    for (uint32_t c = 0; c < kCached; ++c) {
      spelling.clear();
      jinja::AppendUtf8(c, &spelling);
      cached_.push_back(merges_->FindSymbol(vocab_, spelling));
    }
  }

  void Encode(std::string_view piece, MergeScratch* scratch, EncodeStats* stats,
              std::vector<int32_t>* ids) const override {
    if (pipeline_.ignore_merges && piece.size() <= vocab_.max_token_bytes()) {
      const int32_t whole = vocab_.FindOrdinary(piece);
      if (whole >= 0) return ids->push_back(whole);
    }
    AddSymbols(piece, scratch);
    if (scratch->symbols.empty()) return;
    stats->merge_steps += MergeSymbols(
        scratch, [&](const Symbol& left, const Symbol& right, uint32_t* rank, int32_t* id) {
          return left.id >= 0 && right.id >= 0 && merges_->Find(left.id, right.id, rank, id);
        });
    for (int32_t i = 0; i >= 0; i = scratch->symbols[static_cast<size_t>(i)].next) {
      const int32_t id = scratch->symbols[static_cast<size_t>(i)].id;
      if (vocab_.Contains(id)) {
        ids->push_back(id);
      } else if (unknown_ >= 0) {
        ids->push_back(unknown_);  // merges made what the vocabulary does not hold
      }
    }
  }

  size_t bytes() const override {
    return sizeof(*this) + merges_->bytes() + cached_.capacity() * sizeof(int32_t);
  }

 private:
  static constexpr uint32_t kCached = 0x800;

  int32_t SymbolOf(std::string_view character, jinja::CodePoint c, bool starts, bool ends) const {
    if (plain_) {
      return c.valid && c.value < kCached ? cached_[c.value]
                                          : merges_->FindSymbol(vocab_, character);
    }
    std::string spelling = starts ? "" : pipeline_.continuing_prefix;
    spelling += character;
    if (ends) spelling += pipeline_.word_suffix;
    return merges_->FindSymbol(vocab_, spelling);
  }

  void AddSymbols(std::string_view piece, MergeScratch* scratch) const {
    scratch->symbols.clear();
    bool after_unknown = false;
    ForEachCharacter(piece, [&](size_t at, jinja::CodePoint c) {
      const auto begin = static_cast<uint32_t>(at);
      const std::string_view character = piece.substr(at, c.bytes);
      const int32_t id = SymbolOf(character, c, at == 0, at + c.bytes == piece.size());
      if (id >= 0) {
        scratch->Add(begin, c.bytes, id);
        after_unknown = false;
        return;
      }
      if (AddBytes(character, begin, scratch)) return;
      if (unknown_ < 0) return;
      if (after_unknown && pipeline_.fuse_unknown) {
        scratch->symbols.back().length += c.bytes;
      } else {
        scratch->Add(begin, c.bytes, unknown_);
      }
      after_unknown = true;
    });
  }

  bool AddBytes(std::string_view character, uint32_t begin, MergeScratch* scratch) const {
    if (!pipeline_.byte_fallback) return false;
    for (char c : character) {
      if (vocab_.ByteToken(static_cast<uint8_t>(c)) < 0) return false;
    }
    for (char c : character) scratch->Add(begin++, 1, vocab_.ByteToken(static_cast<uint8_t>(c)));
    return true;
  }

  const Vocab& vocab_;
  const TokenizerPipeline pipeline_;
  const int32_t unknown_;
  const std::unique_ptr<MergeTable> merges_;
  const bool plain_;             // characters are spelled as they are
  std::vector<int32_t> cached_;  // by code point
};

// WordPiece (Wu et al. 2016): the longest token first, or the whole word is unknown.
class WordPieces final : public PieceModel {
 public:
  WordPieces(const TokenizerConfig& config, const Vocab* vocab)
      : vocab_(*vocab),
        prefix_(config.pipeline->continuing_prefix),
        max_chars_(config.pipeline->max_word_chars),
        unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1) {}

  void Encode(std::string_view piece, MergeScratch* /*scratch*/, EncodeStats* stats,
              std::vector<int32_t>* ids) const override {
    const size_t before = ids->size();
    if (jinja::CountCodePoints(piece) <= static_cast<size_t>(max_chars_) &&
        EncodeWord(piece, stats, ids)) {
      return;
    }
    ids->resize(before);
    if (unknown_ >= 0) ids->push_back(unknown_);
  }

  size_t bytes() const override { return sizeof(*this) + prefix_.capacity(); }

 private:
  bool EncodeWord(std::string_view word, EncodeStats* stats, std::vector<int32_t>* ids) const {
    std::string spelling;
    for (size_t at = 0; at < word.size();) {
      spelling = at == 0 ? "" : prefix_;
      const size_t skipped = spelling.size();
      spelling += word.substr(at);
      if (spelling.size() > vocab_.max_token_bytes()) spelling.resize(vocab_.max_token_bytes());
      int32_t id = -1;
      while (spelling.size() > skipped) {
        ++stats->merge_steps;
        id = vocab_.FindOrdinary(spelling);
        if (id >= 0) break;
        spelling.pop_back();
      }
      if (id < 0) return false;
      ids->push_back(id);
      at += spelling.size() - skipped;
    }
    return true;
  }

  const Vocab& vocab_;
  const std::string prefix_;
  const int32_t max_chars_;
  const int32_t unknown_;
};

// A piece is a token or it is unknown.
class WholePieces final : public PieceModel {
 public:
  WholePieces(const TokenizerConfig& config, const Vocab* vocab)
      : vocab_(*vocab), unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1) {}

  void Encode(std::string_view piece, MergeScratch* /*scratch*/, EncodeStats* /*stats*/,
              std::vector<int32_t>* ids) const override {
    const int32_t id = vocab_.FindOrdinary(piece);
    if (id >= 0 || unknown_ >= 0) ids->push_back(id >= 0 ? id : unknown_);
  }
  size_t bytes() const override { return sizeof(*this); }

 private:
  const Vocab& vocab_;
  const int32_t unknown_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PieceModel>> MakePieceModel(const TokenizerConfig& config,
                                                           const Vocab* vocab) {
  switch (config.pipeline->model) {
    case TokenizerPipeline::Model::kBpe: {
      ASSIGN_OR_RETURN(auto merges, MergeTable::Create(config, *vocab));
      return std::make_unique<BpePieces>(config, vocab, std::move(merges));
    }
    case TokenizerPipeline::Model::kUnigram:
      return MakeUnigramModel(config, vocab);
    case TokenizerPipeline::Model::kWordPiece:
      return std::make_unique<WordPieces>(config, vocab);
    case TokenizerPipeline::Model::kWordLevel:
      return std::make_unique<WholePieces>(config, vocab);
  }
  return absl::InternalError("a tokenizer model of no kind");
}

}  // namespace terrace
