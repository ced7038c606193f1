#include "obs/log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// 2026-01-15 12:00:00 UTC.
constexpr int64_t kNoonUs = int64_t{1768478400} * 1000000;

std::string Read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class LogFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "terrace-log-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
  ManualClock clock_{kNoonUs};
};

TEST(LogLine, TextShowsTimeLevelMessageAndFields) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, kNoonUs + 42, LogLevel::kInfo, "loaded a model",
                          {{"model", "qwen"},
                           {"bytes", uint64_t{12}},
                           {"seconds", 0.25},
                           {"cold", true},
                           {"why", "disk was slow"}}),
            "2026-01-15T12:00:00.000042Z info loaded a model model=qwen bytes=12 seconds=0.25 "
            "cold=true why=\"disk was slow\"");
}

TEST(LogLine, TextStaysOneLineAndAValueCannotPoseAsAField) {
  std::string line = FormatLogLine(LogFormat::kText, kNoonUs, LogLevel::kError, "a\nb",
                                   {{"name", "x\nlevel=info"}, {"empty", ""}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(line.ends_with(R"(error a\nb name="x\nlevel=info" empty="")")) << line;
}

TEST(LogLine, JsonIsValidWhateverTheTextHolds) {
  std::string line =
      FormatLogLine(LogFormat::kJson, kNoonUs, LogLevel::kWarning, "quote \" and \xff byte",
                    {{"model", "a\\b\n"}, {"share", 1.0 / 0.0}, {"count", -3}});
  boost::json::object object = boost::json::parse(line).as_object();
  EXPECT_EQ(object["level"], "warning");
  EXPECT_EQ(object["message"], "quote \" and \xEF\xBF\xBD byte");
  EXPECT_EQ(object["model"], "a\\b\n");
  EXPECT_TRUE(object["share"].is_null());
  EXPECT_EQ(object["count"], -3);
}

TEST(LogNames, AreParsedAndOthersAreRefusedWithTheList) {
  EXPECT_EQ(*ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(*ParseLogFormat("json"), LogFormat::kJson);
  auto bad = ParseLogLevel("loud");
  EXPECT_NE(bad.status().ToString().find("debug, info, warning, error, off"), std::string::npos);
}

TEST_F(LogFile, DropsLinesBelowItsLevel) {
  auto log = OpenLog({LogLevel::kWarning, LogFormat::kText, folder_ / "log"}, clock_);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Info("not this");
  (*log)->Warning("but this");
  EXPECT_EQ(Read(folder_ / "log"), "2026-01-15T12:00:00.000000Z warning but this\n");
}

TEST_F(LogFile, AppendsAndIsNotReadableByOthers) {
  for (int i = 0; i < 2; ++i) {
    auto log = OpenLog({LogLevel::kInfo, LogFormat::kText, folder_ / "log"}, clock_);
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Info("line");
  }
  EXPECT_EQ(
      std::count(std::istreambuf_iterator<char>(*std::make_unique<std::ifstream>(folder_ / "log")),
                 std::istreambuf_iterator<char>(), '\n'),
      2);
  struct stat info;
  ASSERT_EQ(stat((folder_ / "log").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07, 0u);
}

TEST_F(LogFile, ReopenFollowsARotatedFile) {
  auto log = OpenLog({LogLevel::kInfo, LogFormat::kText, folder_ / "log"}, clock_);
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Info("before");
  fs::rename(folder_ / "log", folder_ / "log.1");
  ASSERT_TRUE((*log)->Reopen().ok());
  (*log)->Info("after");
  EXPECT_NE(Read(folder_ / "log.1").find("before"), std::string::npos);
  EXPECT_NE(Read(folder_ / "log").find("after"), std::string::npos);
  EXPECT_EQ(Read(folder_ / "log.1").find("after"), std::string::npos);
}

TEST_F(LogFile, AFileThatCannotBeOpenedIsAnErrorThatNamesIt) {
  auto log = OpenLog({LogLevel::kInfo, LogFormat::kText, folder_ / "none" / "log"}, clock_);
  ASSERT_FALSE(log.ok());
  EXPECT_NE(log.status().ToString().find("none/log"), std::string::npos);
}

}  // namespace
}  // namespace terrace
