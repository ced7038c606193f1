// The process dies at every single call that changes the disk, one after the other, in the middle
// of writes too: imports, KV on disk, the model store, removals. What a next process finds is
// complete or not there, and nothing leaks. (A power cut may lose more: what was not synced.)
//
// Each case runs in a child process that ends itself at the k-th such call, for k = 1, 2, ... until
// the child gets through.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "../weights/weights_testing.h"
#include "base/clock.h"
#include "base/hash.h"
#include "device/cpu/thread_team.h"
#include "format/image.h"
#include "storage/disk/block_store.h"
#include "storage/disk/disk_budget.h"
#include "weights/importer.h"
#include "weights/model_store.h"

namespace {

constexpr int kCrashed = 99;
// Calls until the crash; negative: none is planned. Only the child sets it.
std::atomic<int> calls_left{-1};

// Counts a call that changes the disk; the planned one never returns.
void Step() {
  const int before = calls_left.load();
  if (before < 0) return;
  if (calls_left.fetch_sub(1) <= 1) _exit(kCrashed);
}

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// These take the place of the C library's. Some are called by one of two names, depending on how a
// file was compiled, so both are given, whatever this one was compiled with.
ssize_t WriteAt(const char* name, int fd, const void* data, size_t bytes, off64_t offset) {
  auto* real = Real<ssize_t(int, const void*, size_t, off64_t)>(name);
  Step();
  if (calls_left.load() == 1) real(fd, data, bytes / 2 / 4096 * 4096, offset);  // torn
  Step();
  return real(fd, data, bytes, offset);
}
int Reserve(const char* name, int fd, int mode, off64_t offset, off64_t bytes) {
  auto* real = Real<int(int, int, off64_t, off64_t)>(name);
  Step();
  return real(fd, mode, offset, bytes);
}

extern "C" {
ssize_t CountedPwrite(int, const void*, size_t, off64_t) asm("pwrite");
ssize_t CountedPwrite(int fd, const void* data, size_t bytes, off64_t offset) {
  return WriteAt("pwrite", fd, data, bytes, offset);
}
ssize_t CountedPwrite64(int, const void*, size_t, off64_t) asm("pwrite64");
ssize_t CountedPwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return WriteAt("pwrite64", fd, data, bytes, offset);
}
int CountedFallocate(int, int, off64_t, off64_t) asm("fallocate");
int CountedFallocate(int fd, int mode, off64_t offset, off64_t bytes) {
  return Reserve("fallocate", fd, mode, offset, bytes);
}
int CountedFallocate64(int, int, off64_t, off64_t) asm("fallocate64");
int CountedFallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  return Reserve("fallocate64", fd, mode, offset, bytes);
}
int unlink(const char* path) noexcept {
  static auto* real = Real<int(const char*)>("unlink");
  Step();
  return real(path);
}
int rename(const char* from, const char* to) noexcept {
  static auto* real = Real<int(const char*, const char*)>("rename");
  Step();
  return real(from, to);
}
int unlinkat(int fd, const char* path, int flags) noexcept {
  static auto* real = Real<int(int, const char*, int)>("unlinkat");
  Step();
  return real(fd, path, flags);
}
int remove(const char* path) noexcept {
  static auto* real = Real<int(const char*)>("remove");
  Step();
  return real(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  static auto* real = Real<int(const char*, mode_t)>("mkdir");
  Step();
  return real(path, mode);
}
int fdatasync(int fd) {
  static auto* real = Real<int(int)>("fdatasync");
  Step();
  return real(fd);
}
int fsync(int fd) {
  static auto* real = Real<int(int)>("fsync");
  Step();
  return real(fd);
}
}

