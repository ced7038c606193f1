// How a model writes tool calls and reasoning, found out from its chat template: a template that
// prints earlier calls prints them as the model is meant to write new ones.
#ifndef TERRACE_TEXT_TOOL_FORMAT_H_
#define TERRACE_TEXT_TOOL_FORMAT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace terrace {

// Fixed text, or what differs from call to call.
struct FormatPart {
  enum class Kind : uint8_t {
    kText,
    kId,     // letters and digits that name the call
    kIndex,  // the number of the call, in digits
  };
  Kind kind = Kind::kText;
  std::string text;
  bool operator==(const FormatPart&) const = default;
};
using FormatParts = std::vector<FormatPart>;

// open NAME middle ARGUMENTS (between NAME middle ARGUMENTS)* close, where ARGUMENTS is a JSON
// object. `open` begins with text.
struct ToolFormat {
  FormatParts open, middle, between, close;
  bool parallel = false;  // `between` is known: an answer may hold several calls
  bool native = false;    // the template prints calls itself
  // What shows that a call begins: the first marker of `open`, or all of it.
  std::string trigger;
};

// Nothing if the template prints no calls, or none whose arguments are JSON. `end_words` are the
// spellings of the tokens that end an answer.
std::optional<ToolFormat> FindToolFormat(const ChatTemplate& chat_template,
                                         std::span<const std::string> end_words);
// For templates without tools: {"name": ..., "arguments": ...} between <tool_call> markers.
ToolFormat GenericToolFormat();
// The words that tell a model of the tools (a JSON array) and of the generic format.
std::string GenericToolPrompt(std::string_view tools_json);

// What stands around a model's reasoning.
struct ReasoningFormat {
  std::string open, close;
  // Written between reasoning and answer, or before an answer without reasoning, and part of
  // neither; may be empty.
  std::string skip;
};
// By the markers that the template's source speaks of.
std::optional<ReasoningFormat> FindReasoningFormat(std::string_view template_source);

}  // namespace terrace

#endif  // TERRACE_TEXT_TOOL_FORMAT_H_
