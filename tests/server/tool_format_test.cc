// How templates write tool calls is found out, and what they write is read back.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <boost/json/parse.hpp>

#include "base/status.h"
#include "server/answer_parser.h"
#include "text/chat_template.h"
#include "text/tool_format.h"

namespace terrace::server {
namespace {

namespace json = boost::json;
using std::string;

// Spellings of tokens that end an answer, as vocabularies have them.
const std::vector<string> kEnds = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>",  "<|end|>",
                                   "<|call|>",   "<|calls|>",  "<|return|>", "<eos>", "<|eot|>"};

ChatInput Conversation(size_t calls, bool prompt) {
  ChatInput input;
  input.messages.push_back(json::parse(R"({"role":"user","content":"Weather?"})").as_object());
  input.tools = json::parse(
      R"([{"type":"function","function":{"name":"get_weather","description":"d","parameters":)"
      R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}])");
  if (!prompt) {
    json::array list;
    for (size_t i = 0; i < calls; ++i) {
      list.push_back(json::parse(
          fmt::format(R"({{"id":"abc12345{}","type":"function","function":{{"name":"get_weather",)"
                      R"("arguments":"{{\"city\": \"Oslo {{}}\", \"n\": {}}}"}}}})",
                      i, i)));
    }
    input.messages.push_back(
        json::object{{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(list)}});
  }
  input.add_generation_prompt = prompt;
  input.now = [] { return int64_t{1'700'000'000}; };
  return input;
}

struct Read {
  string content;
  std::vector<std::pair<string, string>> calls;
};
// `text` through a parser, `step` bytes at a time.
Read Parse(const AnswerSyntax& syntax, const string& text, size_t step) {
  AnswerParser parser(&syntax);
  Read out;
  auto take = [&out](const std::vector<AnswerPiece>& pieces) {
    for (const AnswerPiece& piece : pieces) {
      if (piece.kind == AnswerPiece::Kind::kContent) out.content += piece.text;
      if (piece.kind == AnswerPiece::Kind::kCallName) out.calls.emplace_back(piece.text, "");
      if (piece.kind == AnswerPiece::Kind::kCallArguments) out.calls.back().second += piece.text;
    }
  };
  for (size_t at = 0; at < text.size(); at += step) take(parser.Append(text.substr(at, step)));
  take(parser.Finish());
  return out;
}

// What the template writes for the assistant's turn with `calls` calls, without the turn's end.
string Turn(const ChatTemplate& chat_template, size_t calls) {
  const auto prompt = chat_template.Render(Conversation(0, true));
  const auto whole = chat_template.Render(Conversation(calls, false));
  if (!prompt.ok() || !whole.ok()) return "";
  const auto split = std::mismatch(prompt->text.begin(), prompt->text.end(), whole->text.begin(),
                                   whole->text.end());
  return string(split.second, whole->text.end());
}

void ExpectCalls(const Read& read, size_t calls) {
  ASSERT_EQ(read.calls.size(), calls);
  for (size_t i = 0; i < calls; ++i) {
    EXPECT_EQ(read.calls[i].first, "get_weather");
    EXPECT_EQ(json::parse(read.calls[i].second),
              json::parse(fmt::format(R"({{"city":"Oslo {{}}","n":{}}})", i)));
  }
}

TEST(ToolFormat, OfRealTemplatesIsReadBack) {
  const std::filesystem::path folder = TERRACE_GOLDEN "/templates";
  if (!std::filesystem::is_directory(folder)) GTEST_SKIP() << "no real templates here";
  int native = 0, parallel = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream in(entry.path());
    const string source{std::istreambuf_iterator<char>(in), {}};
    const auto chat_template =
        ChatTemplate::Create(source, {.bos_token = "<s>", .eos_token = "</s>"});
    if (!chat_template.ok()) continue;
    const auto format = FindToolFormat(**chat_template, kEnds);
    if (!format) continue;
    ++native;
    AnswerSyntax syntax;
    syntax.tools = *format;
    const string one = Turn(**chat_template, 1);
    for (size_t step : {size_t{1}, size_t{7}, one.size()}) {
      ExpectCalls(Parse(syntax, one, step), 1);
      if (HasFailure()) {
        ADD_FAILURE() << "trigger '" << format->trigger << "' in '" << one << "'";
        break;
      }
    }
    if (!format->parallel) continue;
    ++parallel;
    const string two = Turn(**chat_template, 2);
    ExpectCalls(Parse(syntax, two, 3), 2);
  }
  // Templates whose arguments are not JSON, and those without tools, are not among them.
  EXPECT_GE(native, 20);
  EXPECT_GE(parallel, 12);
}

TEST(ToolFormat, GenericCallsAreRead) {
  AnswerSyntax syntax;
  syntax.tools = GenericToolFormat();
  const string text =
      "Wait.\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": \"}\\\"{\"}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>";
  for (size_t step = 1; step < 12; ++step) {
    const Read read = Parse(syntax, text, step);
    EXPECT_EQ(read.content, "Wait.");
    ASSERT_EQ(read.calls.size(), 2u);
    EXPECT_EQ(read.calls[0].second, R"({"x": "}\"{"})");
    EXPECT_EQ(read.calls[1], (std::pair<string, string>{"b", "{}"}));
  }
  // A marker without a call is text, as is one that the end cuts off.
  EXPECT_EQ(Parse(syntax, "see <tool_call> there <tool", 3).content, "see <tool_call> there <tool");
  EXPECT_EQ(Parse(syntax, "  \n", 1).content, "");
}

TEST(ReasoningFormat, IsFoundByItsMarkers) {
  EXPECT_FALSE(FindReasoningFormat("{{ messages }}"));
  EXPECT_EQ(FindReasoningFormat("a <think> b </think>")->close, "</think>");
  AnswerSyntax syntax;
  syntax.reasoning = FindReasoningFormat("<think></think>");
  AnswerParser parser(&syntax);
  string reasoning, content;
  for (char c : string("<think>a < b</thin> c</think>\n\nd < e")) {
    for (const AnswerPiece& piece : parser.Append({&c, 1})) {
      (piece.kind == AnswerPiece::Kind::kReasoning ? reasoning : content) += piece.text;
    }
  }
  for (const AnswerPiece& piece : parser.Finish()) content += piece.text;
  EXPECT_EQ(reasoning, "a < b</thin> c");
  EXPECT_EQ(content, "d < e");
}

}  // namespace
}  // namespace terrace::server
