// Answers, streamed and whole. Hard cases A26 to A31.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "test_server.h"

namespace terrace::server {
namespace {

using std::string;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// An emoji, a family joined of four, Thai, a flag.
constexpr std::string_view kHardText =
    "\xF0\x9F\x98\x80 \xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7\xE2"
    "\x80\x8D\xF0\x9F\x91\xA6 \xE0\xB8\xAA\xE0\xB8\xA7\xE0\xB8\xB1\xE0\xB8\xAA\xE0\xB8\x94\xE0\xB8"
    "\xB5 \xF0\x9F\x87\xA9\xF0\x9F\x87\xAA";

string WholeText(const HttpReply& reply) {
  return TextAt(Json(reply.body), "choices/0/message/content") +
         TextAt(Json(reply.body), "choices/0/text");
}
string WholeReason(const HttpReply& reply) {
  return TextAt(Json(reply.body), "choices/0/finish_reason");
}
string With(const string& fields) { return fields.empty() ? "" : "," + fields; }

// Asks both ways; the two answers must agree. The whole one.
HttpReply AskBothWays(TestServer* server, const string& fields = "") {
  const HttpReply whole = server->Ask(fields);
  EXPECT_EQ(whole.status, 200) << whole.body;
  const HttpReply stream = server->Ask(R"("stream":true)" + With(fields));
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(StreamText(stream), WholeText(whole));
  EXPECT_EQ(StreamReason(stream), WholeReason(whole));
  for (const string& event : stream.Events()) EXPECT_TRUE(IsValidUtf8(event));
  EXPECT_EQ(stream.Events().back(), "[DONE]");
  return whole;
}

TEST(Characters, AreNeverSplit) {
  TestServer server;
  server.Say(kHardText);  // a token a byte
  const HttpReply whole = AskBothWays(&server);
  EXPECT_EQ(WholeText(whole), kHardText);
  EXPECT_EQ(whole.body.find(kReplacement), string::npos);
}

TEST(Characters, AStrayByteDoesNotStallTheStream) {
  TestServer server;
  std::vector<int32_t> tokens = {'a', 0xFF, 'b', 0xF0, 0x9F};
  for (int i = 0; i < 20; ++i) tokens.push_back('c');
  tokens.push_back(kEnd);
  server.SayTokens(tokens, 3000);
  HttpClient client(server.port());
  client.Send(HttpClient::PostText("/v1/chat/completions", ChatBody(R"("stream":true)")));
  // Text after the stray byte arrives long before the end.
  const string early = client.ReadUntil("\"content\":\"c\"", 5000);
  EXPECT_NE(early.find("\"content\":\"c\""), string::npos);
  EXPECT_EQ(early.find("[DONE]"), string::npos);
  const HttpReply whole = AskBothWays(&server);
  EXPECT_EQ(WholeText(whole), fmt::format("a{0}b{0}{1}", kReplacement, string(20, 'c')));
}

TEST(Characters, TheLimitMayFallInsideOne) {
  TestServer server;
  server.Say(kHardText);
  for (int tokens = 1; tokens <= 8; ++tokens) {
    const HttpReply whole = AskBothWays(&server, fmt::format(R"("max_tokens":{})", tokens));
    EXPECT_EQ(WholeReason(whole), "length");
    EXPECT_TRUE(IsValidUtf8(whole.body));
    const string text = WholeText(whole);
    // At most one mark, and that at the end.
    const size_t mark = text.find(kReplacement);
    EXPECT_TRUE(mark == string::npos || mark + kReplacement.size() == text.size());
  }
}

TEST(StopText, IsFoundAcrossTokensAndCutOff) {
  TestServer server;
  server.Say("A B C O P X O P Q R");
  const std::vector<std::pair<string, string>> cases = {
      {R"(["O P Q"])", "A B C O P X "},
      {R"(["O P Q","C O Z"])", "A B C O P X "},
      {R"("X")", "A B C O P "},
      {R"(["P Q R","R"])", "A B C O P X O "},
      {R"(["A"])", ""},
  };
  for (const auto& [stop, text] : cases) {
    SCOPED_TRACE(stop);
    const HttpReply whole = AskBothWays(&server, fmt::format(R"("stop":{})", stop));
    EXPECT_EQ(WholeText(whole), text);
    EXPECT_EQ(WholeReason(whole), "stop");
  }
  // A beginning of a stop string at the end is text.
  const HttpReply whole = AskBothWays(&server, R"("stop":"R!")");
  EXPECT_EQ(WholeText(whole), "A B C O P X O P Q R");
}

TEST(StopText, MayEndInsideAToken) {
  TestServer server;
  server.SayTokens({'a', 259, 'b', kEnd});  // 259 is "qqq"
  const HttpReply whole = AskBothWays(&server, R"("stop":"aqq")");
  EXPECT_EQ(WholeText(whole), "");
  const HttpReply partly = AskBothWays(&server, R"("stop":"qb")");
  EXPECT_EQ(WholeText(partly), "aqq");
}

TEST(Usage, ComesInTheStreamOnlyIfAskedFor) {
  TestServer server;
  const auto usage = At(Json(server.Ask().body), "usage");
  EXPECT_EQ(At(usage, "completion_tokens"), boost::json::value(3));
  struct Case {
    string fields;
    bool expected;
  };
  for (const Case& each :
       {Case{R"("stream":true)", false}, Case{R"("stream":true,"stream_options":{})", false},
        Case{R"("stream":true,"stream_options":{"include_usage":false})", false},
        Case{R"("stream":true,"stream_options":{"include_usage":true})", true}}) {
    SCOPED_TRACE(each.fields);
    for (const HttpReply& reply :
         {server.Ask(each.fields),
          server.Complete(fmt::format(R"({{"model":"tiny","prompt":"x",{}}})", each.fields))}) {
      const auto events = reply.Events();
      ASSERT_GE(events.size(), 3u);
      EXPECT_EQ(events.back(), "[DONE]");
      int with_usage = 0;
      for (const string& event : events) {
        if (event != "[DONE]") with_usage += At(Json(event), "usage").is_object() ? 1 : 0;
      }
      EXPECT_EQ(with_usage, each.expected ? 1 : 0);
      if (!each.expected) continue;
      const auto last = Json(events[events.size() - 2]);
      EXPECT_EQ(At(last, "choices"), boost::json::value(boost::json::array()));
      EXPECT_EQ(At(last, "usage/completion_tokens"), boost::json::value(3));
      EXPECT_EQ(TextAt(Json(events[events.size() - 3]), "choices/0/finish_reason"), "stop");
    }
  }
}

TEST(Chunks, HaveTheShapeThatClientsRelyOn) {
  TestServer server;
  for (std::string_view text : {"abc", "a"}) {
    server.Say(text);
    const HttpReply reply = server.Ask(R"("stream":true)");
    EXPECT_TRUE(reply.headers.at("content-type").starts_with("text/event-stream"));
    EXPECT_TRUE(reply.complete);
    const auto events = reply.Events();
    ASSERT_EQ(events.size(), text.size() + 3);  // role, a delta each, finish, [DONE]
    std::set<string> heads;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const auto event = Json(events[i]);
      heads.insert(TextAt(event, "id") + TextAt(event, "model") +
                   fmt::format("{}", At(event, "created").as_int64()));
      EXPECT_EQ(TextAt(event, "object"), "chat.completion.chunk");
      EXPECT_EQ(At(event, "choices/0/index"), boost::json::value(0));
      EXPECT_EQ(TextAt(event, "choices/0/delta/role"), i == 0 ? "assistant" : "");
      const bool last = i + 2 == events.size();
      EXPECT_EQ(TextAt(event, "choices/0/finish_reason"), last ? "stop" : "");
      EXPECT_EQ(At(event, "choices/0/finish_reason").is_null(), !last);
    }
    EXPECT_EQ(heads.size(), 1u);
    EXPECT_TRUE(heads.begin()->starts_with("chatcmpl-"));
  }
  server.Say("abc");
  EXPECT_EQ(StreamReason(server.Ask(R"("stream":true,"max_tokens":2)")), "length");
  // An answer of nothing still has its role and its reason.
  server.Say("");
  const auto events = server.Ask(R"("stream":true)").Events();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(TextAt(Json(events[0]), "choices/0/delta/role"), "assistant");
}

TEST(Errors, BeforeTheFirstTokenHaveTheirStatus) {
  TestServer server;
  EXPECT_EQ(server.Ask(R"("stream":true,"n":0)").status, 400);
  EXPECT_EQ(
      server.Chat(R"({"model":"no","stream":true,"messages":[{"role":"user","content":"x"}]})")
          .status,
      404);
  server.scheduler().FailNextSubmit(absl::ResourceExhaustedError("the queue is full"));
  const HttpReply full = server.Ask(R"("stream":true)");
  EXPECT_EQ(full.status, 429);
  EXPECT_FALSE(full.headers.at("retry-after").empty());
  EXPECT_EQ(TextAt(Json(full.body), "error/type"), "rate_limit_error");
  for (std::string_view stream : {"false", "true"}) {
    server.scheduler().set_script([](const SeenRequest&) {
      return Script{.fail = absl::DataLossError("blk.3 of tiny does not match its checksum")};
    });
    const HttpReply failed = server.Ask(fmt::format(R"("stream":{})", stream));
    EXPECT_EQ(failed.status, 500);
    EXPECT_NE(TextAt(Json(failed.body), "error/message").find("blk.3"), string::npos);
  }
}

TEST(Errors, AfterTheFirstTokenEndTheStream) {
  TestServer server;
  server.scheduler().set_script([](const SeenRequest&) {
    return Script{.tokens = Bytes("abc"),
                  .step_us = 5000,  // so that a token is sent before the next comes
                  .fail = absl::InternalError("NaN in the logits of tiny")};
  });
  EXPECT_EQ(server.Ask().status, 500);  // whole answers keep their status
  HttpClient client(server.port());
  const HttpReply reply = client.Post("/v1/chat/completions", ChatBody(R"("stream":true)"));
  EXPECT_EQ(reply.status, 200);
  const auto events = reply.Events();
  EXPECT_EQ(StreamText(reply), "abc");
  EXPECT_EQ(TextAt(Json(events.back()), "error/message"), "NaN in the logits of tiny");
  EXPECT_EQ(StreamReason(reply), "");
  const int64_t start = RealClock().NowUs();
  client.ReadUntil("never", 5000);
  EXPECT_TRUE(client.closed());
  EXPECT_LT(RealClock().NowUs() - start, 1'000'000);
}

TEST(Choices, SeveralAreGivenWhole) {
  TestServer server;
  server.scheduler().set_script([](const SeenRequest& request) {
    auto tokens = Bytes(request.id.substr(request.id.size() - 2));  // "-0", "-1" ...
    tokens.push_back(kEnd);
    return Script{.tokens = tokens};
  });
  const auto body = Json(server.Ask(R"("n":3,"seed":7)").body);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(At(body, fmt::format("choices/{}/index", i)), boost::json::value(i));
    EXPECT_EQ(TextAt(body, fmt::format("choices/{}/message/content", i)), fmt::format("-{}", i));
  }
  EXPECT_EQ(At(body, "usage/completion_tokens"), boost::json::value(6));
  const auto seen = server.scheduler().submitted();
  EXPECT_EQ(At(body, "usage/prompt_tokens"),
            boost::json::value(static_cast<int64_t>(seen[0].prompt.size())));
  EXPECT_NE(seen[0].sampling.seed, seen[1].sampling.seed);
  const HttpReply stream = server.Ask(R"("n":3,"stream":true)");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(StreamText(stream, i), fmt::format("-{}", i));
    EXPECT_EQ(StreamReason(stream, i), "stop");
  }
  // One that fails fails all, once.
  server.scheduler().set_script([](const SeenRequest& request) {
    const bool bad = request.id.ends_with("-1");
    return Script{.tokens = Bytes("abcdef"),
                  .step_us = 2000,
                  .fail = bad ? absl::InternalError("bad") : absl::OkStatus()};
  });
  EXPECT_EQ(server.Ask(R"("n":3)").status, 500);
  EXPECT_TRUE(server.scheduler().WaitIdle(5'000'000));
}

