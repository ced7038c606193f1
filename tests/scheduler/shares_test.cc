// Who gives way to whom, and how much guests may add to the time of others.
#include "scheduler/shares.h"

#include <gtest/gtest.h>

namespace terrace::scheduler {
namespace {

constexpr int64_t kMs = 1000;
constexpr int64_t kSecond = 1'000'000;

TEST(ComputeShares, OneTenantAloneNeverGivesWay) {
  ComputeShares shares;
  shares.See("a", 1, kSecond);
  shares.Charge("a", 1e9, kSecond);
  EXPECT_FALSE(shares.IsGuest("a", 1, kSecond));
}

TEST(ComputeShares, WhoHasHadMoreThanItsShareGivesWayUntilSharesAreEven) {
  ComputeShares shares;
  int64_t now = kSecond;
  shares.See("greedy", 1, now);
  shares.See("modest", 1, now);
  shares.Charge("greedy", 3e6, now);
  EXPECT_TRUE(shares.IsGuest("greedy", 1, now));
  EXPECT_FALSE(shares.IsGuest("modest", 1, now));
  shares.Charge("modest", 2.9e6, now);
  EXPECT_FALSE(shares.IsGuest("greedy", 1, now));
  EXPECT_FALSE(shares.IsGuest("modest", 1, now));
  shares.Charge("modest", 2e6, now);
  EXPECT_TRUE(shares.IsGuest("modest", 1, now)) << "now it is the other way round";
  // The other is remembered for a moment after its last request, then no longer.
  now += ComputeShares::kPresenceUs;
  shares.See("modest", 1, now);
  EXPECT_TRUE(shares.IsGuest("modest", 1, now));
  EXPECT_FALSE(shares.IsGuest("modest", 1, now + 1));
}

TEST(ComputeShares, WhoComesBeginsLevelWithThoseThere) {
  ComputeShares shares;
  shares.See("modest", 1, kSecond);
  EXPECT_FALSE(shares.Shared(kSecond));
  shares.Charge("modest", 4e6, kSecond);
  shares.See("greedy", 1, kSecond);
  EXPECT_TRUE(shares.Shared(kSecond));
  EXPECT_FALSE(shares.IsGuest("modest", 1, kSecond)) << "it used what nobody else wanted";
  EXPECT_EQ(shares.Used("greedy", kSecond), 4e6);
  shares.Charge("greedy", 0.3e6, kSecond);
  EXPECT_TRUE(shares.IsGuest("greedy", 1, kSecond));
  EXPECT_FALSE(shares.IsGuest("modest", 1, kSecond));
}

TEST(ComputeShares, ALongPromptGivesWayFromItsBeginning) {
  ComputeShares shares;
  for (const char* tenant : {"a", "b"}) shares.See(tenant, 1, kSecond);
  for (const char* tenant : {"a", "b"}) shares.Charge(tenant, 1e6, kSecond);
  shares.Promise("a", 30e6);
  shares.Promise("b", 2'000);
  EXPECT_TRUE(shares.IsGuest("a", 1, kSecond));
  shares.Charge("b", 2 * ComputeShares::kMostPromiseUs, kSecond);
  EXPECT_FALSE(shares.IsGuest("a", 1, kSecond)) << "for so long only";
  EXPECT_TRUE(shares.IsGuest("b", 1, kSecond));
  shares.Promise("b", 30e6);
  shares.Charge("a", 2 * ComputeShares::kMostPromiseUs, kSecond);
  EXPECT_FALSE(shares.IsGuest("a", 1, kSecond)) << "both have long ones";
}

TEST(ComputeShares, SharesAreByWeight) {
  ComputeShares shares;
  shares.SetWeights({{"large", 3.0}});
  shares.See("large", 1, kSecond);
  shares.See("small", 1, kSecond);
  shares.Charge("large", 2.9e6, kSecond);
  shares.Charge("small", 1e6, kSecond);
  EXPECT_FALSE(shares.IsGuest("large", 1, kSecond));
  EXPECT_FALSE(shares.IsGuest("small", 1, kSecond));
  shares.Charge("small", 1e6, kSecond);
  EXPECT_TRUE(shares.IsGuest("small", 1, kSecond));
}

TEST(ComputeShares, WorseBandsGiveWayToBetterOnesWhateverTheirShare) {
  ComputeShares shares;
  shares.See("a", 0, kSecond);
  shares.Charge("a", 9e6, kSecond);
  shares.See("b", 1, kSecond);
  EXPECT_TRUE(shares.IsGuest("b", 1, kSecond));
  EXPECT_FALSE(shares.IsGuest("a", 0, kSecond)) << "who is worse does not count against it";
  EXPECT_TRUE(shares.IsGuest("a", 1, kSecond)) << "its own request of a worse class";
}

TEST(ComputeShares, WhatWasComputedIsForgottenInTime) {
  ComputeShares shares;
  shares.See("a", 1, kSecond);
  shares.Charge("a", 1e6, kSecond);
  EXPECT_DOUBLE_EQ(shares.Used("a", kSecond), 1e6);
  EXPECT_NEAR(shares.Used("a", kSecond + ComputeShares::kMemoryUs), 1e6 / 2.718281828, 1);
  EXPECT_EQ(shares.Used("nobody", kSecond), 0);
}

TEST(ComputeShares, GuestsAddTheirPartOfTheOthersTimeAndNoMore) {
  ComputeShares shares;
  EXPECT_FALSE(shares.GuestsMayRun(false, kSecond)) << "nothing has been earned yet";
  double others = 0, guests = 0;
  for (int step = 0; step < 10'000; ++step) {
    // A step of the others takes 10 ms, one with guests in it 4 ms more.
    const double added = shares.GuestsMayRun(false, kSecond) ? 4'000 : 0;
    shares.OnStep(10'000, added);
    others += 10'000;
    guests += added;
  }
  EXPECT_NEAR(guests / others, ComputeShares::kGuestShare, 0.005);
  // Those who cost next to nothing are always welcome.
  int joined = 0;
  for (int step = 0; step < 1000; ++step) {
    joined += shares.GuestsMayRun(false, kSecond);
    shares.OnStep(10'000, shares.GuestsMayRun(false, kSecond) ? 100 : 0);
  }
  EXPECT_GT(joined, 900);
}

TEST(ComputeShares, AStepOfGuestsAloneIsPaidInFull) {
  ComputeShares shares;
  for (int step = 0; step < 10; ++step) shares.OnStep(10 * kMs, 0);
  ASSERT_TRUE(shares.GuestsMayRun(false, kSecond));
  shares.OnStep(0, 50 * kMs);
  int waited = 0;
  while (!shares.GuestsMayRun(false, kSecond)) {
    shares.OnStep(10 * kMs, 0);
    ++waited;
  }
  EXPECT_GE(waited, 80) << "50 ms less 5 ms saved, at a twentieth of 10 ms a step";
}

TEST(ComputeShares, WorseClassesWaitForAMomentWithoutRealtimeRequests) {
  ComputeShares shares;
  for (int step = 0; step < 10; ++step) shares.OnStep(10 * kMs, 0);
  shares.NoteOthers(kSecond);
  EXPECT_TRUE(shares.GuestsMayRun(/*realtime=*/false, kSecond));
  EXPECT_FALSE(shares.GuestsMayRun(/*realtime=*/true, kSecond));
  EXPECT_FALSE(shares.GuestsMayRun(true, kSecond + ComputeShares::kMostHeldUs));
  // Not for ever: what they have earned meanwhile is theirs.
  EXPECT_TRUE(shares.GuestsMayRun(true, kSecond + ComputeShares::kMostHeldUs + 1));
  shares.OnStep(0, 50 * kMs);
  EXPECT_FALSE(shares.GuestsMayRun(true, kSecond + ComputeShares::kMostHeldUs + 1));
}

TEST(ComputeShares, ALimitHoldsAlsoWhenNobodyElseIsThere) {
  ComputeShares shares;
  shares.SetLimits({{"narrow", 0.25}});
  int64_t now_us = kSecond;
  shares.See("narrow", 1, now_us);
  shares.See("wide", 1, now_us);
  // Steps of 40 ms, whenever it may.
  const int64_t begin_us = now_us, end_us = now_us + 60 * kSecond;
  double had_us = 0, had_at_once_us = 0;
  while (now_us < end_us) {
    const int64_t paused_us = shares.PausedUs("narrow", now_us);
    if (paused_us > 0 && had_at_once_us == 0) had_at_once_us = had_us;
    now_us += paused_us;
    ASSERT_EQ(shares.PausedUs("narrow", now_us), 0) << "it may at the time that was told";
    now_us += 40 * kMs;
    shares.Charge("narrow", 40 * kMs, now_us);
    had_us += 40 * kMs;
    shares.Charge("wide", 40 * kMs, now_us);
    ASSERT_EQ(shares.PausedUs("wide", now_us), 0);
  }
  // What may be saved up, with what comes meanwhile and the last step.
  EXPECT_GE(had_at_once_us, ComputeShares::kBurstUs);
  EXPECT_LE(had_at_once_us, ComputeShares::kBurstUs / 0.75 + 40 * kMs);
  const double time_us = static_cast<double>(now_us - begin_us);
  EXPECT_LE(had_us, 0.25 * time_us + ComputeShares::kBurstUs + 40 * kMs);
  EXPECT_GE(had_us, 0.25 * time_us - 40 * kMs);
  // A pause is not saved up beyond that, and a limit that is taken away is gone.
  now_us += 1000 * kSecond;
  shares.Charge("narrow", ComputeShares::kBurstUs + 1, now_us);
  EXPECT_GT(shares.PausedUs("narrow", now_us), 0);
  shares.SetLimits({});
  EXPECT_EQ(shares.PausedUs("narrow", now_us), 0);
}

TEST(ComputeShares, NamesFromClientsDoNotFillMemory) {
  ComputeShares shares;
  for (int i = 0; i < 6'000; ++i) {
    const std::string name = "t" + std::to_string(i);
    shares.See(name, 1, kSecond + i);
    shares.Charge(name, 1e6, kSecond + i);
  }
  EXPECT_LE(shares.tenants(), 4096u);
  EXPECT_GE(shares.tenants(), 2048u) << "no more are forgotten than need be";
  EXPECT_GT(shares.Used("t5999", kSecond + 6'000), 9e5) << "the last ones are known";
}

}  // namespace
}  // namespace terrace::scheduler