namespace terrace {
namespace {

namespace fs = std::filesystem;

// Runs `work` in a child that dies at its k-th step, and then `check` here; for all k. Returns how
// often it died.
int ForEachCrash(const std::function<void()>& prepare, const std::function<void()>& work,
                 const std::function<void()>& check) {
  for (int k = 1; k < 5000; ++k) {
    prepare();
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      calls_left = k;
      work();
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "k = " << k;
    const int code = WEXITSTATUS(status);
    EXPECT_TRUE(code == 0 || code == kCrashed) << "k = " << k << ": " << code;
    SCOPED_TRACE("crash at step " + std::to_string(k));
    check();
    if (testing::Test::HasFailure() || code == 0) return k - 1;
  }
  ADD_FAILURE() << "the work does not end";
  return 0;
}

class CrashPointTest : public testing::Test {
 protected:
  std::vector<std::string> Names(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
      names.push_back(fs::relative(entry.path(), folder));
    }
    return names;
  }
  void ExpectNoLeftovers(const std::string& folder) {
    for (const std::string& name : Names(folder)) {
      for (const char* half : {".importing", ".removed", ".partial"}) {
        EXPECT_EQ(name.find(half), std::string::npos) << name;
      }
    }
  }
  weights::TempFolder folder_;
  ThreadTeam team_{1};
  std::unique_ptr<ops::Backend> backend_ = weights::MakeBackend(true, &team_);
};

class ImportCrashTest : public CrashPointTest {
 protected:
  ImportCrashTest() {
    weights::WriteModel(path_, 8);
    weights::WriteModel(other_, 1, 2);
  }
  std::shared_ptr<weights::Importer> Make(const std::string& path, int threads = 1) {
    weights::ImporterOptions options;
    options.image_folder = images_;
    options.threads = threads;
    return weights::Importer::Create(format::OpenGguf(path).value(), backend_.get(), options)
        .value();
  }
  void Import(const std::string& path) {
    auto importer = Make(path);
    importer->Start();
    ASSERT_TRUE(importer->WaitForImage().ok()) << importer->WaitForImage();
  }
  // True if there is an image; then each of its blocks must be right.
  bool CheckImage(const std::string& path) {
    auto importer = Make(path);
    if (!importer->image_complete()) return false;
    for (uint32_t s = 0; s < importer->plan().segments.size(); ++s) {
      const auto place = importer->Locate(s);
      for (const tier::DiskBlock& block : place.blocks) {
        std::unique_ptr<std::byte, decltype(&std::free)> data(
            static_cast<std::byte*>(std::aligned_alloc(4096, block.bytes)), &std::free);
        EXPECT_TRUE(place.file->ReadAt(block.offset, {data.get(), block.bytes}).ok());
        EXPECT_EQ(Hash64(data.get(), block.bytes), block.checksum);
      }
    }
    return true;
  }

