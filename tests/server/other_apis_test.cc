// /v1/responses and /v1/messages: the same answers in other shapes.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>
#include <vector>

#include "test_server.h"

namespace terrace::server {
namespace {

using std::string;

// The types of a stream's events, in order, with repeats left out.
std::vector<string> Types(const HttpReply& reply) {
  std::vector<string> out;
  for (const string& event : reply.Events()) {
    const string type = TextAt(Json(event), "type");
    if (out.empty() || out.back() != type) out.push_back(type);
  }
  return out;
}
string Joined(const HttpReply& reply, std::string_view type, std::string_view path) {
  string out;
  for (const string& event : reply.Events()) {
    if (TextAt(Json(event), "type") == type) out += TextAt(Json(event), path);
  }
  return out;
}

constexpr std::string_view kFlatTool =
    R"("tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":)"
    R"({"a":{"const":1}},"required":["a"]},"strict":true}],"tool_choice":"required")";

TEST(Responses, TextAndWhatItCounts) {
  TestServer server;
  const HttpReply reply =
      server.Post("/v1/responses",
                  R"({"model":"tiny","instructions":"be brief","input":[{"role":"user","content":)"
                  R"([{"type":"input_text","text":"x"}]}],"max_output_tokens":9,"store":false})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto value = Json(reply.body);
  EXPECT_EQ(TextAt(value, "object"), "response");
  EXPECT_EQ(TextAt(value, "status"), "completed");
  EXPECT_EQ(TextAt(value, "output/0/content/0/text"), "Hi!");
  EXPECT_EQ(TextAt(value, "output/0/role"), "assistant");
  EXPECT_EQ(At(value, "usage/output_tokens"), boost::json::value(int64_t{3}));
  const string prompt = Spell(server.scheduler().submitted().back().prompt);
  EXPECT_NE(prompt.find("system\nbe brief"), string::npos);
  const HttpReply cut =
      server.Post("/v1/responses", R"({"model":"tiny","input":"x","max_output_tokens":2})");
  EXPECT_EQ(TextAt(Json(cut.body), "status"), "incomplete");
  EXPECT_EQ(TextAt(Json(cut.body), "incomplete_details/reason"), "max_output_tokens");
}

TEST(Responses, StreamsItsEventsInOrder) {
  TestServer server;
  const HttpReply reply =
      server.Post("/v1/responses", R"({"model":"tiny","input":"x","stream":true})");
  EXPECT_EQ(
      Types(reply),
      (std::vector<string>{"response.created", "response.in_progress", "response.output_item.added",
                           "response.content_part.added", "response.output_text.delta",
                           "response.output_text.done", "response.content_part.done",
                           "response.output_item.done", "response.completed"}));
  EXPECT_EQ(Joined(reply, "response.output_text.delta", "delta"), "Hi!");
  int64_t number = 0;
  for (const string& event : reply.Events()) {
    EXPECT_EQ(At(Json(event), "sequence_number"), boost::json::value(number++));
  }
}

TEST(Responses, CallsToolsAndTakesTheirResults) {
  TestServer server;
  const HttpReply reply = server.Post(
      "/v1/responses",
      fmt::format(
          R"({{"model":"tiny","input":[{{"role":"user","content":"x"}},)"
          R"({{"type":"function_call","call_id":"c1","name":"f","arguments":"{{\"a\":1}}"}},)"
          R"({{"type":"function_call_output","call_id":"c1","output":"42"}}],{}}})",
          kFlatTool));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto value = Json(reply.body);
  EXPECT_EQ(TextAt(value, "output/0/type"), "function_call");
  EXPECT_EQ(At(Json(TextAt(value, "output/0/arguments")), "a"), boost::json::value(int64_t{1}));
  EXPECT_EQ(TextAt(value, "tools/0/name"), "f");
  const string prompt = Spell(server.scheduler().submitted().back().prompt);
  EXPECT_NE(prompt.find("<call>f {\"a\": 1}</call>"), string::npos) << prompt;
  EXPECT_NE(prompt.find("tool\n42"), string::npos);
  const HttpReply stream =
      server.Post("/v1/responses",
                  fmt::format(R"({{"model":"tiny","input":"x","stream":true,{}}})", kFlatTool));
  EXPECT_EQ(Joined(stream, "response.function_call_arguments.done", "arguments"),
            TextAt(value, "output/0/arguments"));
}

TEST(Responses, ErrorsUseItsOwnNames) {
  TestServer server;
  for (const auto& [fields, name] : std::vector<std::pair<string, string>>{
           {R"("input":7)", "input"},
           {R"("input":"x","max_output_tokens":0)", "max_output_tokens"},
           {R"("input":"x","temperature":"hot")", "temperature"},
           {R"("input":"x","previous_response_id":"r")", "previous_response_id"},
           {R"("input":[{"type":"image"}])", "input[0]"},
           {R"("input":"x","tools":[{"type":"web_search"}])", "tools[0].type"},
           {R"("input":"x","text":{"format":{"type":"json_schema","name":"n"}})",
            "text.format.schema"}}) {
    const HttpReply reply = server.Post("/v1/responses", R"({"model":"tiny",)" + fields + "}");
    EXPECT_EQ(reply.status, 400) << fields;
    EXPECT_EQ(TextAt(Json(reply.body), "error/param"), name) << reply.body;
  }
}

TEST(Messages, TextStopsAndUsage) {
  TestServer server;
  const HttpReply reply =
      server.Post("/v1/messages",
                  R"({"model":"tiny","max_tokens":10,"system":[{"type":"text","text":"short"}],)"
                  R"("messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  auto value = Json(reply.body);
  EXPECT_EQ(TextAt(value, "type"), "message");
  EXPECT_EQ(TextAt(value, "content/0/text"), "Hi!");
  EXPECT_EQ(TextAt(value, "stop_reason"), "end_turn");
  EXPECT_EQ(At(value, "usage/output_tokens"), boost::json::value(int64_t{3}));
  const HttpReply stopped =
      server.Post("/v1/messages", R"({"model":"tiny","max_tokens":10,"stop_sequences":["!"],)"
                                  R"("messages":[{"role":"user","content":"x"}]})");
  value = Json(stopped.body);
  EXPECT_EQ(TextAt(value, "content/0/text"), "Hi");
  EXPECT_EQ(TextAt(value, "stop_reason"), "stop_sequence");
  EXPECT_EQ(TextAt(value, "stop_sequence"), "!");
}

TEST(Messages, StreamsBlocks) {
  TestServer server;
  const HttpReply reply =
      server.Post("/v1/messages", R"({"model":"tiny","max_tokens":2,"stream":true,)"
                                  R"("messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(Types(reply),
            (std::vector<string>{"message_start", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"}));
  EXPECT_EQ(Joined(reply, "content_block_delta", "delta/text"), "Hi");
  EXPECT_EQ(Joined(reply, "message_delta", "delta/stop_reason"), "max_tokens");
}

TEST(Messages, CallsToolsAndTakesTheirResults) {
  TestServer server;
  const HttpReply reply = server.Post(
      "/v1/messages",
      R"({"model":"tiny","max_tokens":90,"tools":[{"name":"f","input_schema":{"type":"object",)"
      R"("properties":{"a":{"const":1}},"required":["a"]}}],"tool_choice":{"type":"any"},)"
      R"("messages":[{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"text",)"
      R"("text":"so"},{"type":"tool_use","id":"t1","name":"f","input":{"a":1}}]},{"role":"user",)"
      R"("content":[{"type":"tool_result","tool_use_id":"t1","content":"42"},{"type":"text",)"
      R"("text":"go on"}]}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto value = Json(reply.body);
  EXPECT_EQ(TextAt(value, "stop_reason"), "tool_use");
  EXPECT_EQ(TextAt(value, "content/0/name"), "f");
  EXPECT_EQ(At(value, "content/0/input/a"), boost::json::value(int64_t{1}));
  const string prompt = Spell(server.scheduler().submitted().back().prompt);
  EXPECT_NE(prompt.find("so<call>f {\"a\": 1}</call>"), string::npos) << prompt;
  EXPECT_LT(prompt.find("tool\n42"), prompt.find("go on"));
}

TEST(Messages, ErrorsHaveItsShape) {
  TestServer server;
  for (const auto& [body, status] : std::vector<std::pair<string, int>>{
           {R"({"model":"tiny","messages":[{"role":"user","content":"x"}]})", 400},
           {R"({"model":"none","max_tokens":1,"messages":[{"role":"user","content":"x"}]})", 404},
           {R"({"model":"tiny","max_tokens":1,"messages":[{"role":"system","content":"x"}]})", 400},
           {"{", 400}}) {
    const HttpReply reply = server.Post("/v1/messages", body);
    EXPECT_EQ(reply.status, status) << body;
    EXPECT_EQ(TextAt(Json(reply.body), "type"), "error");
    EXPECT_EQ(TextAt(Json(reply.body), "error/type"),
              status == 404 ? "not_found_error" : "invalid_request_error");
  }
}

TEST(Embeddings, AsNumbersAndAsBase64) {
  TestServer server;
  const HttpReply reply =
      server.Post("/v1/embeddings", R"({"model":"tiny","input":["ab",[97,98,99]]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto value = Json(reply.body);
  ASSERT_EQ(At(value, "data").as_array().size(), 2u);
  double sum = 0;
  const auto vector = At(value, "data/1/embedding");
  for (const auto& x : vector.as_array()) {
    sum += x.to_number<double>() * x.to_number<double>();
  }
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(At(value, "usage/prompt_tokens"), boost::json::value(int64_t{6}));  // one start token
  const HttpReply coded =
      server.Post("/v1/embeddings",
                  R"({"model":"tiny","input":"ab","encoding_format":"base64","dimensions":1})");
  // 1.0f, little-endian.
  EXPECT_EQ(TextAt(Json(coded.body), "data/0/embedding"), "AACAPw==") << coded.body;
}

TEST(Embeddings, WrongFieldsAreNamed) {
  TestServer server;
  for (const auto& [fields, name] : std::vector<std::pair<string, string>>{
           {R"("x":1)", "input"},
           {R"("input":"")", "input"},
           {R"("input":["a",7])", "input[1]"},
           {R"("input":[9999])", "input"},
           {R"("input":"a","encoding_format":"hex")", "encoding_format"},
           {R"("input":"a","dimensions":0)", "dimensions"},
           {R"("input":"a","dimensions":5)", "dimensions"}}) {
    const HttpReply reply = server.Post("/v1/embeddings", R"({"model":"tiny",)" + fields + "}");
    EXPECT_EQ(reply.status, 400) << fields << reply.body;
    EXPECT_EQ(TextAt(Json(reply.body), "error/param"), name) << reply.body;
  }
}

TEST(Rerank, OrdersDocumentsByNearness) {
  TestServer server;
  const HttpReply reply = server.Post(
      "/v1/rerank",
      R"({"model":"tiny","query":"aa","documents":["b","aa",{"text":"zzzzzzzz"}],"top_n":2})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto value = Json(reply.body);
  ASSERT_EQ(At(value, "results").as_array().size(), 2u);
  EXPECT_EQ(At(value, "results/0/index"), boost::json::value(int64_t{1}));
  EXPECT_EQ(TextAt(value, "results/0/document/text"), "aa");
  EXPECT_NEAR(At(value, "results/0/relevance_score").to_number<double>(), 1, 1e-5);
  EXPECT_EQ(server.Post("/v1/rerank", R"({"model":"tiny","query":"a"})").status, 400);
}

}  // namespace
}  // namespace terrace::server
