// Reads arbitrary bytes as tokenizer.json; what is accepted must encode and decode anything.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto config = TokenizerConfigFromJson(text, "");
  if (!config.ok()) return 0;
  auto tokenizer = Tokenizer::Create(*std::move(config));
  if (!tokenizer.ok()) return 0;
  for (std::string_view input :
       {std::string_view("Hello, w\xC3\xB6rld  12345\n\xFF\xE6\x9D\xB1 a\xCC\x81 <s>[SEP]"),
        text.substr(0, 512)}) {
    auto ids = (*tokenizer)->Encode(input, {.add_special = true, .parse_special = true});
    if (!ids.ok()) continue;
    for (int32_t id : *ids) {
      if (id < 0 || id >= (*tokenizer)->vocab_size()) std::abort();
      (*tokenizer)->TokenBytes(id, true);
    }
  }
  return 0;
}
