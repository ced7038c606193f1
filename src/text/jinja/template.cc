#include "text/jinja/template.h"

#include <new>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace terrace::jinja {
namespace {

absl::Status ToStatus(const Error& error, int line) {
  if (error.verbatim) return absl::Status(error.code, error.message);
  const int at = error.line > 0 ? error.line : line;
  return absl::Status(error.code, fmt::format("template line {}: {}", at, error.message));
}

}  // namespace

Template::Template(std::unique_ptr<const Ast> ast) : ast_(std::move(ast)) {}
Template::~Template() = default;

absl::StatusOr<std::unique_ptr<const Template>> Template::Parse(std::string_view source,
                                                                const TemplateOptions& options) {
  if (source.size() > options.max_source_bytes) {
    return absl::ResourceExhaustedError(fmt::format("the template has {} bytes, more than {}",
                                                    source.size(), options.max_source_bytes));
  }
  ParserOptions parser;
  parser.lexer = {options.trim_blocks, options.lstrip_blocks};
  parser.generation_tag = options.generation_tag;
  try {
    auto ast = std::make_unique<const Ast>(jinja::Parse(source, parser));
    return std::unique_ptr<const Template>(new Template(std::move(ast)));
  } catch (const Error& error) {
    return ToStatus(error, 1);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while parsing a template");
  }
}

absl::StatusOr<Rendered> Template::Render(const Dict& context, const RenderOptions& options) const {
  int line = 0;
  try {
    Interpreter interpreter(*ast_, context, options.limits, options.now);
    try {
      auto [text, runs] = interpreter.Execute();
      Rendered rendered;
      rendered.text = std::move(text);
      size_t begin = 0;
      for (const Run& run : runs) {
        rendered.spans.push_back({begin, run.end, run.trusted});
        begin = run.end;
      }
      return rendered;
    } catch (const Error&) {
      line = interpreter.line;
      throw;
    }
  } catch (const Error& error) {
    return ToStatus(error, line);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory while rendering a template");
  }
}

}  // namespace terrace::jinja
