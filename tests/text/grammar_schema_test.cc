// JSON schemas as grammars: what they accept, what is refused and how that is said. Hard case A23.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "grammar_test_util.h"

namespace terrace::grammar {
namespace {

struct Case {
  std::string schema;
  std::vector<std::string> yes, no;
};

void Check(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    SCOPED_TRACE(each.schema);
    const auto compiled = Compile(FromSchema(each.schema));
    ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
    for (const std::string& text : each.yes) EXPECT_TRUE(Matches(**compiled, text)) << text;
    for (const std::string& text : each.no) EXPECT_FALSE(Matches(**compiled, text)) << text;
  }
}

TEST(JsonSchema, Types) {
  Check({
      {R"({"type":"null"})", {"null"}, {"true", "nul", ""}},
      {R"({"type":["boolean","null"]})", {"true", "false", "null"}, {"1"}},
      {R"({"type":"integer"})",
       {"0", "-7", "1234567890123456"},
       {"01", "1.0", "-", "12345678901234567"}},
      {R"({"type":"number"})", {"0", "-1.5", "1e9", "2.5E-3"}, {".5", "1.", "1e", "1e999"}},
      {R"({"type":"string"})",
       {R"("")", R"("a\"\\\né\u00e9\ud83d\ude00")"},
       {"\"\n\"", R"("\ud800")", R"("\x")", "\"", "\"\x01\""}},
      {R"({"const":"a\"b"})", {R"("a\"b")"}, {R"("ab")"}},
      {R"({"enum":[1,"x",null,{"a":[1,2.5]}]})",
       {"1", "\"x\"", "null", R"({"a": [1, 2.5]})"},
       {"2", "x"}},
      {R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"}},
      {R"(true)", {"1", "[1, [], {\"a\": {}}]", "\"x\""}, {"", "[1,]", "{a:1}"}},
      {R"({})", {"1", "{}"}, {"tru"}},
  });
}

TEST(JsonSchema, Strings) {
  Check({
      {R"({"minLength":2,"maxLength":3})", {R"("ab")", R"("\n\u00e9é")"}, {R"("a")", R"("abcd")"}},
      {R"({"type":"string","maxLength":200})",
       {fmt::format("\"{}\"", std::string(200, 'x'))},
       {fmt::format("\"{}\"", std::string(201, 'x'))}},
      {R"({"pattern":"^[a-z]+$","maxLength":3})", {R"("abc")"}, {R"("abcd")", R"("")", R"("A")"}},
      {R"({"pattern":"b"})", {R"("abc")", R"("b")"}, {R"("ac")"}},
      {R"({"format":"date"})",
       {R"("2024-02-28")", R"("2024-12-31")"},
       {R"("2024-02-30")", R"("2024-13-01")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("255.0.10.1")"}, {R"("256.0.0.1")"}},
      {R"({"type":"string","format":"no-such-format"})", {R"("anything")"}, {}},
      {R"({"type":"string","format":"uuid"})",
       {R"("01234567-89ab-cdef-0123-456789abcdef")"},
       {R"("x")"}},
  });
}

TEST(JsonSchema, Numbers) {
  Check({
      {R"({"type":"integer","minimum":-5,"maximum":120})",
       {"-5", "0", "9", "99", "120"},
       {"-6", "121", "-", "-0", "007", "1200"}},
      {R"({"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":11})",
       {"10"},
       {"9", "11", "1"}},
      {R"({"type":"integer","minimum":1000})", {"1000", "9999999"}, {"999", "0", "-1"}},
      {R"({"type":"integer","maximum":-3})", {"-3", "-40"}, {"-2", "3", "0"}},
      {R"({"type":"integer","multipleOf":7,"minimum":0})", {"0", "7", "14", "700"}, {"1", "15"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "1", "0.5", "1.000"},
       {"1.1", "-0.1", "2", "0."}},
      {R"({"type":"number","exclusiveMinimum":0.25,"maximum":10.5})",
       {"0.26", "0.2500001", "10.5", "9.99", "10.50"},
       {"0.25", "0.250", "0", "10.51", "11"}},
      {R"({"type":"number","minimum":-2.5,"exclusiveMaximum":-0.5})",
       {"-2.5", "-1", "-0.51"},
       {"-0.5", "-2.51", "0", "-3", "-0.4"}},
      {R"({"minimum":10,"exclusiveMinimum":true})", {"10.1", "11"}, {"10", "9"}},
  });
}

TEST(JsonSchema, Arrays) {
  Check({
      {R"({"type":"array","items":{"type":"integer"}})",
       {"[]", "[1]", "[1, 2,\n  3]", "[1,2 ]"},
       {"[1 2]", "[,]", "[1"}},
      {R"({"items":{"enum":[1]},"minItems":2,"maxItems":3})",
       {"[1,1]", "[1,1,1]"},
       {"[1]", "[1,1,1,1]", "[]"}},
      {R"({"items":{"enum":[1]},"maxItems":1})", {"[]", "[1]"}, {"[1,1]"}},
      {R"({"items":{"enum":[1]},"maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems":[{"const":1},{"const":"a"}],"items":false})",
       {"[]", "[1]", "[1,\"a\"]"},
       {"[\"a\"]", "[1,\"a\",1]"}},
      {R"({"prefixItems":[{"const":1},{"const":2}],"minItems":2,"maxItems":2})",
       {"[1,2]"},
       {"[1]", "[1,2,3]"}},
      {R"({"items":[{"const":1}],"additionalItems":{"const":9},"minItems":1})",
       {"[1]", "[1,9,9]"},
       {"[]", "[9]"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":60,"maxItems":70})",
       {[] {
         std::string s = "[1";
         for (int i = 0; i < 65; ++i) s += ",1";
         return s + "]";
       }()},
       {"[1,1]"}},
  });
}

TEST(JsonSchema, Objects) {
  Check({
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"null"},"c":{"type":"boolean"}},)"
       R"("required":["b"]})",
       {R"({"b":null})", R"({"a":1, "b": null, "c": true})", "{\n  \"a\": 1,\n  \"b\": null\n}"},
       {"{}", R"({"b":null,"a":1})", R"({"a":1})", R"({"b":null,})", R"({"b":null,"d":1})"}},
      {R"({"type":"object"})", {"{}", R"({"x":[1]})"}, {"[]"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"x":1})"}},
      {R"({"properties":{"ab":{"const":1}},"additionalProperties":{"const":2}})",
       {R"({"ab":1})", R"({"a":2})", R"({"abc":2})", R"({"ab":1,"x":2})", "{}"},
       {R"({"ab":2})", R"({"x":1})", R"({"\u0061b":2})"}},
      {R"({"additionalProperties":{"type":"integer"},"propertyNames":{"pattern":"^[a-z]$"}})",
       {R"({"a":1,"b":2})"},
       {R"({"ab":1})", R"({"A":1})"}},
      {R"({"type":"object","patternProperties":{"^x_":{"const":1}}})",
       {R"({"x_a":1})", "{}"},
       {R"({"y":1})"}},
      {R"({"required":["x"]})", {R"({"x":[]})"}, {"{}"}},
      {R"({"properties":{"a":false,"b":{"const":1}}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
  });
}

