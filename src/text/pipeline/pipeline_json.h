// The steps of a tokenizer.json (normalizer, pre_tokenizer, post_processor, decoder) as data.
#ifndef TERRACE_TEXT_PIPELINE_PIPELINE_JSON_H_
#define TERRACE_TEXT_PIPELINE_PIPELINE_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/json_node.h"
#include "text/pipeline/pipeline.h"

namespace terrace {

// Each appends to (or sets in) `pipeline` what the node says; a null node says nothing.
// InvalidArgument names the place, Unimplemented a kind that is not known.
absl::Status ReadNormalizer(const JsonNode& node, TokenizerPipeline* pipeline);
absl::Status ReadPreTokenizer(const JsonNode& node, TokenizerPipeline* pipeline);
absl::Status ReadPostProcessor(const JsonNode& node, TokenizerPipeline* pipeline);
absl::Status ReadDecoder(const JsonNode& node, TokenizerPipeline* pipeline);

// A pattern in the syntax of Oniguruma, in which the files are written, as one of PCRE2: escapes
// "\uXXXX", scripts, and intersections of classes "[a&&b]" are written anew.
std::string TranslatePattern(std::string_view pattern);

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_PIPELINE_JSON_H_
