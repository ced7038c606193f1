#include "os/mapping.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "os/processors.h"

namespace terrace::os {
namespace {

bool IsFilledWith(const Mapping& mapping, uint64_t offset, uint64_t bytes, std::byte value) {
  const std::byte* begin = mapping.data() + offset;
  return std::all_of(begin, begin + bytes, [value](std::byte each) { return each == value; });
}

TEST(MappingTest, PagesMoveWithWhatTheyHold) {
  for (const uint64_t bytes : {kPageBytes, kHugePageBytes}) {
    Mapping mapping = Mapping::Anonymous(3 * kHugePageBytes).value();
    std::memset(mapping.data(), 1, mapping.bytes());
    std::memset(mapping.data(), 7, bytes);
    const absl::Status moved = mapping.MovePages(0, 2 * kHugePageBytes, bytes);
    if (absl::IsUnimplemented(moved)) GTEST_SKIP() << moved;
    ASSERT_TRUE(moved.ok()) << moved;
    EXPECT_TRUE(IsFilledWith(mapping, 2 * kHugePageBytes, bytes, std::byte{7}));
    EXPECT_TRUE(IsFilledWith(mapping, 0, bytes, std::byte{0}));
    EXPECT_TRUE(IsFilledWith(mapping, bytes, 2 * kHugePageBytes - bytes, std::byte{1}));
  }
}

TEST(MappingTest, PagesMoveOnlyWithinTheMappingAndApart) {
  Mapping mapping = Mapping::Anonymous(4 * kPageBytes).value();
  std::memset(mapping.data(), 5, mapping.bytes());
  EXPECT_TRUE(absl::IsInvalidArgument(mapping.MovePages(0, kPageBytes, 2 * kPageBytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(mapping.MovePages(0, 3 * kPageBytes, 2 * kPageBytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(mapping.MovePages(8 * kPageBytes, 0, kPageBytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(mapping.MovePages(1, 2 * kPageBytes, kPageBytes)));
  EXPECT_TRUE(IsFilledWith(mapping, 0, mapping.bytes(), std::byte{5}));
}

TEST(ProcessorsTest, AThreadIsKeptOffOneOfThem) {
  const Processors all = Processors::OfThisThread();
  ASSERT_GE(all.count(), 1);
  const int one = ThisProcessor();
  absl::Notification asked;
  int count = 0, runs_on = one;
  std::thread thread([&] {
    asked.WaitForNotification();
    count = Processors::OfThisThread().count();
    runs_on = ThisProcessor();
  });
  const bool kept_off = all.KeepOff(one, thread);
  asked.Notify();
  thread.join();
  EXPECT_EQ(kept_off, all.count() > 1);
  EXPECT_EQ(count, kept_off ? all.count() - 1 : all.count());
  EXPECT_EQ(runs_on != one, kept_off);
}

}  // namespace
}  // namespace terrace::os
