// Python's string functions, shared by the methods and the filters of the language. All keep the
// provenance of every byte.
#ifndef TERRACE_TEXT_JINJA_STRINGS_H_
#define TERRACE_TEXT_JINJA_STRINGS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/utf8.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

enum class Side : uint8_t { kBoth, kLeft, kRight };

// str.strip and friends; `chars` null means whitespace.
Str Strip(Runtime& rt, const Str& text, const Str* chars, Side side);
Str Upper(Runtime& rt, const Str& text);
Str Lower(Runtime& rt, const Str& text);
Str Capitalize(Runtime& rt, const Str& text);
// str.replace; `count` < 0 means all.
Str Replace(Runtime& rt, const Str& text, const Str& from, const Str& to, int64_t count);
std::vector<Value> SplitLines(Runtime& rt, const Str& text, bool keep_ends);
// Pads to `width` code points, `text` in the middle, at the left or at the right.
enum class Place : uint8_t { kCenter, kLeft, kRight };
Str Justify(Runtime& rt, const Str& text, int64_t width, const Str& fill, Place place);
// Python's int(text, base) and float(text); false if it is not a number.
bool ParseInt(std::string_view text, int base, int64_t* out);
bool ParseFloat(std::string_view text, double* out);
bool IsLowerText(std::string_view text);
bool IsUpperText(std::string_view text);
// The parts of a join, each with str(), between separators.
Str Join(Runtime& rt, const Str& separator, const std::vector<Value>& parts, bool strict);

// Puts what `f(code point, &bytes)` appends in the place of each code point.
template <typename F>
Str MapText(Runtime& rt, const Str& text, F&& f) {
  rt.Step(text.size() / 32);
  rt.NewString(text.size());
  StrBuilder builder;
  builder.Reserve(text.size());
  std::string piece;
  text.ForEachRun(0, text.size(), [&](size_t begin, size_t end, bool trusted) {
    const std::string_view run = text.view().substr(begin, end - begin);
    piece.clear();
    for (size_t pos = 0; pos < run.size();) {
      const CodePoint c = DecodeAt(run, pos);
      if (c.valid) {
        f(c.value, &piece);
      } else {
        piece.append(run.substr(pos, c.bytes));
      }
      pos += c.bytes;
    }
    builder.Append(piece, trusted);
  });
  rt.CheckString(builder.size());
  return builder.Build(text.markup());
}

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_STRINGS_H_
