// Finds stop strings in streamed text. Text that may be the beginning of a stop string is held
// back; nothing is given twice and nothing is lost. The outcome depends on the text alone, not on
// how it was cut into pieces: the stop string that ends first wins, the longest of those that end
// together.
//
// Not thread-safe; one object a stream. Time is linear in text times number of stops.
#ifndef TERRACE_TEXT_STOP_STRINGS_H_
#define TERRACE_TEXT_STOP_STRINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

class StopMatcher {
 public:
  // Empty stop strings never match.
  explicit StopMatcher(std::vector<std::string> stops);

  // The part of the text so far that may be given out and was not before. Once a stop string has
  // been found, all that follows is dropped.
  std::string Append(std::string_view piece);

  // Ends the text without a stop: what is still held back. Empty if stopped().
  std::string Finish();

  bool stopped() const { return matched_ >= 0; }
  // The index of the stop string that was found, or -1.
  int matched() const { return matched_; }

 private:
  // Knuth, Morris, Pratt: `failure[i]` is the length of the longest border of the first i + 1
  // bytes.
  struct Stop {
    std::string text;
    std::vector<uint32_t> failure;
    uint32_t state = 0;  // Bytes of `text` that the text so far ends with.
  };

  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_STOP_STRINGS_H_