TEST(Completions, TakeManyPromptsIdsAndEcho) {
  TestServer server;
  const auto many = Json(server.Complete(R"({"model":"tiny","prompt":["a","b"],"n":2})").body);
  EXPECT_EQ(At(many, "choices").as_array().size(), 4u);
  EXPECT_EQ(TextAt(many, "object"), "text_completion");
  const auto seen = server.scheduler().submitted();
  EXPECT_EQ(seen[0].prompt, (std::vector<int32_t>{kBos, 'a'}));
  EXPECT_EQ(seen[3].prompt, (std::vector<int32_t>{kBos, 'b'}));
  // Ids are taken as they are.
  server.Complete(R"({"model":"tiny","prompt":[104,105]})");
  EXPECT_EQ(server.scheduler().submitted().back().prompt, (std::vector<int32_t>{104, 105}));
  for (std::string_view prompt : {R"("say: ")", "[115,97,121,58,32]"}) {
    const string body = fmt::format(R"({{"model":"tiny","prompt":{},"echo":true)", prompt);
    EXPECT_EQ(TextAt(Json(server.Complete(body + "}").body), "choices/0/text"), "say: Hi!");
    EXPECT_EQ(StreamText(server.Complete(body + R"(,"stream":true})")), "say: Hi!");
  }
}

