#include "tier/policy.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace terrace::tier {
namespace {

using Places = std::vector<std::pair<ModelId, uint32_t>>;

constexpr int64_t kSecond = 1'000'000;

Places Order(std::string_view policy, const EvictionRequest& request,
             std::vector<EvictionCandidate> candidates) {
  CreateEvictionPolicy(policy).value()->Order(request, candidates);
  Places places;
  for (const auto& c : candidates) places.push_back({c.model, c.segment});
  return places;
}

UseHistory Uses(const std::vector<int64_t>& times) {
  UseHistory history;
  for (int64_t time : times) history.Touch(time, 0);
  return history;
}

EvictionCandidate Other(ModelId model, uint32_t segment, UseHistory history,
                        int64_t hot_until = 0) {
  EvictionCandidate candidate;
  candidate.model = model;
  candidate.segment = segment;
  candidate.bytes = 1000;
  candidate.history = history;
  candidate.hot_until_us = hot_until;
  candidate.reload_us = 10;
  return candidate;
}

TEST(UseHistoryTest, AccessesCloseTogetherAreOneUse) {
  UseHistory history = Uses({0, 100, kSecond / 2, kSecond});
  EXPECT_EQ(history.uses, 1u);
  history.Touch(10 * kSecond, 0);
  history.Touch(10 * kSecond + 5, 0);
  EXPECT_EQ(history.uses, 2u);
  EXPECT_EQ(history.previous_began_us, 0);
  EXPECT_EQ(history.use_began_us, 10 * kSecond);
  EXPECT_EQ(history.last_us, 10 * kSecond + 5);
}

TEST(UseHistoryTest, UseThatGoesOnCountsAgainEachTime) {
  UseHistory busy, rare;
  for (int64_t at = 0; at <= 60 * kSecond; at += kSecond / 20) busy.Touch(at, 0);
  for (int64_t at = 0; at <= 60 * kSecond; at += 4 * kSecond) rare.Touch(at, 0);
  EXPECT_NEAR(static_cast<double>(busy.uses), 58, 2);
  EXPECT_EQ(rare.uses, 16u);
  EXPECT_GT(busy.RecentRate(60 * kSecond), 3 * rare.RecentRate(60 * kSecond));
}

TEST(UseHistoryTest, RequestsThatAreAnnouncedAreTheUses) {
  UseHistory history;
  for (int64_t at = 0; at < 10 * kSecond; at += kSecond / 20) {
    history.Ask(at, 0);
    for (int64_t i = 0; i < 5; ++i) history.Touch(at + i, 0);
  }
  EXPECT_EQ(history.uses, 200u);
  EXPECT_EQ(history.last_us, 10 * kSecond - kSecond / 20 + 4);
  EXPECT_EQ(history.by_hour[0], 200);
  // A slow answer to the last one: no use comes of that.
  for (int64_t at = 10 * kSecond; at < 70 * kSecond; at += 2 * kSecond) history.Touch(at, 0);
  EXPECT_EQ(history.uses, 200u);
}

TEST(UseHistoryTest, TheRateFollowsAChangeOfPace) {
  // Two models that come 20 and 2 times a second; the first was hardly used all day.
  constexpr int64_t kHour = 3600 * kSecond;
  UseHistory old, fresh;
  for (int64_t at = -8 * kHour; at < 0; at += kHour) old.Ask(at, 0);
  EXPECT_NEAR(old.RecentRate(0) * kHour, 1, 0.7);
  for (int64_t at = 0; at < 5 * kSecond; at += kSecond / 20) old.Ask(at, 0);
  for (int64_t at = 0; at < 5 * kSecond; at += kSecond / 2) fresh.Ask(at, 0);
  EXPECT_NEAR(old.RecentRate(5 * kSecond) * kSecond, 20, 2);
  EXPECT_GT(old.RecentRate(5 * kSecond), 5 * fresh.RecentRate(5 * kSecond));
  // It stops: a pause of ten seconds is far more than chance.
  EXPECT_LT(old.RecentRate(15 * kSecond) * kSecond, 0.5);
}

TEST(UseHistoryTest, WhoCameJustNowIsNotBusierThanWhoComesAllTheTime) {
  const UseHistory busy = Uses({0, 2 * kSecond, 4 * kSecond, 6 * kSecond});
  const UseHistory fresh = Uses({7 * kSecond});
  EXPECT_GT(busy.RecentRate(7 * kSecond), fresh.RecentRate(7 * kSecond));
  // One use is still better than one long ago.
  EXPECT_GT(fresh.RecentRate(60 * kSecond), Uses({0}).RecentRate(60 * kSecond));
}

TEST(CostPolicyTest, TheBusiestStayHoweverBusyAllAre) {
  // Each comes back within the minute, as good as surely.
  std::vector<EvictionCandidate> candidates;
  for (ModelId model = 1; model <= 3; ++model) {
    std::vector<int64_t> times;
    for (int64_t at = 0; at < 600; at += 2 + model) times.push_back(at * kSecond);
    candidates.push_back(Other(model, 0, Uses(times)));
  }
  auto cost = CreateEvictionPolicy("cost").value();
  cost->Order({.now_us = 600 * kSecond}, candidates);
  EXPECT_EQ(candidates[0].model, 3u);
  EXPECT_EQ(candidates[2].model, 1u);
}

TEST(UseHistoryTest, TheUsualRateFollowsTheHoursOfTheDay) {
  constexpr int64_t kHour = 3600 * kSecond, kDay = 24 * kHour;
  UseHistory history;
  // Ten days, each with 6 uses in the middle of the hour from 9 to 10.
  for (int64_t day = 0; day < 10; ++day) {
    for (int64_t i = 0; i < 6; ++i) {
      const int64_t at = day * kDay + 9 * kHour + 30 * 60 * kSecond + i * 10 * kSecond;
      history.Touch(at, at);
    }
  }
  const int64_t now = 10 * kDay;
  const double an_hour = static_cast<double>(kHour);
  // The first day counts from 9:30 on.
  EXPECT_NEAR(history.UsualRate(now, now + 9 * kHour + kHour / 2) * an_hour, 6 * 10 / 9.6, 0.1);
  EXPECT_NEAR(history.UsualRate(now, now + 9 * kHour) * an_hour, 3 * 10 / 9.6, 0.1);
  EXPECT_EQ(history.UsualRate(now, now + 20 * kHour), 0);
  EXPECT_EQ(Uses({0}).UsualRate(kHour, kHour), 0) << "nothing is usual on the first day";
}

TEST(CostPolicyTest, WhatIsHiddenIsWorthAsMuchAsTheLinkIsBusy) {
  auto candidate = [](ModelId model, int64_t every, bool hidden, double busy) {
    std::vector<int64_t> times;
    for (int64_t at = 0; at < 600 * kSecond; at += every) times.push_back(at);
    EvictionCandidate c = Other(model, 0, Uses(times));
    c.hidden = hidden;
    c.link_busy = busy;
    return c;
  };
  const EvictionRequest request{.now_us = 600 * kSecond};
  // The busy model's tail against the head of one asked for a third as often.
  auto first = [&](double busy) {
    return Order("cost", request,
                 {candidate(1, 2 * kSecond, true, busy), candidate(2, 6 * kSecond, false, busy)})[0]
        .first;
  };
  EXPECT_EQ(first(0), 1u) << "nobody is delayed";
  EXPECT_EQ(first(0.2), 1u);
  EXPECT_EQ(first(0.5), 2u) << "bytes count, hidden or not";
  EXPECT_EQ(first(1), 2u);
}

TEST(CostPolicyTest, WeighsTheSlaClassAndTheUsualHour) {
  auto candidate = [](ModelId model, double sla, double usual) {
    EvictionCandidate c = Other(model, 0, Uses({0, 10 * kSecond}));
    c.sla_weight = sla;
    c.usual_rate = usual;
    return c;
  };
  const EvictionRequest request{.now_us = 600 * kSecond};
  EXPECT_EQ(Order("cost", request, {candidate(1, 4, 0), candidate(2, 0.25, 0), candidate(3, 1, 0)}),
            (Places{{2, 0}, {3, 0}, {1, 0}}));
  EXPECT_EQ(Order("cost", request, {candidate(1, 1, 1e-6), candidate(2, 1, 0)}),
            (Places{{2, 0}, {1, 0}}));
  EXPECT_EQ(Order("lru", request, {candidate(1, 0.25, 0), candidate(2, 4, 0)}),
            (Places{{1, 0}, {2, 0}}))
      << "other policies look at use alone";
}

class EveryPolicyTest : public testing::TestWithParam<const char*> {};

TEST_P(EveryPolicyTest, OfOneModelTheTailGoesFirst) {
  EXPECT_EQ(Order(GetParam(), {.now_us = 100},
                  {Other(2, 0, Uses({40})), Other(2, 2, Uses({40})), Other(2, 1, Uses({40}))}),
            (Places{{2, 2}, {2, 1}, {2, 0}}));
}

TEST_P(EveryPolicyTest, HotModelsGoAfterAllOthers) {
  EXPECT_EQ(Order(GetParam(), {.now_us = 100},
                  {Other(1, 0, Uses({10}), 200), Other(2, 0, Uses({90}), 99)}),
            (Places{{2, 0}, {1, 0}}));
}

TEST_P(EveryPolicyTest, OwnSegmentsLastAndTheOneNeededLatestFirst) {
  std::vector<EvictionCandidate> candidates = {Other(1, 0, Uses({10}), 200)};
  for (uint32_t i = 0; i < 3; ++i) {
    EvictionCandidate own = Other(7, i, Uses({99}));
    own.own = true;
    own.steps_ahead = (i + 1) % 3;
    candidates.push_back(own);
  }
  EXPECT_EQ(Order(GetParam(), {.now_us = 100}, candidates),
            (Places{{1, 0}, {7, 1}, {7, 0}, {7, 2}}));
  // A model that streams in any case leaves a hot one alone while its own will do.
  EXPECT_EQ(Order(GetParam(), {.now_us = 100, .own_model_fits = false}, candidates),
            (Places{{7, 1}, {7, 0}, {7, 2}, {1, 0}}));
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicyTest, testing::Values("lru", "lru-k", "lfu", "cost"),
                         [](const auto& info) {
                           return std::string(info.param) == "lru-k" ? "lruk" : info.param;
                         });

TEST(LruTest, TheLeastRecentlyUsedModelFirst) {
  EXPECT_EQ(Order("lru", {.now_us = 100}, {Other(1, 0, Uses({50})), Other(2, 0, Uses({40}))}),
            (Places{{2, 0}, {1, 0}}));
}

TEST(LruKTest, AOneTimeVisitorGoesBeforeARegular) {
  const UseHistory regular = Uses({0, 20 * kSecond, 40 * kSecond});
  const UseHistory visitor = Uses({50 * kSecond});  // more recent
  const EvictionRequest request{.now_us = 60 * kSecond};
  EXPECT_EQ(Order("lru-k", request, {Other(1, 0, regular), Other(2, 0, visitor)}),
            (Places{{2, 0}, {1, 0}}));
  EXPECT_EQ(Order("lru", request, {Other(1, 0, regular), Other(2, 0, visitor)}),
            (Places{{1, 0}, {2, 0}}));
}

TEST(LfuTest, TheRarestFirstThenTheOldest) {
  EXPECT_EQ(Order("lfu", {.now_us = 100 * kSecond},
                  {Other(1, 0, Uses({0, 10 * kSecond, 20 * kSecond})),
                   Other(2, 0, Uses({50 * kSecond, 60 * kSecond})),
                   Other(3, 0, Uses({30 * kSecond, 40 * kSecond}))}),
            (Places{{3, 0}, {2, 0}, {1, 0}}));
}

TEST(CostTest, WeighsLikelihoodReloadAndBytes) {
  const UseHistory often = Uses({80 * kSecond, 90 * kSecond});
  const UseHistory seldom = Uses({0, 91 * kSecond});
  const EvictionRequest request{.now_us = 100 * kSecond};
  // Less likely to come back, though used later.
  EXPECT_EQ(Order("cost", request, {Other(1, 0, often), Other(2, 0, seldom)}),
            (Places{{2, 0}, {1, 0}}));
  // The same likelihood: what is quick to bring back for its bytes goes first ...
  EvictionCandidate on_host = Other(4, 0, often);
  on_host.reload_us = 2;
  EXPECT_EQ(Order("cost", request, {Other(3, 0, often), on_host}), (Places{{4, 0}, {3, 0}}));
  // ... and what the head's computing would hide.
  EvictionCandidate hidden = Other(1, 5, often);
  hidden.hidden = true;
  EXPECT_EQ(Order("cost", request, {Other(1, 0, often), Other(1, 9, often), hidden}),
            (Places{{1, 5}, {1, 9}, {1, 0}}));
}

TEST(PolicyTest, UnknownNameIsRefusedWithTheKnownOnes) {
  auto policy = CreateEvictionPolicy("mru");
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(policy.status().message()).find("lru-k"), std::string::npos);
}

}  // namespace
}  // namespace terrace::tier
