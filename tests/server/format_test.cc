// Answers that must look like something: response_format and its kin, tools, reasoning. Hard cases
// A23, A24, A16 and A25 with tools.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "test_server.h"

namespace terrace::server {
namespace {

using std::string;

constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object",)"
    R"("properties":{"city":{"enum":["Oslo","Rome"]},"days":{"type":"integer"}},)"
    R"("required":["city"]}}},{"type":"function","function":{"name":"time"}}])";

string Fields(std::initializer_list<std::string_view> parts) {
  string out;
  for (std::string_view part : parts) out += (out.empty() ? "" : ",") + string(part);
  return out;
}

string Content(const HttpReply& reply) {
  return TextAt(Json(reply.body), "choices/0/message/content");
}

// What the deltas of a stream's first choice add up to.
struct Streamed {
  string content, reasoning, reason;
  std::vector<std::pair<string, string>> calls;  // names and arguments
  std::vector<string> ids;
};
Streamed Join(const HttpReply& reply) {
  Streamed out;
  for (const string& event : reply.Events()) {
    if (event == "[DONE]") continue;
    const auto value = Json(event);
    out.content += TextAt(value, "choices/0/delta/content");
    out.reasoning += TextAt(value, "choices/0/delta/reasoning_content");
    out.reason += TextAt(value, "choices/0/finish_reason");
    const auto call = At(value, "choices/0/delta/tool_calls/0");
    if (call.is_null()) continue;
    const auto index = static_cast<size_t>(At(call, "index").to_number<int64_t>());
    if (index >= out.calls.size()) {
      EXPECT_EQ(index, out.calls.size());
      out.calls.emplace_back();
      out.ids.push_back(TextAt(call, "id"));
      EXPECT_EQ(TextAt(call, "type"), "function");
    }
    out.calls.at(index).first += TextAt(call, "function/name");
    out.calls.at(index).second += TextAt(call, "function/arguments");
  }
  return out;
}

TEST(ResponseFormat, JsonObjectIsJsonWhateverTheModelWants) {
  TestServer server;
  for (std::string_view says : {"Hello!", "{\"a\": [1, 2", "[1]", "{\"a\":1} and more"}) {
    server.Say(says);
    const HttpReply reply = server.Ask(R"("response_format":{"type":"json_object"})");
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(Json(Content(reply)).is_object()) << Content(reply);
    EXPECT_EQ(TextAt(Json(reply.body), "choices/0/finish_reason"), "stop");
  }
}

TEST(ResponseFormat, JsonSchemaHoldsWithSeveralChoicesAndStreams) {
  TestServer server;
  server.Say(R"(Sure: {"name": "x", "size": 77})");
  const string format =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"s","strict":true,"schema":)"
      R"({"type":"object","properties":{"name":{"enum":["ab","cd"]},"size":{"type":"integer",)"
      R"("minimum":5,"maximum":9}},"required":["name","size"],"additionalProperties":false}}})";
  const HttpReply reply = server.Ask(Fields({format, R"("n":3)"}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  for (const char* path :
       {"choices/0/message/content", "choices/1/message/content", "choices/2/message/content"}) {
    const auto value = Json(TextAt(Json(reply.body), path));
    EXPECT_TRUE(TextAt(value, "name") == "ab" || TextAt(value, "name") == "cd");
    EXPECT_TRUE(At(value, "size").to_number<int64_t>() >= 5);
  }
  const HttpReply stream = server.Ask(Fields({format, R"("stream":true,"logprobs":true)"}));
  EXPECT_EQ(StreamText(stream), Content(reply));
}

TEST(ResponseFormat, OtherFormsOfTheSame) {
  TestServer server;
  server.Say("yes");
  const std::vector<std::pair<string, string>> cases = {
      {R"("guided_choice":["no","yes"])", "yes"},
      {R"("guided_regex":"[0-9]{3}\"")", "000\""},
      {R"("regex":"ye|yes")", "yes"},
      {R"("grammar":"root ::= \"y\" \"e\"+")", "ye"},
      {R"("guided_grammar":"root ::= \"no\"")", "no"},
      {R"("guided_json":{"const":"a"})", "\"a\""},
      {R"("guided_json":"{\"const\":1}")", "1"},
      {R"("structured_outputs":{"choice":["yes"]})", "yes"},
      {R"("structured_outputs":{"json":{"const":null}})", "null"},
      {R"("json_schema":{"const":true})", "true"},
  };
  for (const auto& [field, wanted] : cases) {
    SCOPED_TRACE(field);
    const HttpReply reply = server.Ask(Fields({field, R"("max_tokens":5)"}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(server.scheduler().submitted().back().constrained);
    EXPECT_EQ(Content(reply), wanted);
    const HttpReply plain =
        server.Complete(fmt::format(R"({{"model":"tiny","prompt":"x","max_tokens":5,{}}})", field));
    EXPECT_EQ(TextAt(Json(plain.body), "choices/0/text"), wanted) << plain.body;
  }
  EXPECT_EQ(server.Ask(R"("guided_regex":"a","guided_choice":["b"])").status, 400);
  EXPECT_EQ(server.Ask(R"("structured_outputs":{})").status, 400);
  EXPECT_EQ(server.Ask(R"("guided_choice":[])").status, 400);
  server.Ask();
  EXPECT_FALSE(server.scheduler().submitted().back().constrained);
}

TEST(ResponseFormat, A23WhatCannotBeCompiledIsA400BeforeGeneration) {
  TestServer server;
  const std::vector<std::pair<string, string>> cases = {
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)"
       R"({"properties":{"a":{"pattern":"(["}}}}})",
       "#/properties/a/pattern"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"not":{}}}})", "#/not"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"$ref":"#/x"}}})",
       "#/$ref"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"$ref":"#"}}})",
       "itself"},
      {R"("guided_regex":"(")", "pattern"},
      {R"("grammar":"root ::= root \"a\" | \"b\"")", "begins with itself"},
  };
  for (const auto& [field, word] : cases) {
    SCOPED_TRACE(field);
    const HttpReply reply = server.Ask(Fields({field, R"("stream":true)"}));
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_NE(TextAt(Json(reply.body), "error/message").find(word), string::npos) << reply.body;
    EXPECT_NE(TextAt(Json(reply.body), "error/param"), "");
  }
  EXPECT_TRUE(server.scheduler().submitted().empty());
}

