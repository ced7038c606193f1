// Splits the text of an answer, as it comes, into reasoning, content and tool calls. What may yet
// become a marker is held back until it is clear. Not thread-safe; one object an answer.
#ifndef TERRACE_SERVER_ANSWER_PARSER_H_
#define TERRACE_SERVER_ANSWER_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_format.h"

namespace terrace::server {

// How answers of one request are to be read. Shared, unchanging.
struct AnswerSyntax {
  std::optional<ReasoningFormat> reasoning;
  bool starts_in_reasoning = false;  // the prompt ends inside it
  std::optional<ToolFormat> tools;   // calls are looked for
};

// A piece of an answer.
struct AnswerPiece {
  enum class Kind : uint8_t {
    kReasoning,
    kContent,
    kCallName,       // a call begins; `text` is the tool's name
    kCallArguments,  // more of the arguments of the call begun last
  };
  Kind kind = Kind::kContent;
  std::string text;
};

class AnswerParser {
 public:
  // `syntax` must outlive the parser.
  explicit AnswerParser(const AnswerSyntax* syntax);

  std::vector<AnswerPiece> Append(std::string_view text);
  // The rest, when the answer has ended: what was held back is content.
  std::vector<AnswerPiece> Finish();
  size_t calls() const { return calls_; }

 private:
  enum class State : uint8_t {
    kStart,  // reasoning may begin
    kReasoning,
    kContent,
    kOpen,  // what stands before the name of the first call
    kName,
    kMiddle,
    kArguments,
    kAfter,  // behind arguments: another call, or the end of calls
  };

  // Each takes what it can from the front of held_; false if more text is needed.
  bool Step(std::vector<AnswerPiece>* out, bool last);
  bool Start(bool last);
  bool Reasoning(std::vector<AnswerPiece>* out, bool last);
  bool Content(std::vector<AnswerPiece>* out, bool last);
  bool Open(std::vector<AnswerPiece>* out, bool last);
  bool Middle(std::vector<AnswerPiece>* out, bool last);
  bool Name(bool last);
  bool Arguments(std::vector<AnswerPiece>* out);
  bool After(bool last);
  void Give(AnswerPiece::Kind kind, std::string text, std::vector<AnswerPiece>* out);
  // How much of held_ cannot be the beginning of `marker`.
  size_t FreeOf(std::string_view marker) const;
  enum class Match : uint8_t { kNo, kMore, kYes };
  // Whether held_ begins with `parts`; `*length` is then their length.
  Match Try(const FormatParts& parts, size_t* length) const;

  const AnswerSyntax& syntax_;
  FormatParts open_;  // of tool calls, from its trigger on
  State state_ = State::kContent;
  std::string held_;
  std::string name_;
  int depth_ = 0;
  bool quoted_ = false, escaped_ = false;
  size_t calls_ = 0;
  bool said_ = false;   // content has been given out
  std::string blanks_;  // white space that is content only if more follows
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_ANSWER_PARSER_H_
