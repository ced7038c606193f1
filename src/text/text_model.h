// What the tokenizer families differ in: how a stretch of ordinary text becomes tokens. Implemented
// in bpe_model.cc, spm_model.cc and pipeline/pipeline_model.cc. Immutable and thread-safe.
#ifndef TERRACE_TEXT_TEXT_MODEL_H_
#define TERRACE_TEXT_TEXT_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/symbols.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

namespace terrace {

class TextModel {
 public:
  virtual ~TextModel() = default;

  // Appends the tokens of `text`, which holds no special tokens and stands at the start of the
  // input (`at_start`) or after a special token. InvalidArgument if the vocabulary cannot express a
  // byte and has no unknown token.
  virtual absl::Status Encode(std::string_view text, bool at_start, MergeScratch* scratch,
                              EncodeStats* stats, std::vector<int32_t>* ids) const = 0;

  // The bytes that the spelling of a normal token stands for, and of a user-defined one.
  virtual std::string DecodeNormal(std::string_view spelling) const = 0;
  virtual std::string DecodeUserDefined(std::string_view spelling) const = 0;

  virtual size_t bytes() const = 0;
};

// Byte-level BPE ("gpt2") and BPE over space-escaped characters ("gemma4"). `vocab` must outlive
// the result. `*add_bos` gets the family's default. Appends to `*warnings`.
absl::StatusOr<std::unique_ptr<TextModel>> MakeBpeModel(const TokenizerConfig& config,
                                                        const Vocab* vocab, bool* add_bos,
                                                        std::vector<std::string>* warnings);

// SentencePiece BPE by scores ("llama").
absl::StatusOr<std::unique_ptr<TextModel>> MakeSpmModel(const TokenizerConfig& config,
                                                        const Vocab* vocab, bool add_space_prefix);

// What a tokenizer.json describes: config.pipeline. `vocab` must outlive the result.
absl::StatusOr<std::unique_ptr<TextModel>> MakePipelineModel(const TokenizerConfig& config,
                                                             const Vocab* vocab);

// U+2581, the visible space of SentencePiece.
inline constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";
// `text` with each space as U+2581, and back.
std::string EscapeSpaces(std::string_view text);
std::string UnescapeSpaces(std::string_view text);

// Appends the byte tokens for `text`, or unknown tokens where those are missing.
absl::Status AppendByteTokens(const Vocab& vocab, std::string_view text, int32_t unknown,
                              std::vector<int32_t>* ids);

}  // namespace terrace

#endif  // TERRACE_TEXT_TEXT_MODEL_H_
