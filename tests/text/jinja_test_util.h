// Helpers of the template tests: render a source over JSON data.
#ifndef TERRACE_TESTS_TEXT_JINJA_TEST_UTIL_H_
#define TERRACE_TESTS_TEXT_JINJA_TEST_UTIL_H_

#include <string>
#include <string_view>

#include <boost/json/parse.hpp>

#include "base/status.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace terrace::jinja {

inline absl::StatusOr<Rendered> TryRender(std::string_view source, std::string_view context = "{}",
                                          RenderOptions options = {},
                                          TemplateOptions parsing = {}) {
  ASSIGN_OR_RETURN(const auto parsed, Template::Parse(source, parsing));
  const boost::json::value json =
      boost::json::parse(boost::json::string_view(context.data(), context.size()));
  ASSIGN_OR_RETURN(const Value value, FromJson(json));
  return parsed->Render(*value.dict(), options);
}

// The text, or "ERROR code: message".
inline std::string Render(std::string_view source, std::string_view context = "{}",
                          RenderOptions options = {}) {
  const auto rendered = TryRender(source, context, std::move(options));
  if (rendered.ok()) return rendered->text;
  return "ERROR " + absl::StatusCodeToString(rendered.status().code()) + ": " +
         std::string(Message(rendered.status()));
}

// The text with what came from the context in «guillemets».
inline std::string Marked(std::string_view source, std::string_view context) {
  const auto rendered = TryRender(source, context);
  if (!rendered.ok()) return "ERROR " + std::string(Message(rendered.status()));
  std::string out;
  for (const Span& span : rendered->spans) {
    const std::string part = rendered->text.substr(span.begin, span.end - span.begin);
    out += span.trusted ? part : "«" + part + "»";
  }
  return out;
}

}  // namespace terrace::jinja

#endif  // TERRACE_TESTS_TEXT_JINJA_TEST_UTIL_H_
