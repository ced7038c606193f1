#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "os/atomic_file.h"
#include "os/direct_file.h"
#include "os/mapping.h"
#include "os/process_memory.h"
#include "os/uring.h"
#include "os/worker_pool.h"

namespace terrace::os {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/terrace-os-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  static Mapping Memory(uint64_t bytes, int seed) {
    Mapping memory = Mapping::Anonymous(bytes).value();
    for (uint64_t i = 0; i < bytes; ++i) {
      memory.data()[i] =
          static_cast<std::byte>((i * 31 + i / 4096 + static_cast<uint64_t>(seed)) & 255);
    }
    return memory;
  }

  std::string folder_;
};

TEST_F(FilesTest, WhatIsWrittenIsRead) {
  Mapping data = Memory(kMiB, 1);
  {
    auto file = DirectFile::Create(Path("a")).value();
    ASSERT_TRUE(file->WriteAt(0, data.span()).ok());
    ASSERT_TRUE(file->WriteAt(kMiB, data.span()).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  auto file = DirectFile::OpenForRead(Path("a")).value();
  EXPECT_EQ(file->size(), 2 * kMiB);
  Mapping back = Mapping::Anonymous(kMiB).value();
  ASSERT_TRUE(file->ReadAt(kMiB, back.span()).ok());
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kMiB), 0);
}

TEST_F(FilesTest, ShortReadIsDataLossThatNamesTheOffset) {
  {
    ASSERT_TRUE(DirectFile::Create(Path("a")).value()->WriteAt(0, Memory(8192, 1).span()).ok());
  }
  auto file = DirectFile::OpenForRead(Path("a")).value();
  Mapping back = Mapping::Anonymous(8192).value();
  absl::Status status = file->ReadAt(4096, back.span());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("4096"), std::string::npos) << status;
}

TEST_F(FilesTest, MissingFileIsNotFoundAndAFolderIsRefused) {
  EXPECT_EQ(DirectFile::OpenForRead(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(DirectFile::OpenForRead(folder_).ok());
}

TEST_F(FilesTest, AtomicFileAppearsOnlyWithCommit) {
  {
    auto file = AtomicFile::Create(Path("a")).value();
    ASSERT_TRUE(file->file().WriteAt(0, Memory(4096, 1).span()).ok());
    EXPECT_FALSE(std::filesystem::exists(Path("a")));
    ASSERT_TRUE(file->Commit().ok());
  }
  EXPECT_EQ(std::filesystem::file_size(Path("a")), 4096u);
  EXPECT_FALSE(std::filesystem::exists(Path("a.partial")));
  {  // Given up: the old content stays, nothing is left behind.
    auto file = AtomicFile::Create(Path("a")).value();
    ASSERT_TRUE(file->file().WriteAt(0, Memory(8192, 2).span()).ok());
  }
  EXPECT_EQ(std::filesystem::file_size(Path("a")), 4096u);
  EXPECT_FALSE(std::filesystem::exists(Path("a.partial")));
}

TEST_F(FilesTest, WriteFileAtomicallyReplacesAndFailsCleanly) {
  ASSERT_TRUE(WriteFileAtomically(Path("m"), "one").ok());
  ASSERT_TRUE(WriteFileAtomically(Path("m"), "second").ok());
  std::ifstream file(Path("m"));
  std::string text;
  file >> text;
  EXPECT_EQ(text, "second");
  EXPECT_FALSE(WriteFileAtomically(Path("none/m"), "x").ok());
  std::filesystem::create_directory(Path("folder"));
  std::ofstream(Path("folder/inside")) << "x";
  EXPECT_FALSE(WriteFileAtomically(Path("folder"), "x").ok());  // cannot replace a folder
  EXPECT_FALSE(std::filesystem::exists(Path("folder.partial")));
}

TEST_F(FilesTest, LeftoversOfACrashAreRemovedAtStart) {
  std::ofstream(Path("a.partial")) << "half";
  std::ofstream(Path("b.partial")) << "half";
  std::ofstream(Path("c")) << "whole";
  EXPECT_EQ(RemovePartials(folder_).value(), 2);
  EXPECT_TRUE(std::filesystem::exists(Path("c")));
  EXPECT_EQ(RemovePartials(folder_).value(), 0);
}

// Both ways of asynchronous I/O behave alike.
class AsyncIoTest : public FilesTest, public testing::WithParamInterface<bool> {
 protected:
  std::unique_ptr<AsyncIo> Make(uint32_t depth = 4) {
    AsyncIoOptions options;
    options.depth = depth;
    options.allow_uring = GetParam();
    return AsyncIo::Create(options).value();
  }
};

TEST_P(AsyncIoTest, ReadsAndWritesManyAtOnce) {
  constexpr int kBlocks = 32;
  Mapping data = Memory(kBlocks * 65536, 3);
  auto file = DirectFile::Create(Path("a")).value();
  auto io = Make();
  absl::Mutex mutex;
  int left = kBlocks;
  int wrong = 0;
  auto done = [&](int64_t result) {
    absl::MutexLock lock(&mutex);
    --left;
    if (result != 65536) ++wrong;
  };
  auto wait = [&] {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(+[](int* l) { return *l == 0; }, &left));
    left = kBlocks;
  };
  for (int i = 0; i < kBlocks; ++i) {
    io->Write(file->fd(), static_cast<uint64_t>(i) * 65536,
              data.span().subspan(static_cast<size_t>(i) * 65536, 65536), done);
  }
  wait();
  Mapping back = Mapping::Anonymous(kBlocks * 65536).value();
  for (int i = 0; i < kBlocks; ++i) {
    io->Read(file->fd(), static_cast<uint64_t>(i) * 65536,
             back.span().subspan(static_cast<size_t>(i) * 65536, 65536), done);
  }
  wait();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kBlocks * 65536), 0);
}

