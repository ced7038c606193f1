#include "obs/trace.h"

#include <gtest/gtest.h>

#include <string>

#include "obs/log_ring.h"

namespace terrace {
namespace {

constexpr std::string_view kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";

TEST(TraceContext, ContinuesWhatIsWellFormed) {
  const std::string header = "00-" + std::string(kTrace) + "-00f067aa0ba902b7-01";
  const TraceContext context = TraceContext::Continue(header, 1, 2);
  EXPECT_EQ(context.trace_id, kTrace);
  EXPECT_EQ(context.parent_id, "00f067aa0ba902b7");
  EXPECT_EQ(context.span_id.size(), 16u);
  EXPECT_EQ(context.Header(), "00-" + std::string(kTrace) + "-" + context.span_id + "-01");
  EXPECT_EQ(TraceContext::Continue("01" + header.substr(2) + "-more", 1, 2).trace_id, kTrace);
}

TEST(TraceContext, BeginsANewTraceForAnythingElse) {
  const std::string good = "00-" + std::string(kTrace) + "-00f067aa0ba902b7-01";
  std::string upper = good, zero = good;
  upper[3] = 'F';
  zero.replace(3, 32, std::string(32, '0'));
  for (const std::string& bad : {std::string(), good.substr(1), good + "-x", upper, zero,
                                 "ff" + good.substr(2), std::string(500, 'a')}) {
    const TraceContext context = TraceContext::Continue(bad, 1, 2);
    EXPECT_NE(context.trace_id, kTrace) << bad;
    EXPECT_EQ(context.trace_id.size(), 32u);
    EXPECT_TRUE(context.parent_id.empty());
  }
  EXPECT_NE(TraceContext::Continue("", 1, 2).trace_id, TraceContext::Continue("", 1, 3).trace_id);
}

TEST(TraceBuffer, KeepsTheLastAndShowsTheirParts) {
  TraceBuffer buffer(2);
  for (int i = 0; i < 3; ++i) {
    buffer.Add({.context = TraceContext::Continue("", 1, static_cast<uint64_t>(i)),
                .request_id = "r\"" + std::to_string(i),
                .name = "/v1/x",
                .start_us = 100,
                .end_us = 200,
                .queue_us = 10,
                .prefill_us = 30,
                .decode_us = 50});
  }
  EXPECT_EQ(buffer.size(), 2u);
  const std::string json = buffer.PerfettoJson();
  EXPECT_EQ(json.find("r\\\"0"), std::string::npos);
  EXPECT_NE(json.find("r\\\"2"), std::string::npos);
  EXPECT_NE(json.find("\"name\":\"queue\",\"cat\":\"request\",\"ph\":\"X\",\"pid\":1,\"tid\":1,"
                      "\"ts\":110,\"dur\":10"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find("\"ts\":150,\"dur\":50"), std::string::npos);
  EXPECT_EQ(buffer.PerfettoJson("none").find("/v1/x"), std::string::npos);
}

TEST(LogRing, PassesLinesOnAndKeepsTheLast) {
  ManualClock clock;
  LogRing ring(std::make_unique<NullLogger>(), &clock, 2);
  ring.Log(LogLevel::kInfo, "one", {});
  ring.Log(LogLevel::kInfo, "two", {});
  ring.Log(LogLevel::kError, "three", {{"n", 3}});
  uint64_t last = 0;
  const std::vector<std::string> lines = ring.Lines(0, &last);
  EXPECT_EQ(last, 3u);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("three"), std::string::npos);
  EXPECT_EQ(ring.Lines(2, &last).size(), 1u);
  EXPECT_EQ(ring.Lines(99, &last).size(), 0u);
}

}  // namespace
}  // namespace terrace
