// Reads a TokenizerConfig from model metadata: from the "tokenizer.ggml." keys, or without those
// from the text of a tokenizer.json under "tokenizer.huggingface.json" (and of its
// tokenizer_config.json under "tokenizer.huggingface.config").
#ifndef TERRACE_TEXT_TOKENIZER_METADATA_H_
#define TERRACE_TEXT_TOKENIZER_METADATA_H_

#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "text/tokenizer.h"

namespace terrace {

// InvalidArgument names a key of the wrong kind; integers of any width are taken where integers
// belong, and where numbers belong. NotFound if there is no tokenizer at all.
absl::StatusOr<TokenizerConfig> TokenizerConfigFromMetadata(const Metadata& metadata);

}  // namespace terrace

#endif  // TERRACE_TEXT_TOKENIZER_METADATA_H_