  const std::string path_ = folder_ / "m.gguf", other_ = folder_ / "other.gguf";
  const std::string images_ = folder_ / "images";
};

TEST_F(ImportCrashTest, AnImportIsWholeOrNotThere) {
  Import(other_);
  Import(path_);
  const uint64_t whole = storage::PhysicalBytes(images_);
  int complete = 0;
  const int crashes = ForEachCrash(
      [&] {
        for (const std::string& name : Names(images_)) {
          if (name.find('/') == std::string::npos && name != Make(other_)->plan().fingerprint) {
            fs::remove_all(images_ + "/" + name);
          }
        }
      },
      [&] { Import(path_); },
      [&] {
        complete += CheckImage(path_);
        EXPECT_TRUE(CheckImage(other_)) << "a finished image is gone";
        ExpectNoLeftovers(images_);
        Import(path_);
        EXPECT_EQ(storage::PhysicalBytes(images_), whole);
      });
  std::printf("%d crashes, %d left a whole image\n", crashes, complete);
  EXPECT_GT(crashes, 10);
  EXPECT_GE(complete, 1);
}

TEST_F(ImportCrashTest, ADamagedImageIsReplacedOrNotThere) {
  Import(path_);
  const std::string image = images_ + "/" + Make(path_)->plan().fingerprint;
  const int crashes = ForEachCrash(
      [&] {
        Import(path_);
        fs::resize_file(image + "/blocks.bin", 4096);
      },
      [&] { Import(path_); },
      [&] {
        CheckImage(path_);
        ExpectNoLeftovers(images_);
      });
  EXPECT_GT(crashes, 10);
}

TEST_F(ImportCrashTest, ARemovalIsDoneOrHasNotBegun) {
  const int crashes = ForEachCrash(
      [&] { Import(path_); }, [&] { format::RemoveLeastUsedImage(images_).IgnoreError(); },
      [&] {
        const bool there = CheckImage(path_);
        ExpectNoLeftovers(images_);
        if (!there) {
          EXPECT_EQ(storage::PhysicalBytes(images_), 0u) << "bytes have leaked";
        }
      });
  EXPECT_GE(crashes, 3);
}

TEST_F(CrashPointTest, KvBlocksAreRightOrNotThereAndWithinTheirCap) {
  const std::string kv = folder_ / "kv";
  constexpr uint64_t kBlock = 64 << 10, kCap = 6 * (kBlock + 4096);
  RealClock clock;
  auto open = [&] {
    storage::BlockStoreOptions options;
    options.folder = kv;
    options.cap_bytes = kCap;
    return storage::BlockStore::Open(options, &clock).value();
  };
  auto key = [](int i) {
    storage::BlockKey key;
    key.bytes[0] = static_cast<uint8_t>(i);
    return key;
  };
  struct alignas(4096) Page {
    std::byte bytes[kBlock];
  };
  auto page = std::make_unique<Page>();
  const int crashes =
      ForEachCrash([] {},
                   [&] {
                     auto store = open();
                     for (int i = 0; i < 10; ++i) {
                       std::memset(page->bytes, i + 1, kBlock);
                       store->Write(key(i), page->bytes).IgnoreError();
                     }
                   },
                   [&] {
                     uint64_t bytes = 0;
                     {
                       auto store = open();
                       EXPECT_TRUE(store->CheckInvariants().ok()) << store->CheckInvariants();
                       for (int i = 0; i < 10; ++i) {
                         if (!store->Read(key(i), page->bytes).ok()) continue;
                         EXPECT_EQ(page->bytes[0], static_cast<std::byte>(i + 1));
                         EXPECT_EQ(page->bytes[kBlock - 1], static_cast<std::byte>(i + 1));
                       }
                       bytes = storage::PhysicalBytes(kv);
                     }
                     EXPECT_LE(bytes, kCap);
                     ExpectNoLeftovers(kv);
                   });
  EXPECT_GT(crashes, 20);
}

TEST_F(CrashPointTest, AVersionOfAModelIsCurrentOrNotThere) {
  const std::string models = folder_ / "models";
  const std::string text = format::ReadFile(weights::Golden("arch/llama"));
  auto publish = [&] {
    weights::ModelStore store(models);
    auto incoming = store.Begin("m", "source");
    if (!incoming.ok()) return;
    std::ofstream((*incoming)->folder() + "/m.gguf", std::ios::binary) << text;
    store.Publish(*std::move(incoming), "", "source", {{"m.gguf", text.size(), ""}}).IgnoreError();
  };
  publish();
  const int crashes =
      ForEachCrash([] {},
                   [&] {
                     publish();
                     weights::ModelStore store(models);
                     auto model = store.Find("m");
                     if (model.ok() && model->versions.size() > 2) {
                       store.Remove("m@" + model->versions[0].version).IgnoreError();
                     }
                   },
                   [&] {
                     weights::ModelStore store(models);
                     auto current = store.Resolve("m");
                     ASSERT_TRUE(current.ok()) << current.status();
                     EXPECT_EQ(format::ReadFile(current->path), text);
                     auto model = store.Find("m");
                     ASSERT_TRUE(model.ok());
                     for (const weights::StoredVersion& version : model->versions) {
                       EXPECT_EQ(version.problem, "") << version.version;
                     }
                   });
  EXPECT_GE(crashes, 4);
}

}  // namespace
}  // namespace terrace
