// Any bytes as a template, rendered over a fixed context within small limits. The first byte
// chooses the whitespace options and which context; the rest is the template.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <boost/json/parse.hpp>

#include "text/chat_template.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace {

constexpr std::string_view kContext = R"json({
  "messages": [
    {"role": "system", "content": "Be <brief> & \"kind\"."},
    {"role": "user", "content": "  Caf\u00e9 \ud83d\ude42 one,two , three\nline two\n  "},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "abc123def", "type": "function",
       "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, true, null, "x"]}}}]},
    {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "abc123def"}
  ],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}}}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "x": "%s {} {0} %(a)s", "n": -7, "z": 0
})json";

// Spans cover the text in order, without gaps, and alternate.
void CheckSpans(const terrace::jinja::Rendered& rendered) {
  size_t end = 0;
  bool first = true, trusted = false;
  for (const terrace::jinja::Span& span : rendered.spans) {
    if (span.begin != end || span.end <= span.begin) std::abort();
    if (!first && span.trusted == trusted) std::abort();
    end = span.end;
    trusted = span.trusted;
    first = false;
  }
  if (end != rendered.text.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace jinja = terrace::jinja;
  if (size == 0) return 0;
  const std::string_view source(reinterpret_cast<const char*>(data) + 1, size - 1);
  jinja::TemplateOptions parsing;
  parsing.trim_blocks = (data[0] & 1) != 0;
  parsing.lstrip_blocks = (data[0] & 2) != 0;
  parsing.generation_tag = (data[0] & 4) != 0;
  jinja::Limits limits;
  limits.max_steps = 20'000;
  limits.max_output_bytes = 1 << 16;
  limits.max_string_bytes = 1 << 16;
  limits.max_total_bytes = 1 << 22;
  if ((data[0] & 0x18) == 0x18) {  // Now and then as a chat template, with its probes.
    terrace::ChatTemplateOptions options;
    options.parsing = parsing;
    options.limits = limits;
    const auto chat = terrace::ChatTemplate::Create(source, options);
    return chat.ok() || !chat.status().message().empty() ? 0 : 1;
  }
  const auto parsed = jinja::Template::Parse(source, parsing);
  if (!parsed.ok()) return 0;
  const auto context = jinja::FromJson(
      boost::json::parse(boost::json::string_view(kContext.data(), kContext.size())));
  if (!context.ok()) std::abort();
  const auto rendered =
      (*parsed)->Render(*context->dict(), {limits, [] { return int64_t{1768478400}; }});
  if (rendered.ok()) CheckSpans(*rendered);
  return 0;
}
