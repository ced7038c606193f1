#include "tier/trace_replay.h"

#include <string>

#include <gtest/gtest.h>

#include "base/units.h"

namespace terrace::tier {
namespace {

ReplayOptions Options(const std::string& policy) {
  ReplayOptions options;
  options.policy = policy;
  options.budget_bytes = 5 * kGiB;
  options.model_bytes = kGiB;
  options.link_bytes_per_s = static_cast<double>(kGiB);
  options.ttft_goal_us = 2'000'000;
  return options;
}

TEST(TraceTest, ReadsLinesInAnyOrderAndNamesWhatIsWrong) {
  auto trace =
      ParseTrace("seconds,model,prefill_ms,decode_ms\n2, b ,10,20\n# comment\n\n1,a,5,0.5\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->models, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(trace->requests[0].at_us, 1'000'000);
  EXPECT_EQ(trace->requests[0].model, 1u);
  EXPECT_EQ(trace->requests[0].decode_us, 500);
  EXPECT_EQ(trace->requests[1].prefill_us, 10'000);
  for (const char* bad : {"1,a,5", "x,a,5,5\n", "1,,5,5", "1,a,-5,5", "1,a,5,5,5", "1,a,nan,5"}) {
    auto refused = ParseTrace(std::string("0,a,1,1\n") + bad);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_NE(refused.status().message().find("line 2"), absl::string_view::npos) << bad;
  }
}

TEST(TraceTest, AMadeUpTraceFollowsItsShape) {
  TraceShape shape;
  shape.requests_per_s = 2;
  shape.seconds = 20'000;
  const Trace trace = MakeTrace(shape);
  EXPECT_NEAR(static_cast<double>(trace.requests.size()), 40'000, 5 * 200);  // 5 sigma
  std::vector<double> counts(shape.models);
  for (const TraceRequest& request : trace.requests) counts[request.model] += 1;
  EXPECT_NEAR(counts[0] / counts[1], 2, 0.2);
  EXPECT_NEAR(counts[0] / counts[9], 10, 1.5);
}

// Worked by hand: one device for one model of 1 GiB over a link of 1 GiB/s.
TEST(ReplayTest, CountsWhatASmallTraceCosts) {
  Trace trace;
  trace.models = {"a", "b"};
  trace.requests = {{0, 0, 100'000, 50'000},           // cold: first token at 1.0 s, end 1.05
                    {1'100'000, 0, 100'000, 50'000},   // hot: 0.1 s, end at 1.25
                    {1'200'000, 1, 100'000, 50'000}};  // waits 0.05 s, cold: 1.05 s
  ReplayOptions options = Options("lru");
  options.budget_bytes = kGiB;
  options.ttft_goal_us = 1'020'000;
  const ReplayResult result = Replay(trace, options).value();
  EXPECT_EQ(result.requests, 3u);
  EXPECT_EQ(result.switches, 2u);
  EXPECT_EQ(result.good, 2u);
  EXPECT_EQ(result.moved_bytes, 2.0 * kGiB);
  EXPECT_EQ(result.ttft_p50_us, 1'000'000);
}

TEST(ReplayTest, CostServesHalfAsMuchAgainAsRecencyAtTheEdge) {
  TraceShape shape;
  shape.requests_per_s = 1.2;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    shape.seed = seed;
    const Trace trace = MakeTrace(shape);
    const ReplayResult lru = Replay(trace, Options("lru")).value();
    const ReplayResult cost = Replay(trace, Options("cost")).value();
    EXPECT_GE(cost.goodput, 1.5 * lru.goodput) << "seed " << seed;
    EXPECT_GE(cost.useful_share, 0.95);
    EXPECT_LT(cost.switches, lru.switches);
  }
}

TEST(ReplayTest, BoundModelsAreServedHotAndTheOthersNotAtAll) {
  const Trace trace = MakeTrace({});
  const ReplayResult result = Replay(trace, Options("static")).value();
  EXPECT_EQ(result.switches, 0u);
  EXPECT_GT(result.refused, 0u);
  EXPECT_LT(result.good, result.requests);
}

TEST(ReplayTest, AThousandModelsOnAHundredDevices) {
  TraceShape shape;
  shape.models = 1000;
  shape.requests_per_s = 50;
  shape.seconds = 60;
  ReplayOptions options = Options("cost");
  options.devices = 100;
  options.segments = 8;
  const ReplayResult result = Replay(MakeTrace(shape), options).value();
  EXPECT_GT(result.good, result.requests / 2);
}

TEST(ReplayTest, RefusesWhatCannotBe) {
  const Trace trace = MakeTrace({.seconds = 10});
  EXPECT_FALSE(Replay(trace, Options("best")).ok());
  ReplayOptions options = Options("lru");
  options.model_bytes = 6 * kGiB;
  EXPECT_FALSE(Replay(trace, options).ok());
  EXPECT_EQ(Replay(Trace{}, Options("cost")).value().requests, 0u);
}

}  // namespace
}  // namespace terrace::tier
