#include "text/jinja/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

namespace terrace::jinja {
namespace {

// The code points whose upper case is longer than one code point (Unicode SpecialCasing.txt).
struct SpecialUpper {
  uint32_t code_point;
  const char* upper;
};
constexpr SpecialUpper kSpecialUpper[] = {
    {0x00df, "\x53\x53"},
    {0x0149, "\xca\xbc\x4e"},
    {0x01f0, "\x4a\xcc\x8c"},
    {0x0390, "\xce\x99\xcc\x88\xcc\x81"},
    {0x03b0, "\xce\xa5\xcc\x88\xcc\x81"},
    {0x0587, "\xd4\xb5\xd5\x92"},
    {0x1e96, "\x48\xcc\xb1"},
    {0x1e97, "\x54\xcc\x88"},
    {0x1e98, "\x57\xcc\x8a"},
    {0x1e99, "\x59\xcc\x8a"},
    {0x1e9a, "\x41\xca\xbe"},
    {0x1f50, "\xce\xa5\xcc\x93"},
    {0x1f52, "\xce\xa5\xcc\x93\xcc\x80"},
    {0x1f54, "\xce\xa5\xcc\x93\xcc\x81"},
    {0x1f56, "\xce\xa5\xcc\x93\xcd\x82"},
    {0x1f80, "\xe1\xbc\x88\xce\x99"},
    {0x1f81, "\xe1\xbc\x89\xce\x99"},
    {0x1f82, "\xe1\xbc\x8a\xce\x99"},
    {0x1f83, "\xe1\xbc\x8b\xce\x99"},
    {0x1f84, "\xe1\xbc\x8c\xce\x99"},
    {0x1f85, "\xe1\xbc\x8d\xce\x99"},
    {0x1f86, "\xe1\xbc\x8e\xce\x99"},
    {0x1f87, "\xe1\xbc\x8f\xce\x99"},
    {0x1f88, "\xe1\xbc\x88\xce\x99"},
    {0x1f89, "\xe1\xbc\x89\xce\x99"},
    {0x1f8a, "\xe1\xbc\x8a\xce\x99"},
    {0x1f8b, "\xe1\xbc\x8b\xce\x99"},
    {0x1f8c, "\xe1\xbc\x8c\xce\x99"},
    {0x1f8d, "\xe1\xbc\x8d\xce\x99"},
    {0x1f8e, "\xe1\xbc\x8e\xce\x99"},
    {0x1f8f, "\xe1\xbc\x8f\xce\x99"},
    {0x1f90, "\xe1\xbc\xa8\xce\x99"},
    {0x1f91, "\xe1\xbc\xa9\xce\x99"},
    {0x1f92, "\xe1\xbc\xaa\xce\x99"},
    {0x1f93, "\xe1\xbc\xab\xce\x99"},
    {0x1f94, "\xe1\xbc\xac\xce\x99"},
    {0x1f95, "\xe1\xbc\xad\xce\x99"},
    {0x1f96, "\xe1\xbc\xae\xce\x99"},
    {0x1f97, "\xe1\xbc\xaf\xce\x99"},
    {0x1f98, "\xe1\xbc\xa8\xce\x99"},
    {0x1f99, "\xe1\xbc\xa9\xce\x99"},
    {0x1f9a, "\xe1\xbc\xaa\xce\x99"},
    {0x1f9b, "\xe1\xbc\xab\xce\x99"},
    {0x1f9c, "\xe1\xbc\xac\xce\x99"},
    {0x1f9d, "\xe1\xbc\xad\xce\x99"},
    {0x1f9e, "\xe1\xbc\xae\xce\x99"},
    {0x1f9f, "\xe1\xbc\xaf\xce\x99"},
    {0x1fa0, "\xe1\xbd\xa8\xce\x99"},
    {0x1fa1, "\xe1\xbd\xa9\xce\x99"},
    {0x1fa2, "\xe1\xbd\xaa\xce\x99"},
    {0x1fa3, "\xe1\xbd\xab\xce\x99"},
    {0x1fa4, "\xe1\xbd\xac\xce\x99"},
    {0x1fa5, "\xe1\xbd\xad\xce\x99"},
    {0x1fa6, "\xe1\xbd\xae\xce\x99"},
    {0x1fa7, "\xe1\xbd\xaf\xce\x99"},
    {0x1fa8, "\xe1\xbd\xa8\xce\x99"},
    {0x1fa9, "\xe1\xbd\xa9\xce\x99"},
    {0x1faa, "\xe1\xbd\xaa\xce\x99"},
    {0x1fab, "\xe1\xbd\xab\xce\x99"},
    {0x1fac, "\xe1\xbd\xac\xce\x99"},
    {0x1fad, "\xe1\xbd\xad\xce\x99"},
    {0x1fae, "\xe1\xbd\xae\xce\x99"},
    {0x1faf, "\xe1\xbd\xaf\xce\x99"},
    {0x1fb2, "\xe1\xbe\xba\xce\x99"},
    {0x1fb3, "\xce\x91\xce\x99"},
    {0x1fb4, "\xce\x86\xce\x99"},
    {0x1fb6, "\xce\x91\xcd\x82"},
    {0x1fb7, "\xce\x91\xcd\x82\xce\x99"},
    {0x1fbc, "\xce\x91\xce\x99"},
    {0x1fc2, "\xe1\xbf\x8a\xce\x99"},
    {0x1fc3, "\xce\x97\xce\x99"},
    {0x1fc4, "\xce\x89\xce\x99"},
    {0x1fc6, "\xce\x97\xcd\x82"},
    {0x1fc7, "\xce\x97\xcd\x82\xce\x99"},
    {0x1fcc, "\xce\x97\xce\x99"},
    {0x1fd2, "\xce\x99\xcc\x88\xcc\x80"},
    {0x1fd3, "\xce\x99\xcc\x88\xcc\x81"},
    {0x1fd6, "\xce\x99\xcd\x82"},
    {0x1fd7, "\xce\x99\xcc\x88\xcd\x82"},
    {0x1fe2, "\xce\xa5\xcc\x88\xcc\x80"},
    {0x1fe3, "\xce\xa5\xcc\x88\xcc\x81"},
    {0x1fe4, "\xce\xa1\xcc\x93"},
    {0x1fe6, "\xce\xa5\xcd\x82"},
    {0x1fe7, "\xce\xa5\xcc\x88\xcd\x82"},
    {0x1ff2, "\xe1\xbf\xba\xce\x99"},
    {0x1ff3, "\xce\xa9\xce\x99"},
    {0x1ff4, "\xce\x8f\xce\x99"},
    {0x1ff6, "\xce\xa9\xcd\x82"},
    {0x1ff7, "\xce\xa9\xcd\x82\xce\x99"},
    {0x1ffc, "\xce\xa9\xce\x99"},
    {0xfb00, "\x46\x46"},
    {0xfb01, "\x46\x49"},
    {0xfb02, "\x46\x4c"},
    {0xfb03, "\x46\x46\x49"},
    {0xfb04, "\x46\x46\x4c"},
    {0xfb05, "\x53\x54"},
    {0xfb06, "\x53\x54"},
    {0xfb13, "\xd5\x84\xd5\x86"},
    {0xfb14, "\xd5\x84\xd4\xb5"},
    {0xfb15, "\xd5\x84\xd4\xbb"},
    {0xfb16, "\xd5\x8e\xd5\x86"},
    {0xfb17, "\xd5\x84\xd4\xbd"},
};

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

CodePoint DecodeAt(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const uint32_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || pos + length > text.size()) return {first, 1, false};
  uint32_t value = first & (0x7fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[pos + i])) return {first, 1, false};
    value = (value << 6) | (byte(i) & 0x3fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (value < kSmallest[length] || surrogate || value > 0x10ffff) return {first, 1, false};
  return {value, length, true};
}

size_t PreviousAt(std::string_view text, size_t end) {
  for (size_t back = 2; back <= 4 && back <= end; ++back) {
    if (!IsContinuation(text[end - back + 1])) break;
    if (IsContinuation(text[end - back])) continue;
    if (DecodeAt(text.substr(0, end), end - back).bytes == back) return end - back;
    break;
  }
  return end - 1;
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) pos += DecodeAt(text, pos).bytes;
  return count;
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += DecodeAt(text, pos).bytes;
  return pos;
}

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out->push_back(static_cast<char>(0xf0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3f)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

bool IsSpace(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t LeadingSpace(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const CodePoint c = DecodeAt(text, pos);
    if (!c.valid || !IsSpace(c.value)) break;
    pos += c.bytes;
  }
  return pos;
}

size_t TrailingSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t start = PreviousAt(text, end);
    const CodePoint c = DecodeAt(text, start);
    if (!c.valid || !IsSpace(c.value)) break;
    end = start;
  }
  return text.size() - end;
}

