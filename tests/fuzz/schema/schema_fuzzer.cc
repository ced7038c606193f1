// Any bytes as a JSON schema, strict and lenient. What compiles must be followed without fault, and
// what is written by it must be JSON.
#include <boost/json/parse.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/grammar/json_schema.h"
#include "text/grammar/machine.h"
#include "text/grammar/program.h"

namespace {

using namespace terrace::grammar;
namespace json = boost::json;

// Follows one text: at each place the byte that `choices` picks among those that may follow. The
// text, if it is complete within `limit` bytes; else nothing.
std::string Write(const Program& program, const uint8_t* choices, size_t size, size_t limit) {
  Machine machine(&program);
  Machine::SetId set = machine.Start();
  std::string text;
  while (text.size() < limit) {
    if (machine.Accepts(set) && (machine.configs(set).empty() || text.size() > limit / 2)) {
      return text;
    }
    if (set == Machine::kDead) break;
    const uint8_t wanted = size == 0 ? 0 : choices[text.size() % size];
    Machine::SetId next = Machine::kDead;
    int byte = 0;
    for (; byte < 256 && next == Machine::kDead; ++byte) {
      next = machine.Next(set, static_cast<uint8_t>(wanted + byte));
    }
    if (next == Machine::kDead) break;
    text += static_cast<char>(wanted + byte - 1);
    set = next;
    if (machine.large()) set = machine.Compact(set);
  }
  return "";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  json::error_code ec;
  json::parse_options options;
  options.max_depth = 64;
  const json::value schema =
      json::parse({reinterpret_cast<const char*>(data), size}, ec, {}, options);
  if (ec) return 0;
  for (const bool lenient : {false, true}) {
    const auto grammar = JsonSchemaGrammar(schema, {.lenient = lenient});
    if (!grammar.ok()) {
      if (grammar.status().code() != absl::StatusCode::kInvalidArgument) std::abort();
      continue;
    }
    const auto program = Program::Create(*grammar, {.max_exprs = 20'000, .max_states = 20'000});
    if (!program.ok()) continue;
    const std::string text = Write(*program, data, size, 300);
    if (text.empty()) continue;
    json::parse(text, ec, {}, {.max_depth = 1000});
    if (ec) std::abort();
  }
  return 0;
}
