#include "text/detokenizer.h"

#include "base/text.h"
#include "text/utf8.h"

namespace terrace {

std::string Detokenizer::Append(int32_t id) {
  std::string bytes = tokenizer_.TokenBytes(id, options_.render_special);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (options_.strip_space_prefix && tokenizer_.add_space_prefix() && bytes[0] == ' ' &&
        !tokenizer_.IsControl(id)) {
      bytes.erase(0, 1);
    }
  }
  held_ += bytes;
  std::string ready = std::move(held_);
  const size_t tail = Utf8IncompleteTail(ready);
  held_ = ready.substr(ready.size() - tail);
  ready.resize(ready.size() - tail);
  // A held part begins with a lead byte, which ends any ill-formed part before it, so replacing
  // piece by piece gives what replacing in the whole would.
  return ToValidUtf8(ready);
}

std::string Detokenizer::Finish() {
  std::string rest = ToValidUtf8(held_);
  held_.clear();
  at_start_ = true;
  return rest;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   DetokenizerOptions options) {
  Detokenizer detokenizer(&tokenizer, options);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Append(id);
  text += detokenizer.Finish();
  return text;
}

}  // namespace terrace
