// A chat template in the Jinja language, parsed once and rendered over many contexts. Rendering
// says, for each byte of the text, whether the template wrote it or the input data did.
#ifndef TERRACE_TEXT_JINJA_TEMPLATE_H_
#define TERRACE_TEXT_JINJA_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

struct Ast;

// Bytes [begin, end) of a rendered text, all from the template (trusted) or all from the input.
struct Span {
  size_t begin;
  size_t end;
  bool trusted;

  bool operator==(const Span&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<Span> spans;  // In order, without gaps, neighbours differ; empty for empty text.
};

struct TemplateOptions {
  bool trim_blocks = true;
  bool lstrip_blocks = true;
  // Accept {% generation %} blocks, which plain Jinja2 refuses.
  bool generation_tag = true;
  size_t max_source_bytes = size_t{4} << 20;
};

struct RenderOptions {
  Limits limits;
  // Seconds since the Unix epoch, for strftime_now (in UTC); without it that function fails.
  std::function<int64_t()> now;
};

// Immutable; Render may run on many threads at once.
class Template {
 public:
  // InvalidArgument ("template line N: ...") for what is not a template; ResourceExhausted for one
  // that is too large or nested too deeply.
  static absl::StatusOr<std::unique_ptr<const Template>> Parse(std::string_view source,
                                                               const TemplateOptions& options = {});
  ~Template();
  Template(const Template&) = delete;
  Template& operator=(const Template&) = delete;

  // Renders over the variables in `context`. Errors: InvalidArgument with the template's own words
  // if it calls raise_exception; FailedPrecondition ("template line N: ...") if it cannot be
  // applied to this context (an undefined value used, an operation on the wrong type);
  // ResourceExhausted beyond the limits.
  absl::StatusOr<Rendered> Render(const Dict& context, const RenderOptions& options = {}) const;

 private:
  explicit Template(std::unique_ptr<const Ast> ast);
  const std::unique_ptr<const Ast> ast_;
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_TEMPLATE_H_
