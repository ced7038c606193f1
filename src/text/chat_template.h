// Chat messages to prompt text by a model's own chat template, with the provenance of every byte:
// only what the template itself writes may become control tokens, so that a user who types a
// turn marker has typed plain text.
#ifndef TERRACE_TEXT_CHAT_TEMPLATE_H_
#define TERRACE_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace terrace {

struct ChatTemplateOptions {
  std::string bos_token;
  std::string eos_token;
  // Further variables that hold trusted text, such as {"pad_token", "<pad>"}.
  std::vector<std::pair<std::string, std::string>> tokens;
  jinja::TemplateOptions parsing;
  jinja::Limits limits;
};

struct ChatInput {
  boost::json::array messages;        // As in the OpenAI API.
  boost::json::value tools;           // An array, or null for none.
  bool add_generation_prompt = true;  // End with the opening of the assistant's turn.
  // Further variables (`chat_template_kwargs`). They can't replace those above or the tokens.
  boost::json::object extra;
  // Seconds since the Unix epoch, for templates that print the date; without it those fail.
  std::function<int64_t()> now;
};

struct RenderedPrompt {
  std::string text;
  // Without gaps, in order; `trusted` bytes come from the template, a role name or a token of the
  // options, all others from the request. Only control tokens that lie wholly in trusted bytes
  // are control tokens.
  std::vector<jinja::Span> spans;

  // The spans as the tokenizer takes them; views into `text`.
  std::vector<TextSpan> TextSpans() const;
};

// What a template can do, found by rendering small probes when it is created.
struct ChatCapabilities {
  bool system_role = false;        // Prints system messages. If not, they join the next user turn.
  bool alternating_roles = false;  // Refuses two user messages in a row.
  bool tools = false;              // Prints the tools it is given.
  bool tool_calls = false;         // Prints an assistant's tool calls.
  bool string_content = false;     // Takes `content` as a string.
  bool part_content = false;       // Takes `content` as a list of {"type": "text", "text": ...}.
  bool object_arguments = false;   // Takes the arguments of a tool call as an object, not as text.
  bool null_content = false;       // Prints tool calls only of a message whose `content` is null.
  bool null_tools = true;          // Takes `tools` as null if there are none; else it is left out.
};

// Immutable; Render may run on many threads at once.
class ChatTemplate {
 public:
  // The template's `source`; if it is empty, ChatML. InvalidArgument if it can't be parsed.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Create(
      std::string_view source, ChatTemplateOptions options = {});

  // Adapts the messages to what the template takes, then renders:
  // - `role` is one of system, developer, user, assistant, tool, function; developer is renamed to
  //   system for a template that doesn't speak of it.
  // - `content` is a string or a list of text parts, which are joined with nothing in between;
  // null,
  //   absent and empty content of an assistant are the same, that of others is an error.
  // - `tool_calls[].function.arguments` is a JSON object, or the text of one (empty text is {}).
  // Errors: InvalidArgument that names the message ("messages[2].content: ...") or that has the
  // template's own words (raise_exception); FailedPrecondition if the template can't be applied;
  // ResourceExhausted beyond the limits.
  absl::StatusOr<RenderedPrompt> Render(const ChatInput& input) const;

  const ChatCapabilities& capabilities() const { return capabilities_; }

 private:
  ChatTemplate(std::unique_ptr<const jinja::Template> parsed, ChatTemplateOptions options,
               bool knows_developer);
  absl::StatusOr<RenderedPrompt> RenderAdapted(const jinja::Value& messages,
                                               const ChatInput& input) const;
  jinja::Value AbsentValue(const char* name) const;
  std::string RenderProbe(const boost::json::array& messages,
                          const boost::json::value& tools = nullptr) const;
  void Probe();
  void ProbeToolCalls(const boost::json::object& user);

  const std::unique_ptr<const jinja::Template> template_;
  const ChatTemplateOptions options_;
  const bool knows_developer_;
  ChatCapabilities capabilities_;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_CHAT_TEMPLATE_H_