TEST(JsonSchema, ReferencesAndCombinations) {
  Check({
      {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},
          "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}}})",
       {R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1})", R"({"v":1,"next":{}})"}},
      {R"({"properties":{"kids":{"type":"array","items":{"$ref":"#"}}}})",
       {R"({"kids":[{"kids":[]},{}]})"},
       {R"({"kids":[1]})"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})",
       {"1", "\"a\""},
       {"\"ab\""}},
      {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null"}},
      {R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"const":1}},"required":["k","x"]},
                    {"properties":{"k":{"const":"b"}},"required":["k"]}],"type":"object"})",
       {R"({"k":"a","x":1})", R"({"k":"b"})"},
       {R"({"k":"a"})", R"({"k":"c"})"}},
      {R"({"allOf":[{"properties":{"a":{"minimum":3}},"required":["a"]},)"
       R"({"properties":{"a":{"maximum":4,"type":"integer"}}}]})",
       {R"({"a":3})", R"({"a":4})"},
       {R"({"a":5})", "{}"}},
      {R"({"properties":{"a":{"type":"integer"}},"anyOf":[{"required":["a"]},)"
       R"({"properties":{"b":{"const":1}},"required":["b"]}],"type":"object"})",
       {R"({"a":1})", R"({"a":1,"b":1})", R"({"b":1})"},
       {"{}"}},
      {R"({"$ref":"#/definitions/a%20b","definitions":{"a b":{"const":1}}})", {"1"}, {"2"}},
  });
}

