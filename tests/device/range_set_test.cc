#include "device/range_set.h"

#include <bitset>

#include <gtest/gtest.h>

#include "base/random.h"

namespace terrace::device {
namespace {

TEST(RangeSetTest, NeighboursJoinAndPartsAreCutOut) {
  RangeSet set;
  set.Add({0, 10});
  set.Add({20, 30});
  const Range joined = set.Add({10, 20});
  EXPECT_EQ(joined.begin, 0u);
  EXPECT_EQ(joined.end, 30u);
  EXPECT_EQ(set.ranges().size(), 1u);
  set.Remove({5, 8});
  EXPECT_EQ(set.size(), 27u);
  ASSERT_EQ(set.Inside({4, 9}).size(), 2u);
  ASSERT_EQ(set.Outside({4, 9}).size(), 1u);
  EXPECT_EQ(set.Outside({4, 9})[0].begin, 5u);
  EXPECT_EQ(set.Outside({4, 9})[0].end, 8u);
}

// Against one bit a number.
TEST(RangeSetTest, BehavesLikeASetOfNumbers) {
  constexpr uint64_t kNumbers = 200;
  Random random(7);
  SCOPED_TRACE("seed 7");
  RangeSet set;
  std::bitset<kNumbers> bits;
  for (int step = 0; step < 5000; ++step) {
    const uint64_t begin = random.Below(kNumbers);
    const Range range{begin, begin + random.Below(kNumbers - begin + 1)};
    if (random.Below(2) == 0) {
      for (const Range& part : set.Outside(range)) set.Add(part);
      for (uint64_t i = range.begin; i < range.end; ++i) bits.set(i);
    } else {
      set.Remove(range);
      for (uint64_t i = range.begin; i < range.end; ++i) bits.reset(i);
    }
    ASSERT_EQ(set.size(), bits.count()) << "step " << step;
    uint64_t runs = 0;
    for (uint64_t i = 0; i < kNumbers; ++i) {
      runs += bits[i] && (i == 0 || !bits[i - 1]) ? 1 : 0;
      ASSERT_EQ(set.Inside({i, i + 1}).size(), bits[i] ? 1u : 0u) << "step " << step;
    }
    ASSERT_EQ(set.ranges().size(), runs) << "neighbours are not joined, step " << step;
  }
}

}  // namespace
}  // namespace terrace::device
