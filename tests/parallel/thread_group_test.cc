#include "parallel/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/status.h"

namespace terrace::parallel {
namespace {

// Runs `work` as every member at once; statuses by rank.
std::vector<absl::Status> RunAll(ThreadGroup& group,
                                 const std::function<absl::Status(Communicator&)>& work) {
  std::vector<absl::Status> statuses(static_cast<size_t>(group.size()));
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < group.size(); ++r) {
    threads.emplace_back([&, r] { statuses[static_cast<size_t>(r)] = work(group.member(r)); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Member `rank`'s values, the same in every call.
std::vector<float> Values(int32_t rank, size_t count) {
  Random random(static_cast<uint64_t>(rank) + 1);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Next() % 2000) / 1000.0f - 1.0f;
  return values;
}

TEST(ThreadGroup, SumsInOrderOfRank) {
  for (const int32_t size : {1, 2, 3, 4, 7}) {
    ThreadGroup group(size);
    for (const size_t count : {0, 1, 2, 5, 1000}) {
      std::vector<float> want = Values(0, count);
      for (int32_t r = 1; r < size; ++r) {
        const std::vector<float> more = Values(r, count);
        for (size_t i = 0; i < count; ++i) want[i] += more[i];
      }
      ExpectAllOk(RunAll(group, [&](Communicator& me) -> absl::Status {
        std::vector<float> values = Values(me.rank(), count);
        RETURN_IF_ERROR(me.AllReduce(values));
        EXPECT_EQ(values, want) << size << " members, " << count << " values";
        return absl::OkStatus();
      }));
    }
  }
}

TEST(ThreadGroup, CountsWhatIsExchanged) {
  constexpr int32_t kSize = 3;
  ThreadGroup group(kSize);
  const std::vector<IndexRange> parts = {{0, 4}, {4, 5}, {5, 11}};
  ExpectAllOk(RunAll(group, [&](Communicator& me) -> absl::Status {
    std::vector<float> values(10, 1.0f);  // does not divide by 3
    RETURN_IF_ERROR(me.AllReduce(values));
    std::vector<float> gathered(11);
    return me.AllGather(gathered, parts);
  }));
  uint64_t sent = 0, received = 0;
  for (int32_t r = 0; r < kSize; ++r) {
    const Traffic traffic = group.member(r).traffic();
    sent += traffic.sent_bytes;
    received += traffic.received_bytes;
    EXPECT_EQ(traffic.reduces, 1u);
    EXPECT_EQ(traffic.gathers, 1u);
  }
  EXPECT_EQ(sent, 2u * (kSize - 1) * 10 * 4 + (kSize - 1) * 11 * 4);
  EXPECT_EQ(received, sent);
}

TEST(ThreadGroup, GathersPartsOfAnySize) {
  ThreadGroup group(4);
  const std::vector<IndexRange> parts = {{0, 3}, {3, 3}, {4, 9}, {3, 4}};
  ExpectAllOk(RunAll(group, [&](Communicator& me) -> absl::Status {
    std::vector<float> values(9, -1.0f);
    const IndexRange mine = parts[static_cast<size_t>(me.rank())];
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      values[static_cast<size_t>(i)] = static_cast<float>(i);
    }
    RETURN_IF_ERROR(me.AllGather(values, parts));
    EXPECT_THAT(values, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
    return absl::OkStatus();
  }));
  std::vector<float> values(3);
  EXPECT_TRUE(absl::IsInvalidArgument(group.member(0).AllGather(values, parts)));
}

TEST(ThreadGroup, BroadcastsAndMeets) {
  ThreadGroup group(5);
  std::atomic<int> arrived{0};
  ExpectAllOk(RunAll(group, [&](Communicator& me) -> absl::Status {
    std::vector<std::byte> bytes(17, static_cast<std::byte>(me.rank()));
    RETURN_IF_ERROR(me.Broadcast(3, bytes));
    EXPECT_THAT(bytes, testing::Each(std::byte{3}));
    ++arrived;
    RETURN_IF_ERROR(me.Barrier());
    EXPECT_EQ(arrived.load(), 5);
    return absl::OkStatus();
  }));
}

TEST(ThreadGroup, TellsTheOthersWhenOneGivesUp) {
  ThreadGroup group(3);
  const auto statuses = RunAll(group, [&](Communicator& me) -> absl::Status {
    if (me.rank() == 1) {
      me.GiveUp(absl::ResourceExhaustedError("no memory for layer 3"));
      return absl::OkStatus();
    }
    std::vector<float> values(8);
    return me.AllReduce(values);
  });
  for (const size_t r : {0, 2}) {
    EXPECT_TRUE(absl::IsUnavailable(statuses[r])) << statuses[r];
    EXPECT_THAT(Message(statuses[r]), testing::HasSubstr("member 1"));
    EXPECT_THAT(Message(statuses[r]), testing::HasSubstr("no memory for layer 3"));
  }
  std::vector<float> values(8);
  EXPECT_TRUE(absl::IsUnavailable(group.member(1).AllReduce(values)));
  ExpectAllOk(RunAll(group, [&](Communicator& me) -> absl::Status {
    RETURN_IF_ERROR(me.Recover());
    std::vector<float> again(8, 1.0f);
    RETURN_IF_ERROR(me.AllReduce(again));
    EXPECT_THAT(again, testing::Each(3.0f));
    return absl::OkStatus();
  }));
}

TEST(ThreadGroup, DoesNotWaitForeverForAMemberThatIsGone) {
  ThreadGroup group(3, absl::Milliseconds(20));
  const auto statuses = RunAll(group, [&](Communicator& me) -> absl::Status {
    if (me.rank() == 2) return absl::OkStatus();
    std::vector<float> values(8);
    return me.AllReduce(values);
  });
  for (const size_t r : {0, 1}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[r])) << statuses[r];
    EXPECT_THAT(Message(statuses[r]), testing::HasSubstr("for member 2"));
  }
}

TEST(ThreadGroup, DoesNotRecoverWithoutAMember) {
  ThreadGroup group(2, absl::Milliseconds(20));
  group.member(0).GiveUp(absl::InternalError("its device is lost"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(group.member(0).Recover()));
  EXPECT_TRUE(absl::IsUnavailable(group.member(0).Barrier()));
}

TEST(ThreadGroup, RefusesMembersThatDoNotAgree) {
  ThreadGroup group(2);
  const auto statuses = RunAll(group, [&](Communicator& me) {
    std::vector<float> values(me.rank() == 0 ? 8 : 10);
    return me.AllReduce(values);
  });
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_TRUE(absl::IsInternal(statuses[0]) || absl::IsInternal(statuses[1]));
}

TEST(DividedRange, HandsOutUnitsWithoutGaps) {
  for (const int64_t total : {1, 7, 16, 100, 511}) {
    for (const int64_t unit : {1, 3, 16}) {
      for (const int32_t size : {1, 2, 3, 5}) {
        int64_t at = 0;
        for (int32_t r = 0; r < size; ++r) {
          const IndexRange range = DividedRange(total, unit, r, size);
          EXPECT_EQ(range.begin, at);
          EXPECT_TRUE(range.end % unit == 0 || range.end == total);
          at = range.end;
        }
        EXPECT_EQ(at, total);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::parallel
