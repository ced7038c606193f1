// Control groups: in a folder that looks like the kernel's, and in the kernel's own where this
// process may write there.
#include "os/cgroup.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "base/status.h"

namespace terrace::os {
namespace {

namespace fs = std::filesystem;

class CgroupTest : public testing::Test {
 protected:
  CgroupTest() : folder_(fs::path(testing::TempDir()) / "cgroup-test") {
    fs::remove_all(folder_);
    Put("own", "4:memory:/elsewhere\n0::/app.slice/unit");
    MakeGroup("app.slice/unit", "cpuset cpu io memory pids");
    Put("root/app.slice/unit/cgroup.procs", "41\n42");
    // The kernel would make these with the folder.
    MakeGroup("app.slice/unit/terrace", "");
  }
  ~CgroupTest() override { fs::remove_all(folder_); }
  void MakeGroup(const std::string& group, const std::string& controllers) {
    Put("root/" + group + "/cgroup.controllers", controllers);
    for (const char* file :
         {"cgroup.procs", "cgroup.subtree_control", "cpu.weight", "cpu.max", "memory.high"}) {
      Put("root/" + group + "/" + file, "");
    }
  }
  void Put(const std::string& file, const std::string& text) {
    const fs::path path = folder_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  std::string Get(const std::string& file) {
    std::ifstream in(folder_ / "root" / file);
    std::string text(std::istreambuf_iterator<char>(in), {});
    return text.substr(0, text.find('\n'));
  }
  absl::StatusOr<std::string> Limit(const CgroupLimits& limits) {
    return LimitCgroup(limits, processes_,
                       {(folder_ / "own").string(), (folder_ / "root").string()});
  }

  const fs::path folder_;
  std::array<int64_t, 2> processes_ = {41, 42};
};

TEST_F(CgroupTest, MovesBelowAndLimitsThere) {
  const absl::StatusOr<std::string> group =
      Limit({.cpu_weight = 50, .cpus = 1.5, .memory_high_bytes = 1 << 30});
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(*group, (folder_ / "root/app.slice/unit/terrace").string());
  EXPECT_EQ(Get("app.slice/unit/cgroup.subtree_control"), "+cpu +memory");
  const std::string own = "app.slice/unit/terrace/";
  EXPECT_EQ(Get(own + "cgroup.procs"), "42") << "the last that was moved";
  EXPECT_EQ(Get(own + "cpu.weight"), "50");
  EXPECT_EQ(Get(own + "cpu.max"), "150000 100000");
  EXPECT_EQ(Get(own + "memory.high"), "1073741824");
}

TEST_F(CgroupTest, SetsOnlyWhatIsAskedFor) {
  ASSERT_TRUE(Limit({.cpu_weight = 200}).ok());
  EXPECT_EQ(Get("app.slice/unit/cgroup.subtree_control"), "+cpu");
  EXPECT_EQ(Get("app.slice/unit/terrace/cpu.weight"), "200");
  EXPECT_EQ(Get("app.slice/unit/terrace/cpu.max"), "");
  EXPECT_EQ(Get("app.slice/unit/terrace/memory.high"), "");
}

TEST_F(CgroupTest, AServerThatIsStartedAgainStaysAndHasTheNewLimits) {
  Put("own", "0::/app.slice/unit/terrace");
  Put("root/app.slice/unit/terrace/cgroup.controllers", "cpu memory");
  const absl::StatusOr<std::string> group = Limit({.cpus = 0.5});
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(Get("app.slice/unit/terrace/cpu.max"), "50000 100000");
  EXPECT_EQ(Get("app.slice/unit/cgroup.subtree_control"), "");
  EXPECT_FALSE(fs::exists(folder_ / "root/app.slice/unit/terrace/terrace"));
}

TEST_F(CgroupTest, RefusesWhatIsNotItsOwnAndLeavesEverything) {
  processes_ = {41, 43};
  absl::StatusOr<std::string> group = Limit({.cpu_weight = 50});
  EXPECT_TRUE(absl::IsFailedPrecondition(group.status())) << group.status();
  EXPECT_NE(Message(group.status()).find("holds 1 other processes"), std::string::npos)
      << group.status();
  EXPECT_EQ(Get("app.slice/unit/terrace/cgroup.procs"), "");

  processes_ = {41, 42};
  Put("root/app.slice/unit/cgroup.controllers", "cpu pids");
  group = Limit({.cpu_weight = 50, .memory_high_bytes = 1 << 30});
  EXPECT_NE(Message(group.status()).find("controllers for memory were not delegated"),
            std::string::npos)
      << group.status();

  Put("own", "1:cpu:/app.slice/unit");
  group = Limit({.cpu_weight = 50});
  EXPECT_NE(Message(group.status()).find("no cgroup v2"), std::string::npos) << group.status();
}

TEST_F(CgroupTest, WhatCannotBeDoneIsUndone) {
  // The kernel says no in the middle.
  fs::remove(folder_ / "root/app.slice/unit/terrace/cpu.max");
  const absl::StatusOr<std::string> group = Limit({.cpus = 2});
  EXPECT_FALSE(group.ok());
  EXPECT_NE(Message(group.status()).find("cpu.max"), std::string::npos) << group.status();
  EXPECT_EQ(Get("app.slice/unit/cgroup.procs"), "42") << "back where it was";
  EXPECT_EQ(Get("app.slice/unit/cgroup.subtree_control"), "-cpu");
}

// In a process of its own: who has moved stays there.
TEST(KernelCgroup, LimitsAProcessWhereThatIsAllowed) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int64_t own = getpid();
    const absl::StatusOr<std::string> group = LimitCgroup({.cpu_weight = 90}, {&own, 1});
    if (!group.ok()) {
      std::cerr << Message(group.status()) << std::endl;
      _exit(2);
    }
    std::ifstream in(fs::path(*group) / "cpu.weight");
    int weight = 0;
    in >> weight;
    _exit(weight == 90 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this process has no control group of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace terrace::os
