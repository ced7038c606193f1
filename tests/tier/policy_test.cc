#include "tier/policy.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace terrace::tier {
namespace {

using Places = std::vector<std::pair<ModelId, uint32_t>>;

Places Order(const EvictionRequest& request, std::vector<EvictionCandidate> candidates) {
  CreateEvictionPolicy("lru").value()->Order(request, candidates);
  Places places;
  for (const auto& c : candidates) places.push_back({c.model, c.segment});
  return places;
}

EvictionCandidate Other(ModelId model, uint32_t segment, int64_t used, int64_t hot_until = 0) {
  return {
      .model = model, .segment = segment, .model_last_used_us = used, .hot_until_us = hot_until};
}

TEST(LruTest, LeastRecentlyUsedModelFirstAndOfItTheTail) {
  EXPECT_EQ(Order({.now_us = 100}, {Other(1, 0, 50), Other(1, 1, 50), Other(2, 0, 40),
                                    Other(2, 1, 40), Other(2, 2, 40)}),
            (Places{{2, 2}, {2, 1}, {2, 0}, {1, 1}, {1, 0}}));
}

TEST(LruTest, HotModelsGoAfterAllOthers) {
  EXPECT_EQ(Order({.now_us = 100}, {Other(1, 0, 10, 200), Other(2, 0, 90, 99)}),
            (Places{{2, 0}, {1, 0}}));
}

TEST(LruTest, OwnSegmentsLastAndTheOneNeededLatestFirst) {
  std::vector<EvictionCandidate> candidates = {Other(1, 0, 10, 200)};
  for (uint32_t i = 0; i < 3; ++i) {
    EvictionCandidate own = Other(7, i, 99);
    own.own = true;
    own.steps_ahead = (i + 1) % 3;
    candidates.push_back(own);
  }
  EXPECT_EQ(Order({.now_us = 100}, candidates), (Places{{1, 0}, {7, 1}, {7, 0}, {7, 2}}));
  // A model that streams in any case leaves a hot one alone while its own will do.
  EXPECT_EQ(Order({.now_us = 100, .own_model_fits = false}, candidates),
            (Places{{7, 1}, {7, 0}, {7, 2}, {1, 0}}));
}

TEST(PolicyTest, UnknownNameIsRefusedWithTheKnownOnes) {
  auto policy = CreateEvictionPolicy("mru");
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(policy.status().message()).find("lru"), std::string::npos);
}

}  // namespace
}  // namespace terrace::tier