// Never free text where a constraint was asked for: what cannot be compiled is refused, by path.
TEST(JsonSchema, A23WhatCannotBeCompiledIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"properties":{"a":{"type":"string","pattern":"(["}}})", "#/properties/a/pattern"},
      {R"({"properties":{"a":{"not":{"type":"string"}}}})", "#/properties/a/not"},
      {R"({"type":"array","uniqueItems":true})", "#/uniqueItems"},
      {R"({"properties":{"a":{"$ref":"#/$defs/none"}}})", "#/properties/a/$ref"},
      {R"({"$ref":"https://example.com/s.json"})", "#/$ref"},
      {R"({"$ref":"#"})", "itself"},
      {R"({"anyOf":[{"$ref":"#"}]})", "itself"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
       "itself"},
      {R"({"properties":{"a":{"$ref":"#"}},"required":["a"]})", "nothing can ever match"},
      {R"({"type":"text"})", "#/type"},
      {R"({"properties":{"a":5}})", "#/properties/a"},
      {R"({"properties":[]})", "#/properties"},
      {R"({"minLength":-1})", "#/minLength"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "nothing can ever match"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "#/oneOf"},
      {R"({"multipleOf":0.1})", "#/multipleOf"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "nothing can ever match"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "nothing can ever match"},
      {R"({"if":{},"then":{}})", "#/if"},
      {R"([])", "#"},
  };
  for (const auto& [schema, word] : cases) {
    SCOPED_TRACE(schema);
    const auto compiled = Compile(FromSchema(schema));
    ASSERT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(compiled.status()).find(word), std::string::npos)
        << Message(compiled.status());
  }
}

TEST(JsonSchema, LenientLeavesOutWhatCannotBeHeld) {
  const auto grammar =
      FromSchema(R"({"type":"array","uniqueItems":true,"items":{"const":1}})", {.lenient = true});
  EXPECT_TRUE(Matches(grammar, "[1,1]"));
  EXPECT_FALSE(FromSchema(R"({"pattern":"(["})", {.lenient = true}).ok());
}

TEST(JsonSchema, DeepAndWideOnesAreBounded) {
  std::string deep;
  for (int i = 0; i < 20'000; ++i) deep += R"({"type":"array","items":)";
  boost::json::value value = boost::json::parse(R"({"type":"null"})");
  for (int i = 0; i < 500; ++i) value = boost::json::object{{"type", "array"}, {"items", value}};
  const auto nested = Compile(JsonSchemaGrammar(value));
  ASSERT_FALSE(nested.ok());
  EXPECT_NE(Message(nested.status()).find("deeper than"), std::string::npos);
  boost::json::object properties;
  for (int i = 0; i < 1000; ++i) {
    properties[fmt::format("property_{}", i)] = boost::json::object{{"type", "integer"}};
  }
  const auto wide = Compile(JsonSchemaGrammar(boost::json::object{{"properties", properties}}));
  ASSERT_TRUE(wide.ok()) << Message(wide.status());
  EXPECT_TRUE(Matches(**wide, R"({"property_3": 1, "property_999": 2})"));
  EXPECT_FALSE(Matches(**wide, R"({"property_999": 1, "property_3": 2})"));
}

// Drawn texts parse, and hold what the schema says where that is easily seen.
TEST(JsonSchema, DrawnTextsAreJson) {
  constexpr uint64_t kSeed = 3;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const auto compiled = Compile(FromSchema(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},
          "size":{"type":"number","minimum":-1.5,"maximum":200},
          "tags":{"type":"array","items":{"enum":["x","y"]},"minItems":1,"maxItems":3},
          "when":{"type":"string","format":"date-time"}},"required":["size","tags","when"]})"));
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  int complete_texts = 0;
  for (int i = 0; i < 60; ++i) {
    bool complete = false;
    const std::string text = Draw(*compiled, &random, false, &complete);
    if (!complete) continue;
    ++complete_texts;
    boost::json::error_code ec;
    const auto value = boost::json::parse(text, ec);
    ASSERT_FALSE(ec) << text;
    const auto& object = value.as_object();
    const double size = object.at("size").to_number<double>();
    EXPECT_TRUE(size >= -1.5 && size <= 200) << text;
    EXPECT_TRUE(object.at("tags").as_array().size() <= 3);
  }
  EXPECT_GT(complete_texts, 30);
}

}  // namespace
}  // namespace terrace::grammar
