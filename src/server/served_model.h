// A model as the server offers it: its name, tokenizer, chat template and limits. Immutable once
// published, hence shared freely and safe from any thread.
#ifndef TERRACE_SERVER_SERVED_MODEL_H_
#define TERRACE_SERVER_SERVED_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "server/openai_request.h"
#include "text/tokenizer.h"

namespace terrace {
class ChatTemplate;
class Clock;
}  // namespace terrace

namespace terrace::server {

class ServedModel {
 public:
  struct Options {
    std::string name;
    int64_t created = 0;  // seconds since the Unix epoch
    int32_t max_context = 0;
    int32_t vocab_size = 0;  // of the logits; the tokenizer may know fewer
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
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  // What was odd about the metadata, for the log.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // The prompt of a conversation. The template writes the start token, or the tokenizer does if the
  // template does not: never both. Only what the template wrote can be a control token.
  absl::StatusOr<std::vector<int32_t>> EncodeChat(const Conversation& input) const;
  absl::StatusOr<std::vector<int32_t>> EncodeText(std::string_view text, bool add_special,
                                                  bool parse_special) const;

 private:
  ServedModel() = default;

  Options options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<const ChatTemplate> template_;
  absl::Status template_status_;  // why there is none
  std::vector<int32_t> end_tokens_;
  std::vector<std::string> warnings_;
  const Clock* clock_ = nullptr;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_SERVED_MODEL_H_