TEST(ResponseFormat, A24DeepOnesAreRefusedByALimit) {
  TestServer server;
  string schema = "1";
  for (int i = 0; i < 20'000; ++i) schema = R"({"items":)" + schema + "}";
  string chain = "root ::= r0\\n";
  for (int i = 0; i < 5000; ++i) chain += fmt::format("r{} ::= r{}\\n", i, i + 1);
  chain += R"(r5000 ::= \"a\")";
  for (const string& field :
       {R"("guided_json":)" + schema, R"("grammar":"root ::= )" + string(60'000, '(') + R"(")",
        R"("grammar":")" + chain + R"(")", R"("metadata":)" + string(100'000, '[')}) {
    const HttpReply reply = server.Ask(field);
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(TextAt(Json(reply.body), "error/message").find("deep"), string::npos)
        << reply.body.substr(0, 300);
  }
  EXPECT_EQ(server.Ask().status, 200);
}

TEST(Tools, RequiredAndNamedCannotFail) {
  TestServer server;
  for (std::string_view says : {"I will not.", "<call>weather {\"city\": \"Paris\"}</call>", ""}) {
    server.Say(says);
    const HttpReply reply = server.Ask(Fields({kTools, R"("tool_choice":"required")"}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const auto value = Json(reply.body);
    EXPECT_EQ(TextAt(value, "choices/0/finish_reason"), "tool_calls") << reply.body;
    EXPECT_TRUE(At(value, "choices/0/message/content").is_null());
    const string name = TextAt(value, "choices/0/message/tool_calls/0/function/name");
    const auto arguments = Json(TextAt(value, "choices/0/message/tool_calls/0/function/arguments"));
    EXPECT_TRUE(name == "weather" || name == "time");
    if (name == "weather") {
      EXPECT_TRUE(TextAt(arguments, "city") == "Oslo" || TextAt(arguments, "city") == "Rome");
    }
    const string id = TextAt(value, "choices/0/message/tool_calls/0/id");
    EXPECT_EQ(id.size(), 9u);

    const HttpReply named = server.Ask(Fields(
        {kTools, R"("tool_choice":{"type":"function","function":{"name":"time"}},"stream":true)"}));
    const Streamed streamed = Join(named);
    ASSERT_EQ(streamed.calls.size(), 1u) << named.body;
    EXPECT_EQ(streamed.calls[0].first, "time");
    EXPECT_TRUE(Json(streamed.calls[0].second).is_object());
    EXPECT_EQ(streamed.reason, "tool_calls");
    EXPECT_EQ(streamed.content, "");
  }
}

TEST(Tools, AutoLeavesTheChoiceToTheModel) {
  TestServer server;
  server.Say("It is sunny <b>now</b>.");
  HttpReply reply = server.Ask(kTools);
  EXPECT_EQ(Content(reply), "It is sunny <b>now</b>.") << reply.body;
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/finish_reason"), "stop");

  server.Say("Let me see. <call>weather {\"city\": \"Rome\", \"days\": 3}</call>");
  reply = server.Ask(kTools);
  auto value = Json(reply.body);
  EXPECT_EQ(Content(reply), "Let me see.");
  EXPECT_EQ(TextAt(value, "choices/0/message/tool_calls/0/function/arguments"),
            R"({"city": "Rome", "days": 3})");
  EXPECT_EQ(TextAt(value, "choices/0/finish_reason"), "tool_calls");

  const Streamed streamed = Join(server.Ask(Fields({kTools, R"("stream":true)"})));
  EXPECT_EQ(streamed.content, "Let me see.");
  ASSERT_EQ(streamed.calls.size(), 1u);
  EXPECT_EQ(streamed.calls[0].first, "weather");
  EXPECT_EQ(streamed.calls[0].second, R"({"city": "Rome", "days": 3})");
  EXPECT_EQ(streamed.ids[0].size(), 9u);
}

TEST(Tools, SeveralCallsUnlessForbidden) {
  TestServer server;
  server.Say("<call>time {}</call><call>weather {\"city\": \"Oslo\"}</call>");
  Streamed streamed = Join(server.Ask(Fields({kTools, R"("stream":true)"})));
  ASSERT_EQ(streamed.calls.size(), 2u);
  EXPECT_EQ(streamed.calls[0].first, "time");
  EXPECT_EQ(streamed.calls[1].second, R"({"city": "Oslo"})");
  EXPECT_NE(streamed.ids[0], streamed.ids[1]);
  streamed = Join(server.Ask(Fields({kTools, R"("stream":true,"parallel_tool_calls":false)"})));
  EXPECT_EQ(streamed.calls.size(), 1u);
}

TEST(Tools, ChoiceNoneAndUnknownNames) {
  TestServer server;
  server.Say("x");
  EXPECT_EQ(Content(server.Ask(Fields({kTools, R"("tool_choice":"none")"}))), "x");
  EXPECT_FALSE(server.scheduler().submitted().back().constrained);
  const HttpReply reply = server.Ask(
      Fields({kTools, R"("tool_choice":{"type":"function","function":{"name":"nope"}})"}));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(TextAt(Json(reply.body), "error/param"), "tool_choice");
  const HttpReply strict =
      server.Ask(R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":)"
                 R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}}}}])");
  EXPECT_EQ(strict.status, 400);
  EXPECT_EQ(TextAt(Json(strict.body), "error/param"), "tools[0].function.parameters");
}

// A template that knows no tools: they are explained in the prompt, and calls are marked
// generically.
TEST(Tools, WorkWithATemplateThatKnowsNone) {
  TestServer server;
  server.models().Add(MakeTestModel(
      {.name = "plain",
       .chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                        "<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
       .max_context = 4096}));
  server.Say("nothing of the kind");
  const HttpReply reply = server.Chat(fmt::format(
      R"({{"model":"plain","messages":[{{"role":"user","content":"x"}},{{"role":"assistant",)"
      R"("content":null,"tool_calls":[{{"id":"1","type":"function","function":{{"name":"time",)"
      R"("arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"1","content":"noon"}}],{},)"
      R"("tool_choice":"required"}})",
      kTools));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const string prompt = Spell(server.scheduler().submitted().back().prompt);
  EXPECT_NE(prompt.find("<|im_start|>system\nYou can call"), string::npos) << prompt;
  EXPECT_NE(prompt.find("\"weather\""), string::npos);
  EXPECT_NE(prompt.find("<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>"),
            string::npos);
  EXPECT_NE(prompt.find("<tool_response>\nnoon\n</tool_response>"), string::npos);
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/finish_reason"), "tool_calls") << reply.body;
}

