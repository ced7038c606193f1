// The fields of a request that say what an answer must look like: response_format and its kin,
// tools and tool_choice. Plain data, and readers that check it.
#ifndef TERRACE_SERVER_OPENAI_FORMAT_H_
#define TERRACE_SERVER_OPENAI_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/json_fields.h"

namespace terrace::server {

inline constexpr size_t kMaxTools = 256;
inline constexpr size_t kMaxGuidedChoices = 10'000;

// What the text of an answer must match.
struct AnswerFormat {
  enum class Kind : uint8_t { kText, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kText;
  std::string text;                  // JSON of the schema, the pattern, or GBNF
  std::vector<std::string> choices;  // for kChoice
  std::string field;                 // where it was said, for errors
};

struct Tool {
  std::string name;
  std::string parameters;  // JSON of a schema; empty: any object
  bool strict = false;     // the schema is a promise, not advice
};

enum class ToolChoice : uint8_t {
  kNone,
  kAuto,
  kRequired,  // at least one call
  kNamed,     // a call of ToolRequest::named
};

struct ToolRequest {
  std::vector<Tool> tools;
  std::string json;  // the tools as they were sent, for the template
  ToolChoice choice = ToolChoice::kNone;
  std::string named;
  bool parallel = true;
};

// response_format, and the extensions guided_json, guided_regex, guided_choice, guided_grammar,
// structured_outputs, json_schema, regex, ebnf and grammar: at most one of them.
void ReadAnswerFormat(JsonFields* fields, AnswerFormat* out);
// tools, tool_choice and parallel_tool_calls.
void ReadTools(JsonFields* fields, ToolRequest* out);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OPENAI_FORMAT_H_
