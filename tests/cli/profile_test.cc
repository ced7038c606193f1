// What `terrace profile` and `terrace verify stability` are made of: stacks of perf, timelines of
// what a server shows, lines through figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

#include "base/random.h"
#include "cli/load/growth.h"
#include "cli/profile/stacks.h"
#include "cli/profile/timeline.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StacksTest, AreReadFromPerfsOutput) {
  const Stacks stacks = ParsePerfScript(
      "terrace\n"
      "\t    55d terrace::ops::(anonymous namespace)::Dot(float const*, int)\n"
      "\t    55e terrace::engine::Engine::Step(int)\n"
      "\t    55f main\n\n"
      "terrace\n"
      "\t    55d terrace::ops::(anonymous namespace)::Dot(float const*, int)\n"
      "\t    55e terrace::engine::Engine::Step(int)\n"
      "\t    55f main\n\n"
      "io-0 \n"
      "\t7fff [unknown]\n\n"
      "empty\n\n");
  ASSERT_EQ(stacks.size(), 3u);
  const std::vector<std::string> stack = {"terrace", "main", "terrace::engine::Engine::Step",
                                          "terrace::ops::Dot"};
  ASSERT_TRUE(stacks.contains(stack)) << FoldedText(stacks);
  EXPECT_EQ(stacks.at(stack), 2u);
  EXPECT_TRUE(stacks.contains({"io-0", "[unknown]"}));
  EXPECT_THAT(FoldedText(stacks),
              HasSubstr("terrace;main;terrace::engine::Engine::Step;terrace::ops::Dot 2\n"));
  const json::object tree = FlameTree(stacks, "all");
  EXPECT_EQ(tree.at("value").to_number<int>(), 4);
  EXPECT_EQ(tree.at("children").as_array().size(), 3u);
  EXPECT_TRUE(ParsePerfScript("").empty());
}

json::object State(int64_t clock_us, int first, int second, int64_t moved) {
  return json::parse(
             "{\"clock_us\": " + std::to_string(clock_us) +
             ", \"models\": [{\"name\": \"other\", \"segments\": [[\"x\", 1, 3]]}, {\"name\": "
             "\"m\", \"segments\": [[\"blk.0\", 100, " +
             std::to_string(first) + "], [\"head\", 50, " + std::to_string(second) +
             "]]}], \"tiers\": [{\"tier\": \"device\", \"used_bytes\": 7}], \"links\": [{\"name\": "
             "\"disk\", \"bytes\": " +
             std::to_string(moved) + "}]}")
      .as_object();
}

TEST(TimelineTest, SegmentsAreThereFromWhenTheyCameToWhenTheyWent) {
  Timeline timeline("m");
  EXPECT_FALSE(timeline.AddState({}).ok());
  ASSERT_TRUE(timeline.AddState(State(1000, 0, 0, 0)).ok());
  ASSERT_TRUE(timeline.AddState(State(2000, 1, 0, 50)).ok());
  ASSERT_TRUE(timeline.AddState(State(3000, 3, 1, 150)).ok());
  ASSERT_TRUE(timeline.AddState(State(4000, 3, 2, 150)).ok());
  timeline.AddToken(3500);
  ASSERT_TRUE(
      timeline
          .AddTrace("{\"traceEvents\":[{\"name\":\"/v1/x\",\"ph\":\"X\",\"ts\":1500,\"dur\":"
                    "2400},{\"name\":\"prefill\",\"ph\":\"X\",\"ts\":1600,\"dur\":1000},{"
                    "\"name\":\"swap\",\"ph\":\"X\",\"ts\":1600,\"dur\":700}]}")
          .ok());
  EXPECT_FALSE(timeline.AddTrace("nonsense").ok());
  timeline.Finish();
  std::vector<std::string> said;
  for (const Timeline::Span& span : timeline.spans()) {
    said.push_back(span.name + " " + span.kind + " " + std::to_string(span.start_us) + "-" +
                   std::to_string(span.end_us));
  }
  EXPECT_THAT(said, ElementsAre("/v1/x request 1500-3900", "prefill prefill 1600-2600",
                                "swap swap 1600-2300", "blk.0 arriving 2000-3000",
                                "head arriving 3000-4000", "blk.0 used 3000-4000"));
  EXPECT_EQ(timeline.TookUs("prefill"), 1000);
  const json::object page = timeline.PageJson();
  EXPECT_EQ(page.at("begin").to_number<int64_t>(), 1500);
  EXPECT_EQ(page.at("end").to_number<int64_t>(), 3900);
  // 100 bytes in a millisecond.
  EXPECT_EQ(page.at("counters").at("disk bytes/s").as_array()[1].as_array()[1].to_number<double>(),
            100'000);
  const json::value trace = json::parse(timeline.PerfettoJson());
  for (const json::value& event : trace.at("traceEvents").as_array()) {
    EXPECT_TRUE(event.as_object().contains("ph") && event.as_object().contains("pid"));
  }
}

TEST(GrowthTest, ARiseBeyondTheBoundIsSeenInNoise) {
  constexpr uint64_t kSeed = 3;
  Random random(kSeed);
  Growth growth(
      {{"steady", 0.05, 4, false}, {"leak", 0.05, 4, false}, {"memory", 0, 1 << 20, true}});
  for (int look = 0; look < 200; ++look) {
    const double noise = random.Uniform() * 6;
    // What happens in the first quarter does not count: the third doubles there.
    growth.Add(look * 1'000'000,
               {100 + noise, 100 + noise + look * 0.1, look < 40 ? (look + 1) * 1e6 : 40e6});
  }
  const std::vector<Growth::Row> rows = growth.Rows();
  EXPECT_TRUE(rows[0].holds) << rows[0].rise << " seed " << kSeed;
  EXPECT_FALSE(rows[1].holds) << rows[1].rise << " seed " << kSeed;
  EXPECT_NEAR(rows[1].rise - rows[0].rise, 0.1 * 149, 1e-6) << "three quarters of 200 looks";
  EXPECT_TRUE(rows[2].holds);
  EXPECT_THAT(growth.Text(), HasSubstr("GROWS"));
  EXPECT_EQ(growth.Json().size(), 3u);
}

}  // namespace
}  // namespace terrace::cli