size_t LineBreakAt(std::string_view text, size_t pos) {
  const CodePoint c = DecodeAt(text, pos);
  if (!c.valid) return 0;
  if (c.value == '\r') return pos + 1 < text.size() && text[pos + 1] == '\n' ? 2 : 1;
  const bool is_break = c.value == '\n' || c.value == 0x0b || c.value == 0x0c ||
                        (c.value >= 0x1c && c.value <= 0x1e) || c.value == 0x85 ||
                        c.value == 0x2028 || c.value == 0x2029;
  return is_break ? c.bytes : 0;
}

bool IsLower(uint32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LL ||
         utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool IsUpper(uint32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU ||
         utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool IsAlpha(uint32_t c) {
  if (c < 0x80) return IsLower(c) || IsUpper(c);
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

void AppendUpper(uint32_t c, std::string* out) {
  const SpecialUpper* end = std::end(kSpecialUpper);
  const SpecialUpper* special =
      std::lower_bound(std::begin(kSpecialUpper), end, c,
                       [](const SpecialUpper& row, uint32_t v) { return row.code_point < v; });
  if (special != end && special->code_point == c) {
    out->append(special->upper);
    return;
  }
  AppendUtf8(static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
}

void AppendLower(uint32_t c, std::string* out) {
  if (c == 0x130) {  // The only code point whose lower case is two: i and a combining dot.
    out->append("i\xcc\x87");
    return;
  }
  AppendUtf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

}  // namespace terrace::jinja
