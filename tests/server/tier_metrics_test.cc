// What the tier manager counts, as it is shown in the metrics.
#include "server/tier_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"
#include "obs/metrics.h"
#include "server/engine_view.h"

namespace terrace::server {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TierMetrics, TellWhoseWeightsWereHeldBackForWhom) {
  RealClock clock;
  tier::TierSnapshot snapshot;
  EngineView view({.clock = &clock,
                   .queue = [] { return scheduler::SchedulerState(); },
                   .tiers = [&snapshot] { return snapshot; }});
  Metrics metrics;
  EXPECT_TRUE(UpdateTierMetrics(&view, &metrics));
  EXPECT_THAT(metrics.Render(), Not(HasSubstr("terrace_held_load_seconds_total{")));
  EXPECT_THAT(metrics.Render(), HasSubstr("terrace_load_limit_bytes_per_second 0\n"));

  const std::string held = R"(terrace_held_load_seconds_total{by="a",model="b"} )";
  snapshot.load_limit_bytes_per_s = 64e6;
  for (const auto& [us, seconds] : {std::pair(2'500'000, "2.5\n"), {4'000'000, "4\n"}}) {
    snapshot.held_loads = {{"b", "a", us}};
    EXPECT_TRUE(UpdateTierMetrics(&view, &metrics));
    EXPECT_THAT(metrics.Render(), HasSubstr(held + seconds));
  }
  EXPECT_THAT(metrics.Render(), HasSubstr("terrace_load_limit_bytes_per_second 64000000\n"));
}

}  // namespace
}  // namespace terrace::server
