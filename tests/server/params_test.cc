// Request fields and their limits. Hard cases A18 to A22, A24 and A27, and what this build refuses.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "test_server.h"

namespace terrace::server {
namespace {

using std::string;

// A 400 of the right shape that names `field`.
void ExpectRefused(const HttpReply& reply, std::string_view field) {
  EXPECT_EQ(reply.status, 400) << reply.body;
  const auto body = Json(reply.body);
  EXPECT_EQ(TextAt(body, "error/type"), "invalid_request_error");
  EXPECT_NE(TextAt(body, "error/message").find(field), string::npos) << reply.body;
  EXPECT_NE((TextAt(body, "error/param") + " ").find(field), string::npos) << reply.body;
}

SeenRequest Sent(TestServer* server, std::string_view fields) {
  const HttpReply reply = server->Ask(fields);
  EXPECT_EQ(reply.status, 200) << fields << "\n" << reply.body;
  const auto seen = server->scheduler().submitted();
  return seen.empty() ? SeenRequest{} : seen.back();
}

TEST(Nulls, MeanAbsent) {
  TestServer server;
  const SeenRequest plain = Sent(&server, "");
  const SeenRequest nulls = Sent(
      &server, R"("stop":null,"max_tokens":null,"max_completion_tokens":null,"seed":null,)"
               R"("logit_bias":null,"tools":null,"tool_choice":null,"response_format":null,)"
               R"("user":null,"stream":null,"stream_options":null,"n":null,"temperature":null,)"
               R"("top_p":null,"top_k":null,"logprobs":null,"top_logprobs":null,"functions":null)");
  EXPECT_EQ(plain.prompt, nulls.prompt);
  EXPECT_EQ(plain.max_tokens, nulls.max_tokens);
  EXPECT_FALSE(nulls.sampling.seed.has_value());
  EXPECT_EQ(nulls.sampling.temperature, 1.0f);
  Sent(&server, R"("logit_bias":{},"stop":[],"tools":[],"metadata":{"a":"b"},"unknown":[1],)"
                R"("response_format":{"type":"text"})");
}

TEST(Stops, AreAStringOrAList) {
  TestServer server;
  server.Say("abcdef");
  auto text = [&](std::string_view stop) {
    return TextAt(Json(server.Ask(fmt::format(R"("stop":{})", stop)).body),
                  "choices/0/message/content");
  };
  EXPECT_EQ(text(R"("cd")"), "ab");
  EXPECT_EQ(text(R"(["x","f","e","y"])"), "abcd");
  ExpectRefused(server.Ask(R"("stop":5)"), "stop");
  ExpectRefused(server.Ask(R"("stop":["a",5])"), "stop[1]");
  ExpectRefused(server.Ask(R"("stop":[""])"), "stop[0]");
  string many;
  for (int i = 0; i < kMaxStops + 1; ++i) many += (i > 0 ? "," : "") + fmt::format("\"s{}\"", i);
  ExpectRefused(server.Ask(fmt::format(R"("stop":[{}])", many)), "stop");
}

TEST(MaxTokens, TheNewerFieldWinsAndTheContextBounds) {
  TestServer server;
  server.scheduler().set_script(
      [](const SeenRequest&) { return Script{.tokens = Bytes("abc"), .repeat = true}; });
  auto ask = [&](std::string_view fields) {
    const auto body = Json(server.Ask(fields).body);
    EXPECT_EQ(TextAt(body, "choices/0/finish_reason"), "length");
    return At(body, "usage/completion_tokens").as_int64();
  };
  EXPECT_EQ(ask(R"("max_completion_tokens":5)"), 5);
  EXPECT_EQ(ask(R"("max_completion_tokens":5,"max_tokens":50)"), 5);
  EXPECT_EQ(ask(R"("max_tokens":7)"), 7);
  const auto room =
      static_cast<int64_t>(kTestContext - server.scheduler().submitted()[0].prompt.size());
  EXPECT_EQ(ask(R"("max_tokens":2147483647)"), room);
  EXPECT_EQ(ask(""), room);
  for (std::string_view field : {"max_tokens", "max_completion_tokens"}) {
    for (std::string_view bad : {"0", "-1", "1.5", "\"5\"", "9223372036854775808", "true"}) {
      ExpectRefused(server.Ask(fmt::format("\"{}\":{}", field, bad)), field);
    }
  }
  server.Complete(R"({"model":"tiny","prompt":"x"})");
  EXPECT_EQ(server.scheduler().submitted().back().max_tokens, 16);
}

TEST(Context, PromptsThatDoNotFitAreRefusedBeforeAnything) {
  TestServer server;
  for (std::string_view more : {"", R"(,"stream":true)"}) {
    // One start token is added.
    for (int tokens : {kTestContext - 1, kTestContext, kTestContext + 1, 5000}) {
      SCOPED_TRACE(fmt::format("{} tokens {}", tokens, more));
      const HttpReply reply =
          server.Complete(fmt::format(R"({{"model":"tiny","prompt":"{}"{}}})",
                                      string(static_cast<size_t>(tokens) - 1, 'x'), more));
      if (tokens < kTestContext) {
        EXPECT_EQ(reply.status, 200) << reply.body;
        continue;
      }
      EXPECT_EQ(reply.status, 400);
      const auto body = Json(reply.body);
      EXPECT_EQ(TextAt(body, "error/code"), "context_length_exceeded");
      EXPECT_NE(TextAt(body, "error/message").find(fmt::format("{}", kTestContext)), string::npos);
      EXPECT_NE(TextAt(body, "error/message").find(fmt::format("{}", tokens)), string::npos);
    }
  }
  const HttpReply chat = server.Chat(ChatBody("", string(600, 'x')));
  EXPECT_EQ(TextAt(Json(chat.body), "error/code"), "context_length_exceeded");
  // Room for one token exactly, whatever limit was asked for.
  EXPECT_EQ(server.scheduler().submitted()[0].max_tokens, 1);
  EXPECT_TRUE(server.scheduler().WaitIdle(5'000'000));
}

TEST(LogitBias, IsCheckedAgainstTheVocabulary) {
  TestServer server;
  for (std::string_view bad :
       {R"({"191222":1})", R"({"-1":1})", R"({"abc":1})", R"({"3.5":1})", R"({"":1})",
        R"({"5 ":1})", R"({"300":1})", R"({"99999999999":1})", R"({"5":1e9})", R"({"5":"1"})",
        R"({"5":-101})", R"({"5":null})", "[]", "3"}) {
    SCOPED_TRACE(bad);
    ExpectRefused(server.Ask(fmt::format(R"("logit_bias":{})", bad)), "logit_bias");
  }
  const auto seen = Sent(&server, R"("logit_bias":{"5":100,"299":-100,"0":0.5})");
  ASSERT_EQ(seen.sampling.logit_bias.size(), 3u);
  EXPECT_EQ(seen.sampling.logit_bias[1], (std::pair<int32_t, float>(299, -100.0f)));
  string many;
  for (int i = 0; i < 5000; ++i) many += fmt::format("{}\"{}\":1", i > 0 ? "," : "", i);
  ExpectRefused(server.Ask(fmt::format(R"("logit_bias":{{{}}})", many)), "logit_bias");
}

TEST(Numbers, MustBeFiniteAndInRange) {
  TestServer server;
  for (std::string_view field : {"temperature", "top_p", "min_p", "typical_p", "presence_penalty",
                                 "frequency_penalty", "repetition_penalty"}) {
    for (std::string_view bad : {"1e999", "-1e999", "\"0.7\"", "[]", "100", "-100"}) {
      SCOPED_TRACE(fmt::format("{} {}", field, bad));
      ExpectRefused(server.Ask(fmt::format("\"{}\":{}", field, bad)), field);
    }
    for (std::string_view bad : {"NaN", "Infinity", "-Infinity", "nan"}) {
      EXPECT_EQ(server.Ask(fmt::format("\"{}\":{}", field, bad)).status, 400);
    }
    const auto tiny = Sent(&server, fmt::format("\"{}\":1e-40", field)).sampling;
    // Nothing that divides by it leaves float's range.
    EXPECT_TRUE(tiny.temperature == 0 || std::isfinite(100 / tiny.temperature));
    EXPECT_TRUE(std::isfinite(100 / tiny.repetition_penalty));
  }
  EXPECT_EQ(Sent(&server, R"("temperature":-0.0)").sampling.temperature, 0.0f);
  EXPECT_FALSE(std::signbit(Sent(&server, R"("temperature":-0.0)").sampling.temperature));
  EXPECT_EQ(Sent(&server, R"("top_p":0)").sampling.temperature, 0.0f);
  EXPECT_EQ(Sent(&server, R"("top_k":0)").sampling.top_k, 0);
  EXPECT_EQ(Sent(&server, R"("top_k":-1)").sampling.top_k, 0);
  ExpectRefused(server.Ask(R"("top_k":-5)"), "top_k");
  EXPECT_EQ(Sent(&server, R"("seed":9223372036854775808)").sampling.seed, uint64_t{1} << 63);
  EXPECT_EQ(Sent(&server, R"("seed":-1)").sampling.seed, ~uint64_t{0});
  ExpectRefused(server.Ask(R"("seed":1.5)"), "seed");
  ExpectRefused(server.Ask(R"("seed":1e300)"), "seed");
}

TEST(Types, WrongOnesAreNamed) {
  TestServer server;
  for (const auto& [fields, name] : std::vector<std::pair<string, string>>{
           {R"("stream":"yes")", "stream"},
           {R"("n":"1")", "n"},
           {R"("n":0)", "n"},
           {R"("n":17)", "n"},
           {R"("user":5)", "user"},
           {R"("stream":true,"stream_options":[])", "stream_options"},
           {R"("stream":true,"stream_options":{"include_usage":1})", "include_usage"},
           {R"("stream_options":{"include_usage":true})", "stream_options"},
           {R"("logprobs":5)", "logprobs"},
           {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
           {R"("top_logprobs":2)", "top_logprobs"},
           {R"("tools":{})", "tools"},
           {R"("chat_template_kwargs":[])", "chat_template_kwargs"}}) {
    SCOPED_TRACE(fields);
    ExpectRefused(server.Ask(fields), name);
  }
  for (const auto& [body, name] : std::vector<std::pair<string, string>>{
           {R"({"messages":[{"role":"user","content":"x"}]})", "model"},
           {R"({"model":5,"messages":[{"role":"user","content":"x"}]})", "model"},
           {R"({"model":"tiny"})", "messages"},
           {R"({"model":"tiny","messages":[]})", "messages"},
           {R"({"model":"tiny","messages":"x"})", "messages"},
           {R"({"model":"tiny","messages":[5]})", "messages[0]"},
           {R"({"model":"tiny","messages":[{"content":"x"}]})", "messages[0].role"},
           {R"({"model":"tiny","messages":[{"role":"king","content":"x"}]})", "messages[0].role"},
           {R"({"model":"tiny","messages":[{"role":"user","content":5}]})",
            "messages[0].content"}}) {
    SCOPED_TRACE(body);
    ExpectRefused(server.Chat(body), name);
  }
  for (const auto& [body, name] : std::vector<std::pair<string, string>>{
           {R"({"model":"tiny"})", "prompt"},
           {R"({"model":"tiny","prompt":5})", "prompt"},
           {R"({"model":"tiny","prompt":[]})", "prompt"},
           {R"({"model":"tiny","prompt":[1,"a"]})", "prompt"},
           {R"({"model":"tiny","prompt":[1,300]})", "prompt"},
           {R"({"model":"tiny","prompt":[[1],[-1]]})", "prompt[1]"},
           {R"({"model":"tiny","prompt":["a",{}]})", "prompt[1]"},
           {R"({"model":"tiny","prompt":"x","suffix":"y"})", "suffix"},
           {R"({"model":"tiny","prompt":"x","best_of":2,"n":3})", "best_of"},
           {R"({"model":"tiny","prompt":"x","best_of":1,"n":2})", "best_of"},
           {R"({"model":"tiny","prompt":"x","best_of":3,"stream":true})", "best_of"}}) {
    SCOPED_TRACE(body);
    ExpectRefused(server.Complete(body), name);
  }
}

TEST(Unsupported, IsRefusedAndNeverIgnored) {
  TestServer server;
  for (const auto& [fields, name] : std::vector<std::pair<string, string>>{
           {R"("response_format":{"type":"json_schema","json_schema":{}})",
            "response_format.json_schema.schema"},
           {R"("response_format":{"type":"poem"})", "response_format.type"},
           {R"("response_format":{})", "response_format.type"},
           {R"("response_format":"json")", "response_format"},
           {R"("tools":[{}],"tool_choice":"auto")", "tools[0].function"},
           {R"("tools":[{"type":"function","function":{"name":"a b"}}])", "tools[0].function.name"},
           {R"("tool_choice":"required")", "tool_choice"},
           {R"("metadata":{"a":1})", "metadata[\"a\"]"},
           {R"("user":7)", "user"},
           {R"("parallel_tool_calls":"yes")", "parallel_tool_calls"},
           {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
           {R"("functions":[{}])", "functions"},
           {R"("grammar":"root ::= x")", "grammar"}}) {
    SCOPED_TRACE(fields);
    ExpectRefused(server.Ask(fields), name);
  }
  Sent(&server, R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")");
}

TEST(Json, MalformedBodiesAreRefused) {
  TestServer server;
  for (const string& body :
       std::vector<string>{"", "{", "null", "[]", "\"x\"", ChatBody() + "x", "{'model':'tiny'}",
                           "{\"model\":\"\\ud800\"}", ChatBody(",")}) {
    SCOPED_TRACE(body);
    const HttpReply reply = server.Chat(body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_EQ(TextAt(Json(reply.body), "error/code"), "invalid_json") << reply.body;
  }
}

TEST(Json, OtherEncodingsAreRefusedInValidUtf8) {
  TestServer server;
  const string latin1 = ChatBody("", "na\xEFve");
  string utf16 = "\xFF\xFE";
  for (char c : ChatBody()) utf16 += {c, '\0'};
  const string in_name = ChatBody("\"stop\":[\"\xFF\"]");
  for (const string& body : {latin1, utf16, in_name}) {
    const HttpReply reply = server.Chat(body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_TRUE(IsValidUtf8(reply.body));
    EXPECT_NE(reply.body.find("UTF-8"), string::npos);
  }
}

TEST(Json, DeepNestingIsRefused) {
  TestServer server;
  string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  string objects;
  for (int i = 0; i < 20'000; ++i) objects += "{\"a\":";
  for (const string& body : {ChatBody("\"x\":" + deep), ChatBody("\"x\":" + objects), deep}) {
    const HttpReply reply = server.Chat(body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_NE(reply.body.find(fmt::format("{} levels", kMaxJsonDepth)), string::npos) << reply.body;
  }
  EXPECT_EQ(server.Ask().status, 200);
}

}  // namespace
}  // namespace terrace::server
