#include "device/cpu/page_arena.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "base/units.h"

namespace terrace::device {
namespace {

using Contents = PageArena::Contents;

bool PagesMove() {
  os::Mapping mapping = os::Mapping::Anonymous(2 * os::kHugePageBytes).value();
  return mapping.MovePages(0, os::kHugePageBytes, os::kHugePageBytes).ok();
}

size_t BytesThatAre(std::byte value, const std::byte* data, uint64_t bytes) {
  return static_cast<size_t>(std::count(data, data + bytes, value));
}

TEST(PageArenaTest, KeptPagesMoveToWhereTheyAreWanted) {
  if (!PagesMove()) GTEST_SKIP() << "this kernel does not move pages";
  PageArena arena = PageArena::Reserve(64 * kMiB, true).value();
  std::byte* a = arena.Take(8 * kMiB, Contents::kAnything).value();
  std::byte* between = arena.Take(kMiB, Contents::kAnything).value();
  std::byte* b = arena.Take(9 * kMiB, Contents::kAnything).value();
  std::memset(a, 1, 8 * kMiB);
  std::memset(between, 2, kMiB);
  std::memset(b, 3, 9 * kMiB);
  arena.Keep(a, 8 * kMiB);
  arena.Keep(b, 9 * kMiB);
  // Fits in neither hole: whole huge pages of both come along.
  std::byte* wide = arena.Take(16 * kMiB, Contents::kAnything).value();
  EXPECT_GE(
      BytesThatAre(std::byte{1}, wide, 16 * kMiB) + BytesThatAre(std::byte{3}, wide, 16 * kMiB),
      12 * kMiB);
  EXPECT_LE(arena.kept_bytes(), 5 * kMiB);
  EXPECT_EQ(BytesThatAre(std::byte{2}, between, kMiB), kMiB);
}

TEST(PageArenaTest, WherePagesHaveMovedFromReadsAsZero) {
  PageArena arena = PageArena::Reserve(64 * kMiB, true).value();
  std::byte* a = arena.Take(8 * kMiB, Contents::kAnything).value();
  std::byte* between = arena.Take(kMiB, Contents::kAnything).value();
  std::memset(a, 1, 8 * kMiB);
  std::memset(between, 2, kMiB);
  arena.Keep(a, 8 * kMiB);
  std::byte* wide = arena.Take(10 * kMiB, Contents::kAnything).value();
  std::memset(wide, 4, 10 * kMiB);
  std::byte* again = arena.Take(8 * kMiB, Contents::kZero).value();
  EXPECT_EQ(again, a);
  EXPECT_EQ(BytesThatAre(std::byte{0}, again, 8 * kMiB), 8 * kMiB);
  EXPECT_EQ(BytesThatAre(std::byte{4}, wide, 10 * kMiB), 10 * kMiB);
  EXPECT_EQ(BytesThatAre(std::byte{2}, between, kMiB), kMiB);
}

// Past that many cuts the kernel would soon refuse mappings to the whole process.
TEST(PageArenaTest, PagesStayWhereTheyAreOnceTheMappingIsCutInTooManyPlaces) {
  if (!PagesMove()) GTEST_SKIP() << "this kernel does not move pages";
  // The ends of one run of pages, where it came from and where it went.
  PageArena arena = PageArena::Reserve(64 * kMiB, true, 4).value();
  auto used_then_kept = [&](std::byte value) {
    std::byte* data = arena.Take(8 * kMiB, Contents::kAnything).value();
    std::memset(data, static_cast<int>(value), 8 * kMiB);
    std::byte* fence = arena.Take(kMiB, Contents::kAnything).value();
    std::memset(fence, 9, kMiB);
    arena.Keep(data, 8 * kMiB);
    return fence;
  };
  std::byte* first_fence = used_then_kept(std::byte{1});
  std::byte* first = arena.Take(12 * kMiB, Contents::kAnything).value();
  EXPECT_EQ(BytesThatAre(std::byte{1}, first, 12 * kMiB), 8 * kMiB);
  EXPECT_EQ(arena.kept_bytes(), 0u);

  std::byte* second_fence = used_then_kept(std::byte{2});
  const uint64_t kept = arena.kept_bytes();
  EXPECT_EQ(kept, 8 * kMiB);
  std::byte* second = arena.Take(12 * kMiB, Contents::kAnything).value();
  EXPECT_EQ(BytesThatAre(std::byte{0}, second, 12 * kMiB), 12 * kMiB);
  EXPECT_EQ(arena.kept_bytes(), kept);
  // What is kept is used where it lies, hints count no more, and neighbours keep what they have.
  std::byte* again = arena.Take(8 * kMiB, Contents::kAnything, {second + 12 * kMiB, true}).value();
  EXPECT_EQ(BytesThatAre(std::byte{2}, again, 8 * kMiB), 8 * kMiB);
  for (const std::byte* fence : {first_fence, second_fence}) {
    EXPECT_EQ(BytesThatAre(std::byte{9}, fence, kMiB), kMiB);
  }
}

TEST(PageArenaTest, ARangeLiesWhereTheHintSaysIfThatIsFree) {
  if (!PagesMove()) GTEST_SKIP() << "this kernel does not move pages";
  PageArena arena = PageArena::Reserve(64 * kMiB, true).value();
  std::byte* first = arena.Take(3 * kMiB, Contents::kAnything, {nullptr, true}).value();
  std::byte* second = arena.Take(3 * kMiB, Contents::kAnything, {first + 3 * kMiB, true}).value();
  EXPECT_EQ(second, first + 3 * kMiB);
  // Taken, so away from both, where most is free.
  std::byte* other = arena.Take(kMiB, Contents::kAnything, {first, true}).value();
  EXPECT_GE(other, second + 3 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(other) % os::kHugePageBytes, 0u);
  arena.Keep(first, 3 * kMiB);
  EXPECT_EQ(arena.Take(3 * kMiB, Contents::kAnything, {first, true}).value(), first);
  // Beyond the end.
  EXPECT_TRUE(arena.Take(kMiB, Contents::kAnything, {first + 64 * kMiB, false}).ok());
}

// Two models of three segments that take turns: whole huge pages go to and fro, and what they share
// at their borders comes along.
TEST(PageArenaTest, NeighboursFindThePagesAtTheirBorders) {
  if (!PagesMove()) GTEST_SKIP() << "this kernel does not move pages";
  PageArena arena = PageArena::Reserve(64 * kMiB, true).value();
  constexpr uint64_t kBytes = 3 * kMiB;
  std::byte* a = arena.Take(4 * kBytes, Contents::kAnything, {nullptr, true}).value();
  std::memset(a, 1, 4 * kBytes);
  std::byte* between = arena.Take(kMiB, Contents::kAnything, {a + 4 * kBytes, true}).value();
  std::memset(between, 2, kMiB);
  arena.Keep(a, 4 * kBytes);
  std::byte* b = nullptr;
  for (uint64_t i = 0; i < 4; ++i) {
    const std::byte* place = b == nullptr ? between + 4 * kMiB : b + i * kBytes;
    std::byte* data = arena.Take(kBytes, Contents::kAnything, {place, true}).value();
    if (b == nullptr) b = data;
    EXPECT_EQ(data, b + i * kBytes);
    EXPECT_EQ(BytesThatAre(std::byte{1}, data, kBytes), kBytes) << i;
    std::memset(data, 3, kBytes);
  }
  EXPECT_EQ(arena.kept_bytes(), 0u);
  EXPECT_EQ(BytesThatAre(std::byte{2}, between, kMiB), kMiB);
}

TEST(PageArenaTest, ClearedPagesReadAsZeroAndLeaveTheirNeighbours) {
  PageArena arena = PageArena::Reserve(64 * kMiB, true).value();
  std::byte* data = arena.Take(8 * kMiB, Contents::kAnything).value();
  std::memset(data, 1, 8 * kMiB);
  std::byte* end = arena.Take(kMiB, Contents::kAnything).value();
  std::memset(end, 2, kMiB);
  arena.Keep(data, 8 * kMiB);
  for (const uint64_t bytes : {uint64_t{4096}, 5 * kMiB}) {
    std::byte* clean = arena.Take(bytes, Contents::kZero).value();
    EXPECT_EQ(BytesThatAre(std::byte{0}, clean, bytes), bytes);
    std::memset(clean, 4, bytes);
  }
  EXPECT_EQ(BytesThatAre(std::byte{2}, end, kMiB), kMiB);
}

TEST(PageArenaTest, WholeHugePagesGoFirst) {
  PageArena arena = PageArena::Reserve(64 * kMiB, true).value();
  std::byte* whole = arena.Take(4 * kMiB, Contents::kAnything).value();
  std::byte* part = arena.Take(kMiB, Contents::kAnything).value();
  std::byte* rest = arena.Take(kMiB, Contents::kAnything).value();
  std::memset(whole, 1, 4 * kMiB);
  std::memset(part, 2, kMiB);
  std::memset(rest, 3, kMiB);
  arena.Keep(whole, 4 * kMiB);
  arena.Keep(rest, kMiB);
  arena.DiscardKept(2 * kMiB);
  EXPECT_EQ(arena.kept_bytes(), kMiB);
  EXPECT_EQ(arena.Take(kMiB, Contents::kAnything).value(), rest);
  EXPECT_EQ(BytesThatAre(std::byte{3}, rest, kMiB), kMiB);
}

}  // namespace
}  // namespace terrace::device
