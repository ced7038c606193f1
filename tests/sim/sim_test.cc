#include "sim_world.h"

#include <gtest/gtest.h>

namespace terrace::sim {
namespace {

#ifndef TERRACE_PLANTED

TEST(SimTest, SeedsRunClean) {
  SimReport sum;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SimOptions options;
    options.seed = seed;
    const SimReport report = RunSimulation(options);
    ASSERT_EQ(report.failure, "") << "seed " << seed;
    sum.served += report.served;
    sum.faults += report.faults;
    sum.evictions += report.evictions;
    sum.checksum_failures += report.checksum_failures;
  }
  // The worlds are neither idle nor always fair.
  EXPECT_GT(sum.served, 2'000u);
  EXPECT_GT(sum.evictions, 500u);
  EXPECT_GT(sum.faults, 500u);
  EXPECT_GT(sum.checksum_failures, 100u);
}

TEST(SimTest, ASeedReplaysExactly) {
  SimOptions options;
  options.seed = 17;
  const SimReport first = RunSimulation(options);
  const SimReport second = RunSimulation(options);
  EXPECT_EQ(first.steps, second.steps);
  EXPECT_EQ(first.served, second.served);
  EXPECT_EQ(first.faults, second.faults);
}

#else

// This program holds a fault on purpose (see tier/planted.h): the simulator must find it.
TEST(PlantedTest, IsCaughtWithin200Seeds) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimOptions options;
    options.seed = seed;
    const SimReport report = RunSimulation(options);
    if (report.failure.empty()) continue;
    std::printf("caught at seed %d: %s\n", static_cast<int>(seed), report.failure.c_str());
    return;
  }
  FAIL() << "200 seeds did not find the planted fault";
}

#endif

}  // namespace
}  // namespace terrace::sim