// As OpenAI gives them: the prompt's tokens first, of which the first has none.
TEST(Logprobs, OfThePromptComeWithEcho) {
  TestServer server;
  server.Say("yz");
  const string body = R"({"model":"tiny","prompt":[97,98,99],"echo":true,"logprobs":1)";
  for (std::string_view more : {"", R"(,"n":2)"}) {
    const HttpReply reply = server.Complete(body + string(more) + "}");
    const auto whole = Json(reply.body);
    ASSERT_EQ(reply.status, 200) << reply.body;
    const size_t choices = At(whole, "choices").as_array().size();
    EXPECT_EQ(choices, more.empty() ? 1u : 2u);
    for (size_t i = 0; i < choices; ++i) {
      const string at = fmt::format("choices/{}/logprobs/", i);
      EXPECT_EQ(TextAt(whole, fmt::format("choices/{}/text", i)), "abcyz");
      EXPECT_EQ(At(whole, at + "tokens"), Json(R"(["a","b","c","y","z"])"));
      EXPECT_EQ(At(whole, at + "token_logprobs"), Json("[null,-0.25,-0.5,-0.5,-0.5]"));
      EXPECT_EQ(At(whole, at + "text_offset"), Json("[0,1,2,3,4]"));
      EXPECT_TRUE(At(whole, at + "top_logprobs/0").is_null());
      EXPECT_EQ(At(whole, at + "top_logprobs/2"), Json(R"({"c":-0.5})"));
    }
  }
  EXPECT_TRUE(server.scheduler().submitted().back().prompt_logprobs);
  // Streamed, the prompt's come with the prompt's text.
  const HttpReply stream = server.Complete(body + R"(,"stream":true})");
  EXPECT_EQ(StreamText(stream), "abcyz");
  const auto first = Json(stream.Events().front());
  EXPECT_EQ(TextAt(first, "choices/0/text"), "abc");
  EXPECT_EQ(At(first, "choices/0/logprobs/token_logprobs"), Json("[null,-0.25,-0.5]"));
  // Without an answer: what evaluation harnesses ask for.
  for (std::string_view more : {"", R"(,"stream":true)"}) {
    const HttpReply scored = server.Complete(body + R"(,"max_tokens":0)" + string(more) + "}");
    ASSERT_EQ(scored.status, 200) << scored.body;
    if (!more.empty()) {
      EXPECT_EQ(StreamText(scored), "abc");
      EXPECT_EQ(StreamReason(scored), "length");
      continue;
    }
    const auto only = Json(scored.body);
    EXPECT_EQ(TextAt(only, "choices/0/text"), "abc");
    EXPECT_EQ(At(only, "choices/0/logprobs/token_logprobs"), Json("[null,-0.25,-0.5]"));
    EXPECT_EQ(TextAt(only, "choices/0/finish_reason"), "length");
    EXPECT_EQ(At(only, "usage/completion_tokens"), boost::json::value(0));
  }
  // A start token that the text does not have is one of the prompt's tokens.
  const auto text = Json(
      server.Complete(R"({"model":"tiny","prompt":"ab","echo":true,"logprobs":0,"max_tokens":0})")
          .body);
  EXPECT_EQ(At(text, "choices/0/logprobs/token_logprobs"), Json("[null,-0.25,-0.5]"));
  EXPECT_EQ(At(text, "choices/0/logprobs/text_offset"), Json("[0,0,1]"));
  const string one = R"({"model":"tiny","prompt":[97],"echo":true,"logprobs":0,"max_tokens":0})";
  EXPECT_EQ(At(Json(server.Complete(one).body), "choices/0/logprobs/token_logprobs"),
            Json("[null]"));
  for (std::string_view bad : {R"("max_tokens":0)", R"("max_completion_tokens":0)",
                               R"("echo":true,"logprobs":1,"suffix":"x")"}) {
    const HttpReply refused =
        server.Complete(fmt::format(R"({{"model":"tiny","prompt":"x",{}}})", bad));
    EXPECT_EQ(refused.status, 400) << bad;
    EXPECT_FALSE(TextAt(Json(refused.body), "error/param").empty());
  }
}

