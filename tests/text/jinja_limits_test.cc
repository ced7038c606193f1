// What a hostile template may use up, how errors name their line, and that parsing and rendering
// never overflow the stack.
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "jinja_test_util.h"

namespace terrace::jinja {
namespace {

std::string Repeat(std::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += text;
  return out;
}

absl::StatusCode CodeOf(std::string_view source, RenderOptions options = {}) {
  return TryRender(source, R"({"s": "abc", "l": [1, 2, 3]})", std::move(options)).status().code();
}

TEST(JinjaLimits, DeepNestingIsRefusedWhenParsing) {
  constexpr size_t kDeep = 100'000;
  const std::string sources[] = {
      "{{ " + Repeat("(", kDeep) + "1" + Repeat(")", kDeep) + " }}",
      "{{ " + Repeat("[", kDeep) + Repeat("]", kDeep) + " }}",
      "{{ " + Repeat("{1:", kDeep) + "1" + Repeat("}", kDeep) + " }}",
      "{{ " + Repeat("not ", kDeep) + "1 }}",
      "{{ " + Repeat("- ", kDeep) + "1 }}",
      "{{ " + Repeat("1 + ", kDeep) + "1 }}",
      "{{ " + Repeat("1 if 1 else ", kDeep) + "1 }}",
      "{{ 1" + Repeat(" if 1", kDeep) + " }}",
      "{{ x" + Repeat(".a", kDeep) + " }}",
      "{{ x" + Repeat("[0]", kDeep) + " }}",
      "{{ x" + Repeat("()", kDeep) + " }}",
      "{{ x" + Repeat("|upper", kDeep) + " }}",
      "{{ x" + Repeat("[x", kDeep) + Repeat("]", kDeep) + " }}",
      "{{ 1 ** " + Repeat("2 ** ", kDeep) + "1 }}",
      Repeat("{% if 1 %}", kDeep) + Repeat("{% endif %}", kDeep),
      Repeat("{% for a in b %}", kDeep),
      Repeat("{% set x %}", kDeep),
      Repeat("{% macro m() %}", kDeep),
      Repeat("{% call x() %}", kDeep),
      "{% for " + Repeat("(", kDeep) + "a" + Repeat(")", kDeep) + " in b %}{% endfor %}",
      "{% filter upper" + Repeat("|upper", kDeep) + " %}{% endfilter %}",
  };
  for (const std::string& source : sources) {
    const auto parsed = Template::Parse(source);
    ASSERT_FALSE(parsed.ok()) << source.substr(0, 60);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kResourceExhausted)
        << source.substr(0, 60) << ": " << Message(parsed.status());
  }
}

TEST(JinjaLimits, FlatTemplatesOfAnyLengthAreAccepted) {
  EXPECT_EQ(Render("{{ '' " + Repeat("~ 'a' ", 5'000) + " }}"), Repeat("a", 5'000));
  EXPECT_EQ(Render("{{ 1 " + Repeat("and 1 ", 5'000) + " }}"), "1");
  EXPECT_EQ(Render("{% if 0 %}" + Repeat("{% elif 0 %}", 5'000) + "{% else %}z{% endif %}"), "z");
  EXPECT_EQ(Render("{{ [" + Repeat("1, ", 5'000) + "]|length }}"), "5000");
  EXPECT_EQ(Render(Repeat("{{ 1 }}", 5'000)), Repeat("1", 5'000));
}

TEST(JinjaLimits, LargeSourceIsRefused) {
  TemplateOptions small;
  small.max_source_bytes = 100;
  EXPECT_TRUE(Template::Parse(std::string(100, 'x'), small).ok());
  EXPECT_EQ(Template::Parse(std::string(101, 'x'), small).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(JinjaLimits, EndlessRecursionEnds) {
  for (const char* source : {
           "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
           "{% macro f(x) %}{{ f(f(x)) }}{% endmacro %}{{ f(1) }}",
           "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
           "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
           "{% macro f() %}{% set x %}{{ f() }}{% endset %}{% endmacro %}{{ f() }}",
           "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
           "{% macro f() %}{% for i in [1] %}{% if 1 %}{% with a = f() %}{% endwith %}{% endif %}"
           "{% endfor %}{% endmacro %}{{ f() }}",
           "{{ 'a' | map(*(['map'] * 50000)) | list }}",
           "{{ ['a'] | map('map', *(['map'] * 50000)) | list }}",
       }) {
    EXPECT_EQ(CodeOf(source), absl::StatusCode::kResourceExhausted) << source;
  }
}

TEST(JinjaLimits, DeepValuesAreRefused) {
  const std::string loop =
      "{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = WRAP %}{% endfor %}";
  for (const char* wrap : {"[ns.x]", "(ns.x,)", "{'a': ns.x}", "dict(a=ns.x)", "[ns.x] + []"}) {
    std::string source = loop;
    source.replace(source.find("WRAP"), 4, wrap);
    EXPECT_EQ(CodeOf(source), absl::StatusCode::kResourceExhausted) << wrap;
  }
  // A chain of namespaces is no deep value; taking it down must not recurse either.
  EXPECT_EQ(Render("{% set ns = namespace() %}{% for i in range(90000) %}"
                   "{% set ns.next = namespace(prev=ns.next) %}{% endfor %}ok"),
            "ok");
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.self = ns %}"
                   "{% macro m() %}{% endmacro %}{% set ns.m = m %}ok"),
            "ok");
}

TEST(JinjaLimits, HugeStringsAndListsAreRefusedBeforeTheyAreMade) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* source : {
           "{{ 'x' * 10 ** 9 }}",
           "{{ 'xy' * 9223372036854775807 }}",
           "{{ [1, 2] * 10 ** 9 }}",
           "{{ [1, 2] * 9223372036854775807 }}",
           "{{ 'x' | center(10 ** 9) }}",
           "{{ 'x'.ljust(10 ** 12) }}",
           "{{ '1'.zfill(10 ** 12) }}",
           "{{ 'a\\nb' | indent(10 ** 9) }}",
           "{{ '%999999999d' % 1 }}",
           "{{ '%*d' % (10 ** 12, 1) }}",
           "{{ '%.999999999f' % 1 }}",
           "{{ '{:>999999999}'.format(1) }}",
           "{{ '\\t'.expandtabs(10 ** 12) }}",
           "{{ [[1]] | tojson(indent=10 ** 9) }}",
           "{{ [1] | batch(10 ** 12, 0) | list }}",
           "{{ [1] | slice(10 ** 12) | list }}",
           "{{ range(10 ** 12) }}",
           "{% set ns = namespace(x='x' * 1000) %}{% for i in range(100) %}"
           "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
           "{% set ns = namespace(x='x' * 1000) %}{% for i in range(100) %}"
           "{% set ns.x = ns.x.replace('x', 'xx') %}{% endfor %}",
           "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}"
           "{% set ns.x = ns.x + ns.x %}{% endfor %}",
       }) {
    EXPECT_EQ(CodeOf(source), absl::StatusCode::kResourceExhausted) << source;
  }
  // Generous for slow machines and sanitizers; making any of these for real would take far longer.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
}

TEST(JinjaLimits, StepsAreBounded) {
  const std::string loops =
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_EQ(CodeOf(loops), absl::StatusCode::kResourceExhausted);
  RenderOptions few;
  few.limits.max_steps = 50;
  EXPECT_EQ(CodeOf("{% for i in range(100) %}{% endfor %}", few),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf("{% for i in range(5) %}{% endfor %}", few), absl::StatusCode::kOk);
  // Comparing values that share parts may cost far more than their size.
  EXPECT_EQ(CodeOf("{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
                   "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
                   "{{ ns.a == ns.b }}"),
            absl::StatusCode::kResourceExhausted);
}

TEST(JinjaLimits, OutputIsBounded) {
  RenderOptions small;
  small.limits.max_output_bytes = 10;
  EXPECT_EQ(Render("{{ 'x' * 10 }}", "{}", small), "xxxxxxxxxx");
  EXPECT_EQ(CodeOf("{{ 'x' * 11 }}", small), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf("{% for i in range(11) %}x{% endfor %}", small),
            absl::StatusCode::kResourceExhausted);
}

TEST(JinjaLimits, LongMessagesRenderInLinearWork) {
  const std::string text(1 << 20, 'x');
  const std::string context = "{\"m\": \"" + text + "\"}";
  EXPECT_EQ(Render("{{ m }}", context), text);
  EXPECT_EQ(Render("{{ m | trim }}", context), text);
  EXPECT_EQ(Render("{{ m.split('</think>')[-1].lstrip('\\n') | length }}", context), "1048576");
  EXPECT_EQ(Render("{{ [m] | tojson | length }}", context), "1048580");
  EXPECT_EQ(Render("{{ m.startswith('x') and not 'y' in m }}", context), "True");
}

TEST(JinjaErrors, NameTheLine) {
  EXPECT_EQ(Render("a\nb {{ x.y.z }}"),
            "ERROR FAILED_PRECONDITION: template line 2: 'x' is undefined");
  EXPECT_EQ(Render("{% if 1 %}\n\n{{ d.a.b }}\n{% endif %}", R"({"d": {}})"),
            "ERROR FAILED_PRECONDITION: template line 3: 'dict object' has no attribute 'a'");
  EXPECT_EQ(Render("\n{{ 1 +\n 'a' }}"),
            "ERROR FAILED_PRECONDITION: template line 2: unsupported operand type(s) for +: 'int' "
            "and 'str'");
  EXPECT_EQ(Render("ok\n\n{% endfor %}"),
            "ERROR INVALID_ARGUMENT: template line 3: unknown tag 'endfor'");
  EXPECT_EQ(Render("{{ 1 }}\n{{ 'a }}").substr(0, 43),
            "ERROR INVALID_ARGUMENT: template line 2: a ");
  EXPECT_EQ(Render("{% for x in y %}\n{{ x }}").substr(0, 41),
            "ERROR INVALID_ARGUMENT: template line 1: ");
  EXPECT_EQ(Render("{#\n\n#}{% raw %}\n{% endraw %}\n{{ no_such() }}"),
            "ERROR FAILED_PRECONDITION: template line 5: 'no_such' is undefined");
  EXPECT_EQ(Render("\r\n\r\n{{ f() }}"),
            "ERROR FAILED_PRECONDITION: template line 3: 'f' is undefined");
}

TEST(JinjaErrors, RaiseExceptionGivesTheTemplatesOwnWords) {
  EXPECT_EQ(Render("\n{{ raise_exception('Roles must alternate: ' ~ r) }}", R"({"r": "user"})"),
            "ERROR INVALID_ARGUMENT: Roles must alternate: user");
}

TEST(JinjaErrors, LoaderTagsAndUnknownTagsAreRefused) {
  for (const char* source : {"{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}",
                             "{% from 'x' import y %}", "{% do 1 %}", "{% nope %}"}) {
    EXPECT_EQ(Template::Parse(source).status().code(), absl::StatusCode::kInvalidArgument)
        << source;
  }
}

TEST(JinjaErrors, TheClockIsNeededOnlyWhereItIsUsed) {
  EXPECT_EQ(Render("{{ strftime_now('%Y') if false else 'x' }}"), "x");
  EXPECT_EQ(Render("{{ strftime_now('%Y') }}").substr(0, 25), "ERROR FAILED_PRECONDITION");
}

TEST(JinjaErrors, GenerationBlocksAreAnOption) {
  const std::string source = "{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x }}";
  EXPECT_EQ(Render(source), "a");
  TemplateOptions plain;
  plain.generation_tag = false;
  EXPECT_EQ(Template::Parse(source, plain).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(JinjaOptions, WhitespaceControlCanBeOff) {
  TemplateOptions off;
  off.trim_blocks = false;
  off.lstrip_blocks = false;
  const std::string source = "  {% if 1 %}\n x\n  {% endif %}\n";
  EXPECT_EQ(TryRender(source, "{}", {}, off)->text, "  \n x\n  ");
  EXPECT_EQ(TryRender(source)->text, " x\n");
}

TEST(JinjaOptions, ZeroBytesAndIllFormedTextPassThrough) {
  EXPECT_EQ(Render("a{{ s }}b{{ s | length }}", R"({"s": "x\u0000y"})"), std::string("ax\0yb3", 6));
  const std::string bad = "\xff{{ '\xc3' ~ 'x' }}\xe4\xb8";
  EXPECT_EQ(Render(bad), "\xff\xc3x\xe4\xb8");
}

}  // namespace
}  // namespace terrace::jinja
