// A TextModel from a tokenizer pipeline: normalise, cut, and give each piece to the model.
#include <optional>
#include <utility>

#include "base/status.h"
#include "text/byte_level.h"
#include "text/pipeline/normalizer.h"
#include "text/pipeline/piece_model.h"
#include "text/pipeline/splitter.h"
#include "text/special_matcher.h"
#include "text/text_model.h"

namespace terrace {
namespace {

class PipelineModel final : public TextModel {
 public:
  PipelineModel(const TokenizerConfig& config, Normalizer normalizer, Splitter splitter,
                std::unique_ptr<PieceModel> pieces)
      : decode_(config.pipeline->decode),
        continuing_prefix_(config.pipeline->continuing_prefix),
        word_suffix_(config.pipeline->word_suffix),
        normalizer_(std::move(normalizer)),
        splitter_(std::move(splitter)),
        pieces_(std::move(pieces)) {}

  // Makes the added tokens `ids` of `vocab` known in their normalised spelling.
  absl::Status AddNormalized(const std::vector<int32_t>& ids, const Vocab& vocab) {
    EncodeStats unused;
    for (int32_t id : ids) {
      ASSIGN_OR_RETURN(std::string spelling, normalizer_.Apply(vocab.Text(id), &unused));
      added_.Add(spelling, id);
      has_added_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status Encode(std::string_view text, bool at_start, MergeScratch* scratch,
                      EncodeStats* stats, std::vector<int32_t>* ids) const override {
    if (normalizer_.empty() && !has_added_) {
      return EncodeNormal(std::string(text), at_start, scratch, stats, ids);
    }
    ASSIGN_OR_RETURN(const std::string normal, normalizer_.Apply(text, stats));
    if (!has_added_) return EncodeNormal(normal, at_start, scratch, stats, ids);
    for (size_t done = 0;;) {
      const SpecialMatcher::Match match =
          added_.Next(normal, done, [](size_t, size_t, int32_t) { return true; });
      const size_t end = match.id < 0 ? normal.size() : match.begin;
      RETURN_IF_ERROR(EncodeNormal(normal.substr(done, end - done), at_start && done == 0, scratch,
                                   stats, ids));
      if (match.id < 0) return absl::OkStatus();
      ids->push_back(match.id);
      done = match.begin + match.length;
    }
  }

  std::string DecodeNormal(std::string_view spelling) const override {
    using Decode = TokenizerPipeline::Decode;
    switch (decode_) {
      case Decode::kByteLevel:
        return alphabet_.Decode(spelling);
      case Decode::kVisibleSpace:
        return UnescapeSpaces(spelling);
      case Decode::kWordPiece:
        if (!continuing_prefix_.empty() && spelling.starts_with(continuing_prefix_)) {
          return std::string(spelling.substr(continuing_prefix_.size()));
        }
        return std::string(" ").append(spelling);
      case Decode::kSuffix:
        if (!word_suffix_.empty() && spelling.ends_with(word_suffix_)) {
          return std::string(spelling.substr(0, spelling.size() - word_suffix_.size())) + " ";
        }
        return std::string(spelling);
      case Decode::kPlain:
        return std::string(spelling);
    }
    return std::string(spelling);
  }
  std::string DecodeUserDefined(std::string_view spelling) const override {
    return decode_ == TokenizerPipeline::Decode::kVisibleSpace ? UnescapeSpaces(spelling)
                                                               : std::string(spelling);
  }
  size_t bytes() const override {
    return sizeof(*this) + normalizer_.bytes() + splitter_.bytes() + pieces_->bytes() +
           added_.bytes();
  }

 private:
  absl::Status EncodeNormal(std::string text, bool first, MergeScratch* scratch, EncodeStats* stats,
                            std::vector<int32_t>* ids) const {
    if (text.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const SplitText split, splitter_.Split(std::move(text), first, stats));
    for (const TextRange& piece : split.pieces) {
      if (piece.begin == piece.end) continue;
      pieces_->Encode(std::string_view(split.text).substr(piece.begin, piece.end - piece.begin),
                      scratch, stats, ids);
    }
    return absl::OkStatus();
  }

  const TokenizerPipeline::Decode decode_;
  const std::string continuing_prefix_, word_suffix_;
  const Normalizer normalizer_;
  const Splitter splitter_;
  const std::unique_ptr<PieceModel> pieces_;
  const ByteLevelAlphabet alphabet_;
  SpecialMatcher added_;
  bool has_added_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextModel>> MakePipelineModel(const TokenizerConfig& config,
                                                             const Vocab* vocab) {
  if (!config.pipeline) return absl::InvalidArgumentError("tokenizer.json: no pipeline");
  const TokenizerPipeline& pipeline = *config.pipeline;
  auto normalizer = Normalizer::Create(pipeline.normalizers);
  if (!normalizer.ok()) return WithContext(normalizer.status(), "tokenizer.json: normalizer");
  auto splitter = Splitter::Create(pipeline.splits);
  if (!splitter.ok()) return WithContext(splitter.status(), "tokenizer.json: pre_tokenizer");
  ASSIGN_OR_RETURN(auto pieces, MakePieceModel(config, vocab));
  auto model = std::make_unique<PipelineModel>(config, *std::move(normalizer), *std::move(splitter),
                                               std::move(pieces));
  RETURN_IF_ERROR(model->AddNormalized(pipeline.normalized_added, *vocab));
  return model;
}

}  // namespace terrace
