// Any bytes as a GBNF grammar and as a regular expression. What compiles is followed by the bytes
// themselves and by those that may follow.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/grammar/gbnf.h"
#include "text/grammar/machine.h"
#include "text/grammar/program.h"
#include "text/grammar/regex.h"

namespace {

using namespace terrace::grammar;

void Follow(Grammar grammar, const absl::StatusOr<ExprId>& body, std::string_view text) {
  if (!body.ok()) {
    if (body.status().code() != absl::StatusCode::kInvalidArgument) std::abort();
    return;
  }
  const int32_t root = grammar.AddRule("whole");
  grammar.SetRule(root, *body);
  grammar.set_root(root);
  const auto program = Program::Create(grammar, {.max_exprs = 20'000, .max_states = 20'000});
  if (!program.ok()) return;
  Machine machine(&*program);
  Machine::SetId set = machine.Start();
  for (size_t i = 0; i < 200 && set != Machine::kDead; ++i) {
    const auto wanted = static_cast<uint8_t>(text.empty() ? 0 : text[i % text.size()]);
    Machine::SetId next = Machine::kDead;
    for (int byte = 0; byte < 256 && next == Machine::kDead; ++byte) {
      next = machine.Next(set, static_cast<uint8_t>(wanted + byte));
    }
    // Every place leads somewhere: what cannot end is cut away.
    if (next == Machine::kDead && !machine.Accepts(set) && !machine.overflowed()) std::abort();
    set = next;
    if (machine.large()) set = machine.Compact(set);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4096) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  {
    Grammar grammar;
    const auto body = AddGbnf(text, &grammar);
    Follow(std::move(grammar), body, text);
  }
  for (const bool json : {false, true}) {
    Grammar grammar;
    const auto body = ParseRegex(text, {.whole = !json, .json_string = json}, &grammar);
    Follow(std::move(grammar), body, text);
  }
  return 0;
}
