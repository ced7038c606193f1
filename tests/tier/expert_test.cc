// Models whose experts are segments of their own and come when a pass asks for them.
#include <gtest/gtest.h>

#include <set>

#include "manager_fixture.h"

namespace terrace::tier {
namespace {

constexpr uint32_t kExperts = 16;
constexpr uint32_t kFirst = 1;  // segment of expert 0
constexpr uint64_t kBytes = 64 * kKiB;

class ExpertTest : public TierManagerTest {
 protected:
  // One segment of attention, 16 experts, a head.
  ModelId AddExperts(const std::string& name, int64_t hot_keep_us = 0) {
    auto source = MakeSource(name, std::vector<uint64_t>(kExperts + 2, kBytes), kBytes);
    sources_[name] = source;
    ModelSpec spec = source->Spec(name, source, hot_keep_us);
    for (uint32_t i = 0; i < kExperts; ++i) spec.segments[kFirst + i].expert = true;
    return manager_->Register(std::move(spec)).value();
  }
  // As an engine does it: attention, those experts, the head.
  void PassWith(ModelId id, const std::string& name, const std::set<uint32_t>& experts) {
    std::vector<uint32_t> segments = {0};
    for (uint32_t e : experts) {
      manager_->Prefetch(id, kFirst + e, 1, Priority::kNextLayer);
      segments.push_back(kFirst + e);
    }
    segments.push_back(kExperts + 1);
    for (uint32_t segment : segments) {
      absl::StatusOr<Pin> pin = Acquire(id, segment);
      ASSERT_TRUE(pin.ok()) << pin.status();
      EXPECT_TRUE(HoldsSegment(sources_[name]->seed(), segment, pin->data(), pin->bytes()));
    }
    Settle();
  }
  std::set<uint32_t> ResidentExperts(ModelId id) {
    std::set<uint32_t> experts;
    const std::vector<bool> resident = Resident(id);
    for (uint32_t e = 0; e < kExperts; ++e) {
      if (resident[kFirst + e]) experts.insert(e);
    }
    return experts;
  }
  std::map<std::string, std::shared_ptr<TestSource>> sources_;
};

TEST_P(ExpertTest, AModelThatFitsIsReadAheadAsAnyOther) {
  Start(64 * kBytes);
  ModelId a = AddExperts("a");
  PassWith(a, "a", {3});
  EXPECT_EQ(ResidentExperts(a).size(), kExperts);
}

TEST_P(ExpertTest, OnDemandOnlyWhatIsAskedForIsMoved) {
  Start(8 * kBytes);
  ModelId a = AddExperts("a");
  manager_->Prefetch(a, 0, kExperts + 2, Priority::kNextLayer);  // as a step begins
  PassWith(a, "a", {3, 7});
  EXPECT_EQ(ResidentExperts(a), (std::set<uint32_t>{3, 7}));
  EXPECT_EQ(manager_->LoadedBytes(a), 4 * kBytes);
  PassWith(a, "a", {3, 7});
  EXPECT_EQ(manager_->LoadedBytes(a), 4 * kBytes) << "the second pass finds all of it";
  EXPECT_LE(manager_->Snapshot().device_used_bytes, 8 * kBytes);
}

TEST_P(ExpertTest, OftenUsedExpertsStayWhileRareOnesComeAndGo) {
  Start(8 * kBytes);  // attention, head, six experts
  ModelId a = AddExperts("a");
  for (int i = 0; i < 4; ++i) PassWith(a, "a", {0, 1, 2});
  for (uint32_t rare = 3; rare < kExperts; ++rare) PassWith(a, "a", {0, 1, 2, rare});
  const uint64_t before = manager_->LoadedBytes(a);
  PassWith(a, "a", {0, 1, 2});
  EXPECT_EQ(manager_->LoadedBytes(a), before) << "the often used ones never left";
  EXPECT_TRUE(Resident(a)[0]) << "nor did what every pass needs";
  EXPECT_TRUE(Resident(a)[kExperts + 1]);
}

TEST_P(ExpertTest, WhatAPassUploadsBeyondItsCapIsTheFirstToGo) {
  for (bool capped : {false, true}) {
    options_.expert_upload_bytes = capped ? 2 * kBytes : UINT64_MAX;
    manager_.reset();
    Start(8 * kBytes);
    sources_.clear();
    const std::string name = capped ? "capped" : "free";
    ModelId a = AddExperts(name);
    for (uint32_t e = 0; e < 6; e += 2) PassWith(a, name, {e, e + 1});
    // A long prompt needs nearly all of them, one group after the other.
    for (uint32_t e = 6; e < kExperts; ++e) {
      absl::StatusOr<Pin> pin = Acquire(a, kFirst + e);
      ASSERT_TRUE(pin.ok()) << pin.status();
    }
    std::set<uint32_t> kept;
    for (uint32_t e : ResidentExperts(a)) {
      if (e < 6) kept.insert(e);
    }
    if (capped) {
      EXPECT_GE(kept.size(), 3u) << "two gave way within the cap, one to the first beyond it";
    } else {
      EXPECT_EQ(kept.size(), 0u) << "without a cap one prompt pushes out everything";
    }
  }
}

TEST_P(ExpertTest, IdleModelsGiveWayBeforeTheModelsOwnExperts) {
  Start(16 * kBytes);
  auto other = MakeSource("other", std::vector<uint64_t>(8, kBytes), kBytes);
  ModelId b = Add("other", other);
  EXPECT_TRUE(Pass(b, *other));
  ModelId a = AddExperts("a");
  for (uint32_t e = 0; e < 12; e += 2) PassWith(a, "a", {e, e + 1});
  EXPECT_EQ(ResidentExperts(a).size(), 12u);
  EXPECT_LT(State(b).resident_bytes, 8 * kBytes);
}

TEST_P(ExpertTest, SaysWhatCanBePinnedBesideWhatIsPinned) {
  Start(4 * kBytes);
  ModelId a = AddExperts("a");
  Pin attention = Acquire(a, 0).value();
  std::vector<Pin> pins;
  for (uint32_t e = 0; e < 3; ++e) {
    EXPECT_TRUE(manager_->CouldPin(a, kFirst + e));
    pins.push_back(Acquire(a, kFirst + e).value());
  }
  EXPECT_FALSE(manager_->CouldPin(a, kFirst + 3));
  EXPECT_TRUE(manager_->CouldPin(a, kFirst)) << "it is there";
  EXPECT_FALSE(manager_->CouldPin(99, 0));
}

INSTANTIATE_TEST_SUITE_P(Devices, ExpertTest, testing::Values("cpu", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::tier
