// The models of tokenizer pipelines: how one piece of text becomes tokens. Each follows the
// reference library's rules for equal scores and unknown characters. Immutable and thread-safe.
#ifndef TERRACE_TEXT_PIPELINE_PIECE_MODEL_H_
#define TERRACE_TEXT_PIPELINE_PIECE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/pipeline/pipeline.h"
#include "text/symbols.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

namespace terrace {

class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // Appends the tokens of `piece`, which is not empty. A character without any token, in a
  // vocabulary without an unknown one, is dropped (as the reference library does).
  virtual void Encode(std::string_view piece, MergeScratch* scratch, EncodeStats* stats,
                      std::vector<int32_t>* ids) const = 0;
  virtual size_t bytes() const = 0;
};

// Of the kind that config.pipeline names. `vocab` must outlive the result. InvalidArgument for
// tables that do not fit together.
absl::StatusOr<std::unique_ptr<PieceModel>> MakePieceModel(const TokenizerConfig& config,
                                                           const Vocab* vocab);

// Unigram language model (Kudo 2018): the most probable segmentation (unigram.cc).
absl::StatusOr<std::unique_ptr<PieceModel>> MakeUnigramModel(const TokenizerConfig& config,
                                                             const Vocab* vocab);

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_PIECE_MODEL_H_