TEST_P(AsyncIoTest, EndOfFileAndBadDescriptorAreTold) {
  ASSERT_TRUE(DirectFile::Create(Path("a")).value()->WriteAt(0, Memory(8192, 1).span()).ok());
  auto file = DirectFile::OpenForRead(Path("a")).value();
  Mapping back = Mapping::Anonymous(16384).value();
  auto io = Make();
  auto read = [&](int fd, uint64_t offset) {
    int64_t got = -1;
    absl::Notification done;
    io->Read(fd, offset, back.span(), [&](int64_t result) {
      got = result;
      done.Notify();
    });
    done.WaitForNotification();
    return got;
  };
  EXPECT_EQ(read(file->fd(), 0), 8192);
  EXPECT_EQ(read(file->fd(), 8192), 0);
  EXPECT_EQ(read(1 << 20, 0), -EBADF);
}

TEST_P(AsyncIoTest, DestroyingWaitsForWhatIsInFlight) {
  ASSERT_TRUE(DirectFile::Create(Path("a")).value()->WriteAt(0, Memory(4 * kMiB, 1).span()).ok());
  auto file = DirectFile::OpenForRead(Path("a")).value();
  Mapping back = Mapping::Anonymous(4 * kMiB).value();
  std::atomic<int> ended{0};
  {
    auto io = Make(2);
    for (uint64_t i = 0; i < 16; ++i) {
      io->Read(file->fd(), i * 262144, back.span().subspan(i * 262144, 262144),
               [&](int64_t) { ++ended; });
    }
  }
  EXPECT_EQ(ended, 16);
}

TEST_P(AsyncIoTest, RegisteredMemoryWorksLikeAnyOther) {
  Mapping data = Memory(kMiB, 5);
  ASSERT_TRUE(DirectFile::Create(Path("a")).value()->WriteAt(0, data.span()).ok());
  auto file = DirectFile::OpenForRead(Path("a")).value();
  Mapping ring = Mapping::Anonymous(2 * kMiB).value();
  AsyncIoOptions options;
  options.allow_uring = GetParam();
  options.registered = {ring.span()};
  auto io = AsyncIo::Create(options).value();
  absl::Notification done;
  io->Read(file->fd(), 0, ring.span().subspan(kMiB, kMiB), [&](int64_t result) {
    EXPECT_EQ(result, static_cast<int64_t>(kMiB));
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(std::memcmp(ring.data() + kMiB, data.data(), kMiB), 0);
}

INSTANTIATE_TEST_SUITE_P(Ways, AsyncIoTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

TEST(MappingTest, MemoryLeavesTheProcessWhenReleasedOrDiscarded) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory grows with ours";
#endif
  constexpr uint64_t kBytes = 128 * kMiB;
  const uint64_t before = ReadProcessMemory().value().rss_bytes;
  Mapping mapping = Mapping::Anonymous(kBytes).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping.data()) % kHugePageBytes, 0u);
  std::memset(mapping.data(), 1, kBytes);
  EXPECT_GE(ReadProcessMemory().value().rss_bytes, before + kBytes);
  ASSERT_TRUE(mapping.Discard(0, kBytes / 2).ok());
  EXPECT_LT(ReadProcessMemory().value().rss_bytes, before + kBytes / 2 + 16 * kMiB);
  EXPECT_EQ(mapping.data()[0], std::byte{0});
  EXPECT_EQ(mapping.data()[kBytes / 2], std::byte{1});
  EXPECT_FALSE(mapping.Discard(4096, kBytes).ok());
  mapping = Mapping();
  EXPECT_LT(ReadProcessMemory().value().rss_bytes, before + 16 * kMiB);
}

TEST(MappingTest, PopulateTouchesEveryPage) {
  const uint64_t before = ReadProcessMemory().value().rss_bytes;
  MappingOptions options;
  options.populate = true;
  Mapping mapping = Mapping::Anonymous(64 * kMiB, options).value();
  EXPECT_GE(ReadProcessMemory().value().rss_bytes, before + 63 * kMiB);
}

TEST(MappingTest, AbsurdSizesAreErrors) {
  EXPECT_FALSE(Mapping::Anonymous(0).ok());
  EXPECT_FALSE(Mapping::Anonymous(~uint64_t{0}).ok());
  EXPECT_FALSE(Mapping::Anonymous(uint64_t{1} << 60).ok());
}

TEST(WorkerPoolTest, RunsEverythingItWasGivenBeforeItEnds) {
  std::atomic<int> count{0};
  {
    WorkerPool pool("test", 3);
    for (int i = 0; i < 100; ++i) pool.Run([&] { ++count; });
  }
  EXPECT_EQ(count, 100);
}

}  // namespace
}  // namespace terrace::os
