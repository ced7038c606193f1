// A model as the server offers it: its name, tokenizer, chat template and limits. Immutable once
// published, hence shared freely and safe from any thread.
#ifndef TERRACE_SERVER_SERVED_MODEL_H_
#define TERRACE_SERVER_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "server/judge.h"
#include "server/openai_request.h"
#include "text/grammar/matcher.h"
#include "text/tokenizer.h"
#include "text/tool_format.h"

namespace terrace {
class ChatTemplate;
class Clock;
struct ChatInput;
}  // namespace terrace

namespace terrace::server {

// A conversation as the model reads it.
struct ChatPrompt {
  std::vector<int32_t> ids;
  bool in_reasoning = false;  // it ends where the model goes on reasoning
};

// The tokens between which a text is filled in: first, what stands before, second, what stands
// behind, third.
struct FillTokens {
  int32_t before = 0;
  int32_t behind = 0;
  int32_t middle = 0;
};

class ServedModel {
 public:
  struct Options {
    std::string name;
    int64_t created = 0;  // seconds since the Unix epoch
    int32_t max_context = 0;
    int32_t vocab_size = 0;  // of the logits; the tokenizer may know fewer
    bool encoder = false;    // gives vectors only
    bool judge = false;      // ranks by answering yes or no, if its vocabulary can
  };

  // Builds tokenizer and template from a model's metadata. `clock` (for templates that print the
  // date) must outlive the model. A model without a template serves completions only; one whose
  // template cannot be read, too, and says why when it is asked to chat.
  static absl::StatusOr<std::shared_ptr<const ServedModel>> Create(Options options,
                                                                   const Metadata& metadata,
                                                                   const Clock* clock);
  ~ServedModel();

  const std::string& name() const { return options_.name; }
  int64_t created() const { return options_.created; }
  int32_t max_context() const { return options_.max_context; }
  int32_t vocab_size() const { return options_.vocab_size; }
  bool encoder() const { return options_.encoder; }
  // How it ranks by judging; nothing if it ranks by its vectors.
  const std::optional<JudgeTokens>& judge() const { return judge_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  // How the model calls tools: the template's way, or a generic one that the prompt explains.
  const ToolFormat& tool_format() const { return tool_format_; }
  // How it marks reasoning; nothing if it does not.
  const std::optional<ReasoningFormat>& reasoning() const { return reasoning_; }
  // How it fills in; nothing if it cannot.
  const std::optional<FillTokens>& fill_tokens() const { return fill_tokens_; }
  // Grammars for its vocabulary, compiled once and remembered.
  grammar::GrammarCache& grammars() const { return *grammars_; }
  // What was odd about the metadata, for the log.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // The prompt of a conversation. The template writes the start token, or the tokenizer does if the
  // template does not: never both. Only what the template wrote can be a control token.
  absl::StatusOr<ChatPrompt> EncodeChat(const Conversation& input) const;
  absl::StatusOr<std::vector<int32_t>> EncodeText(std::string_view text, bool add_special,
                                                  bool parse_special) const;

  // A text by itself, with the start and end tokens that the model puts around one.
  absl::StatusOr<std::vector<int32_t>> EncodeWhole(std::string_view text) const;

 private:
  ServedModel() = default;
  // The messages as JSON for the template; with the generic tool format, calls, results and the
  // tools themselves become text.
  void AddMessages(const Conversation& input, ChatInput* out) const;

  Options options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<grammar::GrammarCache> grammars_;  // thread-safe
  std::unique_ptr<const ChatTemplate> template_;
  ToolFormat tool_format_;
  std::optional<ReasoningFormat> reasoning_;
  std::optional<FillTokens> fill_tokens_;
  std::optional<JudgeTokens> judge_;
  absl::Status template_status_;  // why there is none
  std::vector<int32_t> end_tokens_;
  std::vector<std::string> warnings_;
  const Clock* clock_ = nullptr;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_SERVED_MODEL_H_
