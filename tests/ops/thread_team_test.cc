#include "device/cpu/thread_team.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "device/cpu/cpu_info.h"
#include "gtest/gtest.h"
#include "os/processors.h"

namespace terrace {
namespace {

TEST(ThreadTeamTest, EveryWorkerRunsOncePerCall) {
  for (const int size : {1, 2, 5}) {
    ThreadTeam team(size);
    std::vector<int> calls(static_cast<size_t>(size), 0);
    for (int i = 0; i < 2000; ++i) {
      team.Run([&](int worker) { ++calls[static_cast<size_t>(worker)]; });
    }
    for (const int c : calls) EXPECT_EQ(c, 2000);
  }
}

TEST(ThreadTeamTest, CallerIsWorkerZeroAndSeesWhatWorkersWrote) {
  ThreadTeam team(3);
  std::thread::id ids[3];
  team.Run([&](int worker) { ids[worker] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids, ids + 3).size(), 3u);
}

TEST(ThreadTeamTest, SleepersWakeAwayFromTheCaller) {
  const int processors = os::Processors::OfThisThread().count();
  if (processors < 2) GTEST_SKIP() << "needs two processors";
  for (const int size : {processors, processors + 1}) {
    ThreadTeam team(size);
    std::vector<int> allowed(static_cast<size_t>(size), 0);
    // They sleep some time after they have nothing to do.
    for (int tries = 0; tries < 10'000; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      team.Run([&](int worker) {
        allowed[static_cast<size_t>(worker)] = os::Processors::OfThisThread().count();
      });
      if (allowed[1] < processors) break;
    }
    EXPECT_EQ(allowed[0], processors);
    for (int worker = 1; worker < size; ++worker) {
      EXPECT_EQ(allowed[static_cast<size_t>(worker)], processors - 1) << worker;
    }
  }
}

TEST(ThreadTeamTest, ParallelForCoversEachIndexOnce) {
  ThreadTeam team(3);
  for (const int64_t count : {0, 1, 2, 7, 100, 1001}) {
    for (const int64_t grain : {0, 1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      team.ParallelFor(count, grain, [&](int64_t begin, int64_t end, int worker) {
        EXPECT_LT(worker, 3);
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& s : seen) ASSERT_EQ(s.load(), 1) << count << "/" << grain;
    }
  }
}

TEST(ThreadTeamTest, WorksAfterItsWorkersFellAsleep) {
  ThreadTeam team(4);
  std::atomic<int> sum{0};
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(i % 3));
    team.Run([&](int) { ++sum; });
  }
  EXPECT_EQ(sum.load(), 80);
}

TEST(ThreadTeamTest, AnIdleTeamUsesNoProcessorTime) {
  ThreadTeam team(4);
  team.Run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  getrusage(RUSAGE_SELF, &after);
  const auto us = [](const timeval& t) { return t.tv_sec * 1000000L + t.tv_usec; };
  EXPECT_LT(us(after.ru_utime) + us(after.ru_stime) - us(before.ru_utime) - us(before.ru_stime),
            20000);
}

TEST(CpuInfoTest, ParsesQuotas) {
  EXPECT_EQ(ParseCpuMax("max 100000\n"), std::nullopt);
  EXPECT_EQ(ParseCpuMax("150000 100000\n"), 1.5);
  EXPECT_EQ(ParseCpuMax(""), std::nullopt);
  EXPECT_EQ(ParseCpuMax("-1 100000"), std::nullopt);
  EXPECT_EQ(ParseCpuMax("nonsense 0"), std::nullopt);
}

TEST(CpuInfoTest, TheTightestAncestorCounts) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(testing::TempDir()) / "cpu_info_test";
  fs::create_directories(root / "proc/self");
  fs::create_directories(root / "sys/fs/cgroup/a/b");
  std::ofstream(root / "proc/self/cgroup") << "0::/a/b\n";
  const int all = CpuCount(root.string());
  EXPECT_GE(all, 1);
  std::ofstream(root / "sys/fs/cgroup/a/cpu.max") << "50000 100000\n";
  std::ofstream(root / "sys/fs/cgroup/a/b/cpu.max") << "max 100000\n";
  EXPECT_EQ(CpuCount(root.string()), 1);
  fs::remove_all(root);
  fs::create_directories(root / "proc/self");
  fs::create_directories(root / "sys/fs/cgroup/cpu,cpuacct/x");
  std::ofstream(root / "proc/self/cgroup") << "4:cpu,cpuacct:/x\n";
  std::ofstream(root / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us") << "100000\n";
  std::ofstream(root / "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us") << "100000\n";
  EXPECT_EQ(CpuCount(root.string()), 1);
  fs::remove_all(root);
}

}  // namespace
}  // namespace terrace
