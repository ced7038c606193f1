// Where each byte of a rendered text came from. «Guillemets» enclose what came from the input.
#include <string>

#include <gtest/gtest.h>

#include "jinja_test_util.h"
#include "text/jinja/str.h"

namespace terrace::jinja {
namespace {

constexpr char kContext[] = R"({"u": "aXb", "ws": "  pad ", "l": ["p", "q"], "d": {"k": "v"},
                               "n": 5, "nums": [1, 2], "line": "one\ntwo"})";

TEST(JinjaProvenance, FollowsTextThroughTheLanguage) {
  const struct {
    const char* source;
    const char* marked;
  } cases[] = {
      {"lit {{ u }} lit", "lit «aXb» lit"},
      {"{{ '<' ~ u ~ '>' }}", "<«aXb»>"},
      {"{{ '<' + u + '>' }}", "<«aXb»>"},
      {"{{ 'a' + 'b' }}{{ n }}{{ true }}", "ab5True"},
      {"{{ u[1:] }}{{ u[0] }}{{ u[::-1] }}{{ u[-1] }}", "«XbabXab»"},
      {"{{ ('<' ~ u ~ '>')[::-1] }}", ">«bXa»<"},
      {"{{ ('<' ~ u ~ '>')[1:] }}", "«aXb»>"},
      {"{{ ('-' ~ ws ~ '-') | trim('-') }}", "«  pad »"},
      {"{{ ws | trim }}|{{ ws.lstrip() }}|{{ ws.rstrip() }}", "«pad»|«pad »|«  pad»"},
      {"{{ u | upper }}{{ u.lower() }}{{ u | title }}{{ u | capitalize }}", "«AXBaxbAxbAxb»"},
      {"{{ ('t' ~ u) | upper }}", "T«AXB»"},
      {"{{ u | replace('X', '-') }}", "«a»-«b»"},
      {"{{ u.replace('X', u) }}", "«aaXbb»"},
      {"{{ 'tXt' | replace('X', u) }}", "t«aXb»t"},
      {"{{ 'q-r'.replace('-', '') }}", "qr"},
      {"{{ u.split('X') | join('+') }}", "«a»+«b»"},
      {"{{ u.split('X')[0] }}{{ u.partition('X')[1] }}", "«a»X"},
      {"{{ l | join(', ') }}", "«p», «q»"},
      {"{{ ', '.join(l) }}", "«p», «q»"},
      {"{{ l | map('upper') | join }}", "«PQ»"},
      {"{{ d | tojson }}|{{ u | tojson }}", "«{\"k\": \"v\"}»|«\"aXb\"»"},
      {"{{ nums | tojson }}|{{ {'k': 'v'} | tojson }}", "[1, 2]|{\"k\": \"v\"}"},
      {"{{ {'k': u} | tojson }}", "«{\"k\": \"aXb\"}»"},
      {"{{ ('{\"a\": \"' ~ u ~ '\"}') | from_json }}", "«{'a': 'aXb'}»"},
      {"{{ l }}|{{ l | string }}|{{ ['x'] }}", "«['p', 'q']»|«['p', 'q']»|['x']"},
      {"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "«k»=«v»"},
      {"{% for c in u %}[{{ c }}]{% endfor %}", "[«a»][«X»][«b»]"},
      {"{{ '%s:%5s' % (u, u) }}", "«aXb»:  «aXb»"},
      {"{{ u % () }}", "«aXb»"},
      {"{{ '<{}>{:>5}'.format(u, u) }}", "<«aXb»>  «aXb»"},
      {"{{ 'x' * 2 ~ u * 2 }}", "xx«aXbaXb»"},
      {"{{ line | indent(2) }}", "«one»\n  «two»"},
      {"{{ u | center(7) }}", "  «aXb»  "},
      {"{{ ('<' ~ u) | escape }}", "&lt;«aXb»"},
      {"{{ u | default('x') }}{{ nope | default(u) }}{{ nope | default('t') }}", "«aXbaXb»t"},
      {"{{ u or 'x' }}{{ '' or u }}", "«aXbaXb»"},
      {"{% set x %}[{{ u }}]{% endset %}{{ x }}", "[«aXb»]"},
      {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(u) }}{{ m('t') }}", "<«aXb»><t>"},
      {"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ u }}!{% endcall %}",
       "<«aXb»!>"},
      {"{% set ns = namespace(s='') %}{% for x in l %}{% set ns.s = ns.s ~ x ~ ';' %}{% endfor %}"
       "{{ ns.s }}",
       "«p»;«q»;"},
      {"{% filter upper %}t{{ u }}{% endfilter %}", "T«AXB»"},
      {"{{ dict(**d) }}{% macro k() %}{{ kwargs }}{% endmacro %}{{ k(**d) }}",
       "«{'k': 'v'}{'k': 'v'}»"},
      {"{% for k in dict(**{u: 1}) %}{{ k }}{% endfor %}", "«aXb»"},
      {"{{ '%c%c' % (60, 124) }}", "«<|»"},
      {"{{ u | truncate(2, true, '', 0) }}{{ u | urlencode }}", "«aXaXb»"},
      {"{{ strftime_now(u) if false }}{{ d.get('k') }}{{ d['k'] }}{{ d.k }}", "«vvv»"},
  };
  for (const auto& c : cases) EXPECT_EQ(Marked(c.source, kContext), c.marked) << c.source;
}

TEST(JinjaProvenance, TrustedContextStaysTrusted) {
  Dict context;
  context.Set(Value::Trusted("bos"), Value::Trusted("<s>"));
  context.Set(Value::Trusted("user"), Value::Untrusted("<s>"));
  const auto parsed = Template::Parse("{{ bos }}{{ user }}{{ bos ~ user }}");
  ASSERT_TRUE(parsed.ok());
  const auto rendered = (*parsed)->Render(context);
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered->text, "<s><s><s><s>");
  const std::vector<Span> wanted = {{0, 3, true}, {3, 6, false}, {6, 9, true}, {9, 12, false}};
  EXPECT_EQ(rendered->spans, wanted);
}

TEST(JinjaProvenance, EmptyTextHasNoSpans) {
  const auto rendered = TryRender("{{ '' }}{{ u }}", R"({"u": ""})");
  ASSERT_TRUE(rendered.ok());
  EXPECT_TRUE(rendered->text.empty());
  EXPECT_TRUE(rendered->spans.empty());
}

TEST(JinjaStr, SubstringsKeepTheirRuns) {
  StrBuilder builder;
  builder.Append("ab", true);
  builder.Append("cd", false);
  builder.Append("ef", true);
  const Str text = builder.Build();
  EXPECT_TRUE(text.any_untrusted());
  EXPECT_FALSE(text.Sub(0, 2).any_untrusted());
  EXPECT_TRUE(text.Sub(1, 2).any_untrusted());
  EXPECT_FALSE(text.Sub(4).any_untrusted());
  EXPECT_EQ(text.Sub(1, 4).view(), "bcde");
  EXPECT_EQ(text.Sub(9).view(), "");
  EXPECT_EQ(text.Sub(3, std::string::npos).view(), "def");
}

}  // namespace
}  // namespace terrace::jinja
