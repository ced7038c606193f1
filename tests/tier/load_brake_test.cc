#include "tier/load_brake.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "base/units.h"

namespace terrace::tier {
namespace {

constexpr uint64_t kRead = 4 * kMiB;

// A machine on which a step takes `alone_us` and `us_per_byte` more for what moves meanwhile, and a
// load that always has more to read, over a link of `link_bytes_per_us`.
struct Machine {
  double alone_us = 20'000;
  double us_per_byte = 0.3e-3;
  double link_bytes_per_us = 2000;
  double noise = 0;
  double lingers = 0;  // the share of its cost that is paid in the next step
  bool loading = true;
  Random random{7};

  int64_t now_us = 1'000'000;
  uint64_t moved = 0;
  double left_us = 0;

  // Returns what the step took.
  int64_t Step(LoadBrake& brake, int32_t rows = 1) {
    brake.Begin({.model = 1, .rows = rows}, now_us);
    double bytes = 0;
    double us = alone_us * (1 + noise * (random.Uniform() - 0.5));
    while (loading) {
      if (brake.Holds(now_us)) {
        brake.Held();
        break;
      }
      const double with = us + (bytes + kRead) * us_per_byte;
      if (bytes + kRead > link_bytes_per_us * with || bytes > 1e9) break;  // the link is busy
      brake.Started(kRead, true);
      brake.Ended(kRead, true);
      bytes += kRead;
    }
    moved += static_cast<uint64_t>(bytes);
    const double cost = bytes * us_per_byte;
    us += cost * (1 - lingers) + left_us;
    left_us = cost * lingers;
    now_us += static_cast<int64_t>(us);
    brake.End(static_cast<int64_t>(us), now_us);
    now_us += 50;
    return static_cast<int64_t>(us);
  }
  double MeanUs(LoadBrake& brake, int steps) {
    double sum = 0;
    for (int i = 0; i < steps; ++i) sum += static_cast<double>(Step(brake));
    return sum / steps;
  }
};

// Steps alone, then beside loads: first so many that a brake of a tenth learns what those cost.
double MeanOnceLearnt(Machine* machine) {
  LoadBrake brake(0.1);
  machine->loading = false;
  machine->MeanUs(brake, 20);
  machine->loading = true;
  machine->MeanUs(brake, 1000);
  return machine->MeanUs(brake, 1000);
}

TEST(LoadBrakeTest, StepsGrowByTheShareAtMost) {
  for (const double us_per_byte : {0.05e-3, 0.2e-3, 0.5e-3}) {
    for (const double alone_us : {2'000.0, 20'000.0, 200'000.0}) {
      SCOPED_TRACE(testing::Message() << us_per_byte << " us a byte, steps of " << alone_us);
      Machine machine{.alone_us = alone_us, .us_per_byte = us_per_byte};
      LoadBrake brake(0.1);
      machine.loading = false;
      machine.MeanUs(brake, 20);
      machine.loading = true;
      machine.MeanUs(brake, 2000);  // it learns
      const double mean = machine.MeanUs(brake, 200);
      EXPECT_LE(mean, alone_us * 1.1);
      // And most of what it may move is moved: a third is kept back, and a ninth of the steps.
      EXPECT_GE(mean, alone_us * 1.03);
      EXPECT_NEAR(brake.us_per_byte(), us_per_byte, us_per_byte * 0.2);
    }
  }
}

TEST(LoadBrakeTest, NoiseDoesNotLeadItAstray) {
  Machine machine{.noise = 0.3};
  const double mean = MeanOnceLearnt(&machine);
  EXPECT_LE(mean, machine.alone_us * 1.12);
  EXPECT_GE(mean, machine.alone_us * 1.03);
}

// The caches are cold after a load.
TEST(LoadBrakeTest, ACostThatIsPaidLaterIsSeen) {
  Machine machine{.lingers = 0.5};
  const double mean = MeanOnceLearnt(&machine);
  EXPECT_LE(mean, machine.alone_us * 1.1);
  EXPECT_GE(mean, machine.alone_us * 1.03);
}

// Loads at full speed while nobody computes say nothing of what they cost.
TEST(LoadBrakeTest, WhatMovesInPausesIsNotCounted) {
  Machine machine;
  LoadBrake brake(0.1);
  machine.loading = false;
  machine.MeanUs(brake, 20);
  machine.loading = true;
  machine.MeanUs(brake, 100);
  for (int i = 0; i < 20; ++i) {
    brake.Pause();
    for (int k = 0; k < 50; ++k) {
      brake.Started(kRead, true);
      brake.Ended(kRead, true);
    }
    machine.MeanUs(brake, 20);
  }
  EXPECT_NEAR(brake.us_per_byte(), machine.us_per_byte, machine.us_per_byte * 0.2);
}

TEST(LoadBrakeTest, WhereLoadsCostNothingTheyMoveAsFastAsTheLink) {
  Machine machine{.us_per_byte = 0};
  LoadBrake brake(0.1);
  machine.MeanUs(brake, 400);
  machine.moved = 0;
  const int64_t since_us = machine.now_us;
  machine.MeanUs(brake, 100);
  const double rate =
      static_cast<double>(machine.moved) / static_cast<double>(machine.now_us - since_us);
  EXPECT_GE(rate, 0.85 * machine.link_bytes_per_us);
}

TEST(LoadBrakeTest, LoadsGetOnHoweverMuchTheyCost) {
  Machine machine{.us_per_byte = 20e-3};
  LoadBrake brake(0.1);
  machine.MeanUs(brake, 400);
  machine.moved = 0;
  for (int i = 0; i < 200; ++i) machine.Step(brake);
  // 64 MB for each second of computing, whatever the steps come to.
  EXPECT_GE(static_cast<double>(machine.moved), 200 * machine.alone_us * 64 * 0.7);
}

TEST(LoadBrakeTest, HoldsNothingBackUnlessSomebodyDecodes) {
  LoadBrake off(0);
  off.Begin({.model = 1, .rows = 1}, 0);
  EXPECT_FALSE(off.Holds(0));
  EXPECT_EQ(off.bytes_per_s(0), 0);

  LoadBrake brake(0.1);
  EXPECT_FALSE(brake.Holds(0));
  brake.Started(kRead, true);  // before anyone computes it costs nothing
  brake.Begin({.model = 1, .rows = 1}, 0);
  EXPECT_TRUE(brake.Holds(0)) << "of the first step nothing is known yet";
  EXPECT_FALSE(brake.Holds(2'000'000)) << "nothing was heard of it for long";
  brake.Lift();
  EXPECT_FALSE(brake.Holds(0));
  brake.Begin({.model = 1, .rows = 1, .gives_way = true}, 100);
  EXPECT_FALSE(brake.Holds(100));
  brake.Begin({.model = 1, .rows = 1}, 200);
  EXPECT_TRUE(brake.Holds(200));
  brake.End(10'000, 10'200);
  EXPECT_TRUE(brake.Holds(10'200)) << "between two steps as well";
  brake.Pause();
  EXPECT_FALSE(brake.Holds(10'200));
  EXPECT_EQ(brake.bytes_per_s(10'200), 0);
}

TEST(LoadBrakeTest, WhatIsWaitedForIsNotPaidFor) {
  LoadBrake brake(0.1);
  auto step = [&](int64_t at_us) {
    brake.Begin({.model = 1, .rows = 1}, at_us);
    brake.End(20'000, at_us + 20'000);
  };
  step(0);
  brake.Begin({.model = 1, .rows = 1}, 20'000);
  ASSERT_FALSE(brake.Holds(20'000));
  brake.Started(100 * kRead, false);
  EXPECT_FALSE(brake.Holds(20'000));
  brake.Started(100 * kRead, true);
  EXPECT_TRUE(brake.Holds(20'000));
}

}  // namespace
}  // namespace terrace::tier