TEST(Logprobs, HaveTheShapeOfTheirEndpoint) {
  TestServer server;
  server.SayTokens({'a', 0xC3, 0xA9, 'b', kEnd});  // "aéb", é in two tokens
  const HttpReply chat = server.Ask(R"("logprobs":true,"top_logprobs":2)");
  const auto body = Json(chat.body);
  ASSERT_EQ(At(body, "choices/0/logprobs/content").as_array().size(), 4u) << chat.body;
  EXPECT_EQ(TextAt(body, "choices/0/logprobs/content/0/token"), "a");
  EXPECT_EQ(At(body, "choices/0/logprobs/content/0/logprob"), boost::json::value(-0.5));
  EXPECT_EQ(At(body, "choices/0/logprobs/content/1/bytes"), Json("[195]"));
  EXPECT_EQ(At(body, "choices/0/logprobs/content/0/top_logprobs").as_array().size(), 2u);
  // Minus infinity has no place in JSON.
  EXPECT_EQ(At(body, "choices/0/logprobs/content/0/top_logprobs/1/logprob"),
            boost::json::value(-9999.0));
  EXPECT_TRUE(At(Json(server.Ask().body), "choices/0/logprobs").is_null());
  EXPECT_EQ(
      At(Json(server.Ask(R"("logprobs":true)").body), "choices/0/logprobs/content/0/top_logprobs"),
      Json("[]"));

  const auto completion =
      Json(server.Complete(R"({"model":"tiny","prompt":"x","logprobs":1})").body);
  EXPECT_EQ(At(completion, "choices/0/logprobs/token_logprobs").as_array().size(), 4u);
  EXPECT_EQ(At(completion, "choices/0/logprobs/text_offset"), Json("[0,1,1,3]"));
  EXPECT_EQ(TextAt(completion, "choices/0/logprobs/tokens/3"), "b");

  // In a stream each token is reported once, with the text it belongs to; a stop string's never.
  server.Say("abcd");
  for (const auto& [stop, count] : {std::pair<string, size_t>{"", 4}, {R"(,"stop":"cd")", 2}}) {
    size_t reported = 0;
    for (const string& event : server.Ask(R"("stream":true,"logprobs":true)" + stop).Events()) {
      if (event == "[DONE]") continue;
      const auto content = At(Json(event), "choices/0/logprobs/content");
      if (content.is_array()) reported += content.as_array().size();
    }
    EXPECT_EQ(reported, count);
  }
}

}  // namespace
}  // namespace terrace::server
