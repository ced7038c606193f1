// terrace pull as a command: its output, its errors, and that list and show see what it fetched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <sstream>

#include "cli/cli.h"

namespace terrace::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PullCommandTest : public ::testing::Test {
 protected:
  PullCommandTest() { std::filesystem::remove_all(data_); }
  ~PullCommandTest() override { std::filesystem::remove_all(data_); }

  int Run(std::vector<std::string> arguments) {
    std::istringstream in;
    std::ostringstream out, err;
    Io io{
        .in = &in, .out = &out, .err = &err, .environment = {{"TERRACE_STORAGE_DISK_PATH", data_}}};
    int code = RunCli(arguments, &io);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  std::string data_ = ::testing::TempDir() + "/terrace_pull_data";
  std::string tiny_ = std::string(TERRACE_TEST_DATA) + "/golden/arch/qwen3.gguf";
  std::string out_, err_;
};

TEST_F(PullCommandTest, FetchesIntoTheStoreAndTellsWhatItGot) {
  ASSERT_EQ(Run({"pull", tiny_, "--name", "small", "--json"}), 0) << err_;
  auto result = boost::json::parse(out_).as_object();
  EXPECT_EQ(result["name"], "small");
  EXPECT_EQ(result["version"], "1");
  EXPECT_EQ(result["already_there"], false);
  EXPECT_EQ(result["bytes"], std::filesystem::file_size(tiny_));
  EXPECT_EQ(result["files"].as_array()[0].as_object()["sha256"].as_string().size(), 64u);
  ASSERT_EQ(Run({"pull", tiny_, "--name", "small"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("small@1"), HasSubstr("already")));

  ASSERT_EQ(Run({"list"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("small"));
  ASSERT_EQ(Run({"show", "small"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("qwen3"));
  ASSERT_EQ(Run({"show", "small@1"}), 0) << err_;
  EXPECT_EQ(Run({"show", "small@2"}), 1);
  EXPECT_THAT(err_, HasSubstr("no version '2'"));
}

TEST_F(PullCommandTest, ErrorsSayWhatIsWrong) {
  EXPECT_EQ(Run({"pull"}), 2);
  EXPECT_EQ(Run({"pull", data_ + "/absent.gguf"}), 1);
  EXPECT_THAT(err_, HasSubstr("absent.gguf"));
  EXPECT_EQ(Run({"pull", tiny_, "--sha256", std::string(64, '0')}), 1);
  EXPECT_THAT(err_, HasSubstr("SHA-256"));
  EXPECT_EQ(Run({"pull", tiny_, "--name", "../x"}), 1);
  EXPECT_THAT(err_, HasSubstr("not a model's name"));
  EXPECT_EQ(Run({"pull", "hf:owner"}), 1);
  EXPECT_THAT(err_, HasSubstr("hf:owner/name"));
}

}  // namespace
}  // namespace terrace::cli
