// Immutable text that remembers, byte by byte, where it came from: from the template (trusted) or
// from the input data (untrusted). Every string of the interpreter is one, so that a renderer can
// say which bytes of a prompt may be control tokens. Uniform text costs no more than a std::string.
// Copies share the text. Thread-safe to read.
#ifndef TERRACE_TEXT_JINJA_STR_H_
#define TERRACE_TEXT_JINJA_STR_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::jinja {

// The provenance of the bytes up to `end` (exclusive), from the end of the run before.
struct Run {
  size_t end;
  bool trusted;
};

class Str {
 public:
  Str() = default;  // Empty and trusted.
  Str(std::string text, bool trusted);

  std::string_view view() const { return rep_ ? std::string_view(rep_->text) : std::string_view(); }
  size_t size() const { return rep_ ? rep_->text.size() : 0; }
  bool empty() const { return size() == 0; }
  // Marked as HTML-safe (Python's markupsafe.Markup): what is joined to it with + is escaped.
  bool markup() const { return markup_; }
  Str WithMarkup(bool markup) const;
  bool any_untrusted() const { return rep_ && (!rep_->runs.empty() || !rep_->trusted); }

  // Bytes [begin, begin + count), cut to the text's end, with their provenance.
  Str Sub(size_t begin, size_t count = std::string_view::npos) const;

  // Calls `f(begin, end, trusted)` for each stretch of bytes [begin, end) of one provenance.
  template <typename F>
  void ForEachRun(size_t begin, size_t end, F&& f) const {
    if (begin >= end) return;
    if (rep_->runs.empty()) {
      f(begin, end, rep_->trusted);
      return;
    }
    for (const Run& run : rep_->runs) {
      if (run.end <= begin) continue;
      const size_t stop = run.end < end ? run.end : end;
      f(begin, stop, run.trusted);
      begin = stop;
      if (begin >= end) return;
    }
  }

 private:
  friend class StrBuilder;
  struct Rep {
    std::string text;
    bool trusted = true;    // If `runs` is empty: of the whole text.
    std::vector<Run> runs;  // Mixed text only; ends at text.size().
  };

  std::shared_ptr<const Rep> rep_;
  bool markup_ = false;
};

// Builds a Str piece by piece. Not thread-safe.
class StrBuilder {
 public:
  size_t size() const { return text_.size(); }
  std::string_view view() const { return text_; }
  void Reserve(size_t bytes) { text_.reserve(bytes); }
  void Append(std::string_view text, bool trusted);
  void Append(const Str& text);
  // Bytes [begin, end) of `text`.
  void Append(const Str& text, size_t begin, size_t end);
  Str Build(bool markup = false);
  // The built text and its runs (adjacent runs differ in trust; empty for empty text).
  std::pair<std::string, std::vector<Run>> Take();

 private:
  std::string text_;
  std::vector<Run> runs_;
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_STR_H_