TEST(Reasoning, IsSplitFromTheAnswerUnlessSwitchedOff) {
  TestServer server;
  const string chat_template =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>"
      "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
      "<|im_start|>assistant\n";
  server.models().Add(MakeTestModel({.name = "thinks", .chat_template = chat_template}));
  server.models().Add(
      MakeTestModel({.name = "opens", .chat_template = chat_template + "<think>\n"}));
  auto ask = [&](std::string_view model, std::string_view fields) {
    return server.Chat(
        fmt::format(R"({{"model":"{}","messages":[{{"role":"user","content":"x"}}]{}{}}})", model,
                    fields.empty() ? "" : ",", fields));
  };
  server.Say("<think>why not</think>\n\nYes.");
  HttpReply reply = ask("thinks", "");
  EXPECT_EQ(Content(reply), "Yes.") << reply.body;
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/message/reasoning_content"), "why not");
  const Streamed streamed = Join(ask("thinks", R"("stream":true)"));
  EXPECT_EQ(streamed.content, "Yes.");
  EXPECT_EQ(streamed.reasoning, "why not");
  EXPECT_EQ(Content(ask("thinks", R"("separate_reasoning":false)")),
            "<think>why not</think>\n\nYes.");
  reply = ask("thinks", R"("include_reasoning":false)");
  EXPECT_EQ(Content(reply), "Yes.");
  EXPECT_EQ(reply.body.find("why not"), string::npos);
  server.Say("because</think>No.");
  reply = ask("opens", "");
  EXPECT_EQ(Content(reply), "No.") << reply.body;
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/message/reasoning_content"), "because");
  // What must have a form comes behind the reasoning.
  server.Say("hmm</think>maybe");
  reply = ask("opens", R"("response_format":{"type":"json_object"})");
  EXPECT_TRUE(Json(Content(reply)).is_object()) << reply.body;
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/message/reasoning_content"), "hmm");
}

TEST(Completions, BestOfGivesTheLikeliest) {
  TestServer server;
  const HttpReply reply =
      server.Complete(R"({"model":"tiny","prompt":["a","b"],"n":1,"best_of":3})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(At(Json(reply.body), "choices").as_array().size(), 2u);
  EXPECT_EQ(server.scheduler().submitted().size(), 6u);
}

TEST(Completions, SuffixIsFilledInWhereTheModelCan) {
  TestServer server;
  server.models().Add(MakeTestModel({.name = "fills", .fill_tokens = true}));
  server.Say("mid");
  const HttpReply reply =
      server.Complete(R"({"model":"fills","prompt":"ab","suffix":"yz","echo":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(server.scheduler().submitted().back().prompt,
            (std::vector<int32_t>{260, 'a', 'b', 261, 'y', 'z', 262}));
  EXPECT_EQ(TextAt(Json(reply.body), "choices/0/text"), "abmidyz");
  const HttpReply refused = server.Complete(R"({"model":"tiny","prompt":"a","suffix":"b"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(TextAt(Json(refused.body), "error/param"), "suffix");
}

}  // namespace
}  // namespace terrace::server
