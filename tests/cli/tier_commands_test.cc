// terrace replay and terrace doctor: what they print, and what they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using ::testing::HasSubstr;

class TierCommandsTest : public ::testing::Test {
 protected:
  TierCommandsTest() {
    std::string name = (fs::temp_directory_path() / "terrace-commands-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    setenv("no_proxy", "127.0.0.1", 1);
  }
  ~TierCommandsTest() override { fs::remove_all(folder_); }

  int Run(const std::vector<std::string>& arguments) {
    std::istringstream in;
    std::ostringstream out, err;
    Io io;
    io.in = &in;
    io.out = &out;
    io.err = &err;
    const int status = RunCli(arguments, &io);
    out_ = out.str();
    err_ = err.str();
    return status;
  }

  std::string folder_, out_, err_;
};

TEST_F(TierCommandsTest, ReplayComparesPoliciesOnARecordedTrace) {
  const std::string path = folder_ + "/trace.csv";
  std::ofstream(path)
      << "seconds,model,prefill_ms,decode_ms\n0,a,100,50\n10,b,100,50\n20,a,100,50\n";
  ASSERT_EQ(Run({"replay", path, "--budget", "1GiB", "--link", "1GiB", "--json"}), 0) << err_;
  const json::array rows = json::parse(out_).as_array();
  ASSERT_EQ(rows.size(), 5u);
  for (const json::value& row : rows) {
    EXPECT_EQ(row.at("requests").to_number<int>(), 3);
    if (row.at("policy") == "static") {
      EXPECT_EQ(row.at("refused").to_number<int>(), 1);
    } else {
      EXPECT_EQ(row.at("switches").to_number<int>(), 3) << row.at("policy").as_string();
    }
  }
  ASSERT_EQ(Run({"replay", path, "--policy", "lru", "--budget", "2GiB"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("lru"));
  EXPECT_THAT(out_, HasSubstr("####"));
}

TEST_F(TierCommandsTest, ReplaySaysWhatIsWrong) {
  EXPECT_EQ(Run({"replay", folder_ + "/none.csv"}), 1);
  EXPECT_THAT(err_, HasSubstr("none.csv"));
  EXPECT_EQ(Run({"replay", "--policy", "best", "--seconds", "10"}), 1);
  EXPECT_THAT(err_, HasSubstr("use lru, lru-k, lfu or cost"));
  EXPECT_EQ(Run({"replay", "--rate", "-1"}), 1);
  std::ofstream(folder_ + "/bad.csv") << "1,a\n";
  EXPECT_EQ(Run({"replay", folder_ + "/bad.csv"}), 1);
  EXPECT_THAT(err_, HasSubstr("line 1"));
}

TEST_F(TierCommandsTest, DoctorMeasuresAndLeavesNothing) {
  ASSERT_EQ(Run({"doctor", "--quick", "--json", "--storage.disk.path", folder_ + "/data",
                 "--object", "http://127.0.0.1:9/m.gguf"}),
            0)
      << err_;
  std::set<std::string> seen;
  const json::value findings = json::parse(out_);
  for (const json::value& finding : findings.as_array()) {
    seen.insert(std::string(finding.at("what").as_string()));
    const std::string verdict(finding.at("verdict").as_string());
    EXPECT_TRUE(verdict == "good" || verdict == "note" || verdict == "poor") << verdict;
    EXPECT_FALSE(finding.at("value").as_string().empty());
    if (finding.at("what") == "http://127.0.0.1:9/m.gguf") {
      EXPECT_EQ(verdict, "poor");
      EXPECT_FALSE(finding.at("advice").as_string().empty());
    }
  }
  for (const char* what : {"processor", "NUMA nodes", "memory copy", "disk, sequential",
                           "disk, random 4 KiB", "disk, latency", "http://127.0.0.1:9/m.gguf"}) {
    EXPECT_TRUE(seen.contains(what)) << what;
  }
  EXPECT_TRUE(fs::is_empty(folder_ + "/data"));
}

}  // namespace
}  // namespace terrace::cli
