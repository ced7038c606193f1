// The language, feature by feature: tests/data/text/jinja_cases.json holds templates over one
// context with the text that Jinja2 3.1 (sandboxed, trim_blocks, lstrip_blocks, loop controls, and
// the functions that chat templates are given) makes of each, or null where it fails.
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "jinja_test_util.h"

namespace terrace::jinja {
namespace {

TEST(JinjaCases, RenderAsJinja2Does) {
  std::ifstream in(std::string(TERRACE_TEST_DATA) + "/text/jinja_cases.json", std::ios::binary);
  ASSERT_TRUE(in) << "the cases are missing";
  const boost::json::value file =
      boost::json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
  const std::string context = boost::json::serialize(file.at("context"));
  const boost::json::array& cases = file.at("cases").as_array();
  ASSERT_GT(cases.size(), 100u);
  RenderOptions options;
  options.now = [] { return int64_t{1768478400}; };  // 2026-01-15 12:00:00 UTC
  for (const boost::json::value& row : cases) {
    const std::string source = boost::json::value_to<std::string>(row.at(0));
    const std::string got = Render(source, context, options);
    if (row.at(1).is_null()) {
      EXPECT_EQ(got.substr(0, 6), "ERROR ") << source << "\nrendered as: " << got;
    } else {
      EXPECT_EQ(got, boost::json::value_to<std::string>(row.at(1))) << source;
    }
  }
}

}  // namespace
}  // namespace terrace::jinja
