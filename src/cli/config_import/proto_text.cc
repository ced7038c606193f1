// The text form of protocol buffers, as far as configurations use it: fields, messages, lists,
// quoted strings that stand beside each other, comments.
#include <fmt/format.h>

#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/config_import/words.h"

namespace terrace::cli {
namespace {

constexpr int kMostNested = 64;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Fields up to `end` (0: the end of the text).
  absl::Status Fields(char end, int depth, std::vector<TextField>* out) {
    if (depth > kMostNested) return Fault("messages are nested too deep");
    for (;;) {
      const char c = Peek();
      if (c == end) {
        if (end != 0) ++at_;
        return absl::OkStatus();
      }
      if (c == 0) return Fault(fmt::format("a '{}' is missing at the end", end));
      if (c == ',' || c == ';') {
        ++at_;
        continue;
      }
      RETURN_IF_ERROR(Field(depth, out));
    }
  }

 private:
  absl::Status Fault(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("line {}: {}", line_, what));
  }

  // The next character that is neither space nor comment; 0 at the end.
  char Peek() {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
        if (at_ == text_.size()) return 0;
      }
      if (text_[at_] == '\n') ++line_;
      if (std::isspace(static_cast<unsigned char>(text_[at_])) == 0) return text_[at_];
    }
    return 0;
  }

  std::string Word() {
    constexpr std::string_view kMore = "_.-+/";
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  kMore.find(text_[at_]) != std::string_view::npos)) {
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  absl::Status Field(int depth, std::vector<TextField>* out) {
    TextField field;
    field.line = line_;
    field.name = Word();
    if (field.name.empty()) return Fault(fmt::format("'{}' where a field begins", text_[at_]));
    char c = Peek();
    if (c == ':') {
      ++at_;
      c = Peek();
    } else if (c != '{' && c != '<') {
      return Fault(fmt::format("':' is missing after {}", field.name));
    }
    if (c != '[') return Value(depth, std::move(field), out);
    ++at_;
    for (c = Peek(); c != ']'; c = Peek()) {
      if (c == 0) return Fault("a ']' is missing at the end");
      if (c == ',') {
        ++at_;
        continue;
      }
      RETURN_IF_ERROR(Value(depth, field, out));
    }
    ++at_;
    return absl::OkStatus();
  }

  absl::Status Value(int depth, TextField field, std::vector<TextField>* out) {
    const char c = Peek();
    if (c == '{' || c == '<') {
      ++at_;
      field.is_message = true;
      RETURN_IF_ERROR(Fields(c == '{' ? '}' : '>', depth + 1, &field.fields));
    } else if (c == '"' || c == '\'') {
      for (char next = c; next == '"' || next == '\''; next = Peek()) {
        RETURN_IF_ERROR(Quoted(next, &field.value));
      }
    } else {
      field.value = Word();
      if (field.value.empty()) return Fault(fmt::format("{} has no value", field.name));
    }
    out->push_back(std::move(field));
    return absl::OkStatus();
  }

  absl::Status Quoted(char quote, std::string* out) {
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\n') return Fault("a text does not end");
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        out->push_back(text_[at_] == 'n' ? '\n' : text_[at_] == 't' ? '\t' : text_[at_]);
      } else {
        out->push_back(text_[at_]);
      }
    }
    if (at_ == text_.size()) return Fault("a text does not end");
    ++at_;
    return absl::OkStatus();
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

absl::StatusOr<std::vector<TextField>> ParseProtoText(std::string_view text) {
  std::vector<TextField> fields;
  RETURN_IF_ERROR(Reader(text).Fields(0, 0, &fields));
  return fields;
}

}  // namespace terrace::cli
