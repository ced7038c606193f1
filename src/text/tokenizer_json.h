// Reads tokenizer.json, the file of the Hugging Face tokenizers library, and what
// tokenizer_config.json adds to it. Both are taken as hostile.
#ifndef TERRACE_TEXT_TOKENIZER_JSON_H_
#define TERRACE_TEXT_TOKENIZER_JSON_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace terrace {

// `settings` is the text of tokenizer_config.json, or empty. Models: BPE (byte-level, over
// characters with byte fallback), Unigram, WordPiece, WordLevel. InvalidArgument names what is
// wrong where ("tokenizer.json: added_tokens[3].id"), Unimplemented a kind of step that this build
// does not run.
absl::StatusOr<TokenizerConfig> TokenizerConfigFromJson(std::string_view tokenizer,
                                                        std::string_view settings);

}  // namespace terrace

#endif  // TERRACE_TEXT_TOKENIZER_JSON_H_
