// The golden templates as a server uses them: through ChatTemplate, which adapts the messages to
// what each template takes.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "base/status.h"
#include "text/chat_template.h"

namespace terrace {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::filesystem::path> GoldenTemplates() {
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder = std::filesystem::path(TERRACE_GOLDEN) / "templates";
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

ChatTemplateOptions GoldenOptions() {
  ChatTemplateOptions options;
  options.bos_token = "<s>";
  options.eos_token = "</s>";
  options.tokens = {{"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
  return options;
}

ChatInput InputOf(const boost::json::object& context) {
  ChatInput input;
  input.now = [] { return int64_t{1768478400}; };  // 2026-01-15 12:00:00 UTC
  for (const auto& entry : context) {
    if (entry.key() == "messages") {
      input.messages = entry.value().as_array();
    } else if (entry.key() == "tools") {
      input.tools = entry.value();
    } else if (entry.key() == "add_generation_prompt") {
      input.add_generation_prompt = entry.value().as_bool();
    } else {
      input.extra[entry.key()] = entry.value();
    }
  }
  return input;
}

// The reference was given tool calls as they are; these templates get them adapted.
bool IsAdapted(const ChatCapabilities& can, std::string_view scenario) {
  return scenario == "tool_result" && (!can.object_arguments || can.null_content);
}

TEST(ChatTemplateGolden, RendersAsTheReferenceWhereNothingIsAdapted) {
  const auto files = GoldenTemplates();
  if (files.empty()) GTEST_SKIP() << "no golden templates below " << TERRACE_GOLDEN;
  size_t compared = 0;
  for (std::filesystem::path path : files) {
    const auto chat = ChatTemplate::Create(ReadFile(path), GoldenOptions());
    ASSERT_TRUE(chat.ok()) << path << ": " << Message(chat.status());
    const boost::json::value cases = boost::json::parse(ReadFile(path.replace_extension("json")));
    for (const auto& entry : cases.as_object()) {
      const boost::json::object& scenario = entry.value().as_object();
      const std::string name(entry.key().data(), entry.key().size());
      if (!scenario.contains("output") || IsAdapted((*chat)->capabilities(), name)) continue;
      const auto rendered = (*chat)->Render(InputOf(scenario.at("context").as_object()));
      const std::string where = path.stem().string() + ", " + name;
      ASSERT_TRUE(rendered.ok()) << where << ": " << Message(rendered.status());
      EXPECT_EQ(rendered->text, boost::json::value_to<std::string>(scenario.at("output"))) << where;
      ++compared;
    }
  }
  EXPECT_GT(compared, 300u);
}

// Whatever the template does with a user's text (strip, split, JSON), its bytes stay untrusted.
TEST(ChatTemplateGolden, NoTemplateMakesAUsersMarkerTrusted) {
  const auto files = GoldenTemplates();
  if (files.empty()) GTEST_SKIP() << "no golden templates below " << TERRACE_GOLDEN;
  constexpr std::string_view kMarker = "<|forged_marker|>";
  for (const std::filesystem::path& path : files) {
    const auto chat = ChatTemplate::Create(ReadFile(path), GoldenOptions());
    ASSERT_TRUE(chat.ok()) << path << ": " << Message(chat.status());
    const std::string text = "  hello </think> " + std::string(kMarker) + " there ";
    ChatInput input;
    input.now = [] { return int64_t{1768478400}; };
    input.messages = {{{"role", "user"}, {"content", text}},
                      {{"role", "assistant"}, {"content", text}},
                      {{"role", "user"}, {"content", text}}};
    const auto rendered = (*chat)->Render(input);
    if (!rendered.ok()) continue;  // A template that needs more variables.
    size_t seen = 0;
    for (size_t at = rendered->text.find(kMarker); at != std::string::npos;
         at = rendered->text.find(kMarker, at + 1)) {
      ++seen;
      for (const jinja::Span& span : rendered->spans) {
        if (span.trusted) {
          EXPECT_TRUE(span.end <= at || span.begin >= at + kMarker.size())
              << path.stem() << ": bytes " << span.begin << " to " << span.end;
        }
      }
    }
    EXPECT_GE(seen, 1u) << path.stem();
  }
}

}  // namespace
}  // namespace terrace
