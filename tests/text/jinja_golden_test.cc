// Every chat template and scenario of the golden data: the text must equal that of the reference
// environment to the byte, or fail where it failed.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "base/status.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace terrace::jinja {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

constexpr int64_t kGoldenNow = 1768478400;  // 2026-01-15 12:00:00 UTC

// "" if the scenario agrees, else what differs.
std::string RunScenario(const std::string& source, const boost::json::object& scenario) {
  const auto context = FromJson(scenario.at("context"));
  if (!context.ok()) return "context: " + std::string(Message(context.status()));
  RenderOptions options;
  options.now = [] { return kGoldenNow; };
  TemplateOptions plain;
  plain.generation_tag = false;  // The reference environment does not know it.
  const auto parsed = Template::Parse(source, plain);
  const absl::StatusOr<Rendered> rendered = parsed.ok()
                                                ? (*parsed)->Render(*context->dict(), options)
                                                : absl::StatusOr<Rendered>(parsed.status());
  if (!scenario.contains("output")) {
    return rendered.ok() ? "rendered, but the reference failed" : "";
  }
  if (!rendered.ok()) return std::string(Message(rendered.status()));
  const auto& json_text = scenario.at("output").as_string();
  const std::string wanted(json_text.data(), json_text.size());
  if (rendered->text == wanted) return "";
  const size_t same = static_cast<size_t>(
      std::mismatch(wanted.begin(), wanted.end(), rendered->text.begin(), rendered->text.end())
          .first -
      wanted.begin());
  const size_t from = same < 40 ? 0 : same - 40;
  return "differs at byte " + std::to_string(same) + "\nwanted: " + wanted.substr(from, 160) +
         "\ngot:    " + rendered->text.substr(std::min(from, rendered->text.size()), 160);
}

TEST(JinjaGolden, EveryTemplateRendersAsTheReference) {
  const std::filesystem::path folder = std::filesystem::path(TERRACE_GOLDEN) / "templates";
  if (!std::filesystem::is_directory(folder)) {
    GTEST_SKIP() << "no golden templates at " << folder;
  }
  size_t scenarios = 0;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (std::filesystem::path path : files) {
    const boost::json::value cases = boost::json::parse(ReadFile(path));
    const std::string source = ReadFile(path.replace_extension(".jinja"));
    for (const auto& entry : cases.as_object()) {
      const std::string problem = RunScenario(source, entry.value().as_object());
      EXPECT_EQ(problem, "") << path.stem() << ", scenario "
                             << std::string_view(entry.key().data(), entry.key().size());
      ++scenarios;
    }
  }
  EXPECT_GT(scenarios, 0u) << "the folder holds no scenario";
}

}  // namespace
}  // namespace terrace::jinja
