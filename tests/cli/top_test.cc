// terrace top: what it makes of a server's state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "../weights/http_testing.h"
#include "cli/cli.h"

namespace terrace::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TopTest : public ::testing::Test {
 protected:
  TopTest() { setenv("no_proxy", "127.0.0.1", 1); }

  int Run(const std::string& state) {
    weights::HttpServer server;
    server.Set("/admin/state", {.body = state});
    std::istringstream in;
    std::ostringstream out, err;
    Io io{.in = &in, .out = &out, .err = &err};
    const int code = RunCli({"top", "--once", "--url", server.url()}, &io);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  std::string out_, err_;
};

// As while a model comes: rates are no whole numbers.
TEST_F(TopTest, ShowsRatesAndWhatIsStrange) {
  ASSERT_EQ(Run(R"({"version": "1.2", "device": "cpu", "clock_us": 5,
      "process": {"uptime_s": 61.7, "rss_bytes": 1048576},
      "totals": {"generated_tokens": 3, "model_switches": 4},
      "sensors": {"utilisation": 0.5, "from_disk_bytes_per_s": 1610612736.25, "running": 2,
                  "waiting": -1, "oldest_wait_us": 1.5e6},
      "tiers": [{"tier": "device", "used_bytes": 1e30, "budget_bytes": 2147483648}],
      "models": [{"name": "m", "state": "loading", "bytes": 1073741824, "resident_bytes": 4096,
                  "running": 1, "waiting": 0, "segments": [[0, 1, 2], [0, 1, 1], [0, 1, 0]]}],
      "links": [{"name": "disk", "bytes": 1024, "queued": 7}]})"),
            0)
      << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("terrace 1.2 on cpu, up 61 s, 1.0 MiB in memory"),
                          HasSubstr("busy 50%, 1.5 GiB/s from disk, 2 running, 0 waiting, the "
                                    "longest for 1.5 s"),
                          HasSubstr("#+."), HasSubstr("7 queued")));
}

TEST_F(TopTest, SaysThatAnotherProgramAnswers) {
  for (const char* state : {"{}", "[]", R"({"process": 1, "totals": {}})"}) {
    EXPECT_EQ(Run(state), 1) << state;
    EXPECT_THAT(err_, HasSubstr("is no admin port of Terrace")) << state;
  }
}

}  // namespace
}  // namespace terrace::cli
