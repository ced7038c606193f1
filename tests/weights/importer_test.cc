// The importer: images equal what is produced from the source, whatever dies or fails meanwhile.
#include "weights/importer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "base/hash.h"
#include "base/units.h"
#include "device/cpu/thread_team.h"
#include "os/direct_file.h"
#include "weights_testing.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class ImporterTest : public ::testing::Test {
 protected:
  std::shared_ptr<Importer> Make(const std::string& path, bool write_image = true) {
    auto source = format::OpenGguf(path);
    EXPECT_TRUE(source.ok()) << source.status();
    ImporterOptions options{images_, write_image, 2, disk_, [this](const std::string& message) {
                              absl::MutexLock lock(&mutex_);
                              notices_.push_back(message);
                            }};
    auto importer = Importer::Create(*std::move(source), backend_.get(), options);
    EXPECT_TRUE(importer.ok()) << importer.status();
    return *importer;
  }

  std::vector<std::byte> Produced(Importer& importer, uint32_t segment) {
    std::vector<std::byte> out(importer.plan().segments[segment].bytes);
    absl::Status status = importer.Produce(segment, out, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }

  // The segment read from the image, block by block, each checked.
  std::vector<std::byte> FromImage(Importer& importer, uint32_t segment) {
    auto place = importer.Locate(segment);
    EXPECT_NE(place.file, nullptr);
    std::vector<std::byte> out;
    if (place.file == nullptr) return out;
    for (const tier::DiskBlock& block : place.blocks) {
      std::unique_ptr<std::byte, decltype(&std::free)> data(
          static_cast<std::byte*>(std::aligned_alloc(4096, block.bytes)), &std::free);
      EXPECT_TRUE(place.file->ReadAt(block.offset, {data.get(), block.bytes}).ok());
      EXPECT_EQ(Hash64(data.get(), block.bytes), block.checksum);
      out.insert(out.end(), data.get(), data.get() + block.bytes);
    }
    return out;
  }

  void ExpectImageEqualsSource(Importer& importer) {
    for (uint32_t s = 0; s < importer.plan().segments.size(); ++s) {
      ASSERT_EQ(FromImage(importer, s), Produced(importer, s)) << importer.plan().segments[s].name;
    }
  }

  std::vector<std::string> ImageNames() {
    std::vector<std::string> names;
    if (!fs::exists(images_)) return names;
    for (const auto& entry : fs::directory_iterator(images_))
      names.push_back(entry.path().filename());
    return names;
  }

  // Flips a bit of a byte on disk.
  static void Spoil(const std::string& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }

  TempFolder folder_;
  std::string images_ = folder_ / "images";
  storage::DiskBudget* disk_ = nullptr;
  absl::Mutex mutex_;
  std::vector<std::string> notices_;  // guarded by mutex_ while importers run
  ThreadTeam team_{1};
  std::unique_ptr<ops::Backend> backend_ = MakeBackend(true, &team_);
};

TEST_F(ImporterTest, EveryGoldenModelIsImported) {
  for (const std::string& path : GoldenModels()) {
    SCOPED_TRACE(path);
    {
      auto importer = Make(path);
      EXPECT_FALSE(importer->image_complete());
      EXPECT_EQ(importer->Locate(0).file, nullptr);
      importer->Start();
      ASSERT_TRUE(importer->WaitForImage().ok()) << importer->WaitForImage();
      ExpectImageEqualsSource(*importer);
    }
    auto again = Make(path);
    EXPECT_TRUE(again->image_complete()) << "found at the next start, before any thread runs";
    ExpectImageEqualsSource(*again);
  }
}

TEST_F(ImporterTest, ProducesWhileTheImageIsBeingWritten) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 48);
  auto plain = Make(path, false);
  auto importer = Make(path);
  importer->Start();
  auto produce = [&](uint32_t step) {
    for (uint32_t i = 0; i < importer->plan().segments.size(); ++i) {
      uint32_t s = (i * step) % static_cast<uint32_t>(importer->plan().segments.size());
      EXPECT_EQ(Produced(*importer, s), Produced(*plain, s));
    }
  };
  std::thread other([&] { produce(3); });
  produce(1);
  other.join();
  ASSERT_TRUE(importer->WaitForImage().ok()) << importer->WaitForImage();
  ExpectImageEqualsSource(*importer);
}

TEST_F(ImporterTest, ACancelledProduceEndsAndTheNextOneWorks) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 16);
  auto importer = Make(path);
  tier::CancelFlag cancel;
  cancel.cancelled = true;
  std::vector<std::byte> out(importer->plan().segments[0].bytes);
  EXPECT_TRUE(absl::IsCancelled(importer->Produce(0, out, &cancel)));
  cancel.cancelled = false;
  EXPECT_TRUE(importer->Produce(0, out, &cancel).ok());
  out.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(importer->Produce(0, out, nullptr)));
}

TEST_F(ImporterTest, DamagedBlocksAreMadeAnewAndMended) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 16);
  auto importer = Make(path);
  importer->Start();
  ASSERT_TRUE(importer->WaitForImage().ok());
  const auto place = importer->Locate(1);
  const std::vector<std::byte> right = FromImage(*importer, 1);
  Spoil(place.file->path(), place.blocks[0].offset + 100);
  alignas(4096) static std::byte out[8 << 20];
  ASSERT_LE(right.size(), sizeof(out));
  const std::span<std::byte> made(out, right.size());
  ASSERT_TRUE(importer->Produce(1, made, nullptr).ok());
  EXPECT_TRUE(std::equal(right.begin(), right.end(), made.begin()));
  EXPECT_EQ(FromImage(*importer, 1), right);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("1 damaged blocks of blk.0.ffn"));
}

TEST_F(ImporterTest, AnImageBeyondTheDisksCapIsNotWritten) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 16);
  storage::DiskBudget small({images_}, 10 * kMiB);
  disk_ = &small;
  auto importer = Make(path);
  importer->Start();
  EXPECT_TRUE(absl::IsResourceExhausted(importer->WaitForImage())) << importer->WaitForImage();
  EXPECT_EQ(storage::PhysicalBytes(images_), 0u);
  EXPECT_EQ(small.used_bytes(), 0u);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("storage.disk.size"));
  EXPECT_EQ(Produced(*importer, 0).size(), importer->plan().segments[0].bytes) << "it still serves";
}

TEST_F(ImporterTest, UnusedImagesMakeRoomTheLongestUnusedFirst) {
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) {
    paths.push_back(folder_ / ("m" + std::to_string(i) + ".gguf"));
    WriteModel(paths[static_cast<size_t>(i)], 16, static_cast<uint64_t>(i));
  }
  storage::DiskBudget disk({images_}, 40 * kMiB);  // two of them
  disk_ = &disk;
  auto import = [&](size_t i) {
    auto importer = Make(paths[i]);
    importer->Start();
    const absl::Status status = importer->WaitForImage();
    EXPECT_LE(storage::PhysicalBytes(images_), 40 * kMiB);
    return std::pair(std::move(importer), status);
  };
  EXPECT_TRUE(import(0).second.ok());
  auto used = import(1);
  ASSERT_TRUE(used.second.ok());
  EXPECT_TRUE(import(2).second.ok()) << "the first was in nobody's use";
  EXPECT_FALSE(Make(paths[0])->image_complete());
  EXPECT_TRUE(Make(paths[1])->image_complete());
  auto used_too = import(2);
  EXPECT_TRUE(absl::IsResourceExhausted(import(3).second)) << "both are in use";
  EXPECT_TRUE(Make(paths[2])->image_complete());
}

TEST_F(ImporterTest, StoppingAnImportLeavesNothing) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 48);
  auto importer = Make(path);
  importer->Start();
  importer->Stop();
  EXPECT_TRUE(ImageNames().empty() || importer->image_complete());
  EXPECT_EQ(Produced(*importer, 0).size(), importer->plan().segments[0].bytes);
}

// kill -9 at random moments: what is found afterwards is a whole image or none, and no leftovers.
TEST_F(ImporterTest, AKilledImportLeavesNothingThatIsBelieved) {
  constexpr uint64_t kSeed = 7;
  Random random(kSeed);
  SCOPED_TRACE(kSeed);
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 24);
  auto start = Clock::now();
  {
    auto importer = Make(path);
    importer->Start();
    ASSERT_TRUE(importer->WaitForImage().ok());
  }
  auto full = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
  int unfinished = 0, finished = 0;
  for (int round = 0; round < 24; ++round) {
    fs::remove_all(images_);
    pid_t child = fork();
    if (child == 0) {
      auto importer = Make(path);
      importer->Start();
      importer->WaitForImage().IgnoreError();
      pause();
    }
    usleep(static_cast<useconds_t>(random.Below(static_cast<uint64_t>(full) * 3 / 2)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    auto importer = Make(path);
    for (const std::string& name : ImageNames()) EXPECT_EQ(name, importer->plan().fingerprint);
    if (importer->image_complete()) {
      ++finished;
      ExpectImageEqualsSource(*importer);
    } else {
      ++unfinished;
      EXPECT_TRUE(ImageNames().empty());
    }
  }
  EXPECT_GT(unfinished, 0) << "no kill came in time: " << full << " us an import";
  printf("killed %d times: %d unfinished, %d finished (seed %lu)\n", unfinished + finished,
         unfinished, finished, kSeed);
}

TEST_F(ImporterTest, TwoProcessesDoNotCorruptEachOther) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 16);
  for (int round = 0; round < 4; ++round) {
    fs::remove_all(images_);
    std::vector<pid_t> children;
    for (int i = 0; i < 3; ++i) {
      children.push_back(fork());
      if (children.back() == 0) {
        auto importer = Make(path);
        importer->Start();
        bool ok = importer->WaitForImage().ok() && importer->image_complete();
        importer->Stop();
        _exit(ok ? 0 : 1);
      }
    }
    // One of the importers dies half way; the others finish.
    if (round % 2 == 1) {
      usleep(5000);
      kill(children[0], SIGKILL);
    }
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      waitpid(children[i], &status, 0);
      if (round % 2 == 0 || i > 0) {
        EXPECT_EQ(status, 0) << "child " << i;
      }
    }
    auto importer = Make(path);
    ASSERT_TRUE(importer->image_complete());
    EXPECT_EQ(ImageNames().size(), 1u);
    ExpectImageEqualsSource(*importer);
  }
}

TEST_F(ImporterTest, AFullDiskAbandonsTheImageAndServingGoesOn) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 8);
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = {4 << 20, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  auto importer = Make(path);
  importer->Start();
  absl::Status status = importer->WaitForImage();
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(ImageNames().empty());
  EXPECT_FALSE(importer->image_complete());
  for (uint32_t s = 0; s < importer->plan().segments.size(); ++s) Produced(*importer, s);
}

TEST_F(ImporterTest, AnImageFolderThatCannotBeWrittenIsNotFatal) {
  images_ = folder_ / "file";
  format::WriteFile(images_, "not a folder");
  auto importer = Make(Golden("arch/llama"));
  importer->Start();
  EXPECT_FALSE(importer->WaitForImage().ok());
  Produced(*importer, 0);
}

TEST_F(ImporterTest, ASourceThatIsCutWhileImportingAbandonsTheImage) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 16);
  auto importer = Make(path);
  fs::resize_file(path, 1 << 20);
  importer->Start();
  EXPECT_FALSE(importer->WaitForImage().ok());
  EXPECT_TRUE(ImageNames().empty());
  std::vector<std::byte> out(importer->plan().segments[0].bytes);
  EXPECT_FALSE(importer->Produce(0, out, nullptr).ok());
}

TEST_F(ImporterTest, AChangedSourceGetsAnImageOfItsOwn) {
  std::string path = folder_ / "m.gguf";
  auto import = [&] {
    auto importer = Make(path);
    bool found = importer->image_complete();
    importer->Start();
    EXPECT_TRUE(importer->WaitForImage().ok());
    ExpectImageEqualsSource(*importer);
    return found;
  };
  WriteModel(path, 4, 1);
  EXPECT_FALSE(import());
  EXPECT_TRUE(import());
  WriteModel(path, 4, 2);  // the same size and header, other weights and time
  EXPECT_FALSE(import());
  EXPECT_EQ(ImageNames().size(), 1u) << "the image of the old file is gone";
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_FALSE(import());
}

TEST_F(ImporterTest, ADamagedImageIsMadeAgain) {
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 4);
  for (const char* file : {"/manifest.json", "/blocks.bin"}) {
    {
      auto importer = Make(path);
      importer->Start();
      ASSERT_TRUE(importer->WaitForImage().ok());
    }
    fs::resize_file(images_ + "/" + ImageNames()[0] + file, 1000);
    auto importer = Make(path);
    EXPECT_FALSE(importer->image_complete());
    importer->Start();
    ASSERT_TRUE(importer->WaitForImage().ok());
    ExpectImageEqualsSource(*importer);
  }
}

TEST_F(ImporterTest, ASplitSetIsImportedAsOneModel) {
  auto whole = format::OpenGguf(Golden("arch/qwen3")).value();
  for (uint32_t part = 0; part < 3; ++part) {
    format::GgufWriter writer;
    if (part == 0) writer.AddMetadata(whole.metadata);
    writer.AddInt("split.no", format::GgufValueType::kUint16, part);
    writer.AddInt("split.count", format::GgufValueType::kUint16, 3);
    writer.AddInt("split.tensors.count", format::GgufValueType::kInt32,
                  static_cast<int64_t>(whole.tensors.size()));
    for (size_t i = 0; i < whole.tensors.size(); ++i) {
      if (i * 3 / whole.tensors.size() != part) continue;
      const format::TensorInfo& tensor = whole.tensors[i];
      writer.AddTensor(tensor.name, tensor.dtype, tensor.shape,
                       [&](uint64_t offset, std::span<std::byte> out) {
                         return whole.ReadTensor(tensor, offset, out);
                       });
    }
    ASSERT_TRUE(
        writer.Write(folder_ / ("s-0000" + std::to_string(part + 1) + "-of-00003.gguf")).ok());
  }
  auto split = Make(folder_ / "s-00002-of-00003.gguf");
  split->Start();
  ASSERT_TRUE(split->WaitForImage().ok());
  auto single = Make(Golden("arch/qwen3"), false);
  ASSERT_EQ(split->plan().segments.size(), single->plan().segments.size());
  for (uint32_t s = 0; s < single->plan().segments.size(); ++s) {
    EXPECT_EQ(FromImage(*split, s), Produced(*single, s));
  }
}

// Peak resident memory of an import, measured in a process of its own.
TEST_F(ImporterTest, MemoryIsBounded) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers hold memory of their own";
#endif
  std::string path = folder_ / "m.gguf";
  WriteModel(path, 256);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    auto peak = [] {
      std::ifstream status("/proc/self/status");
      std::string word;
      uint64_t kib = 0;
      while (status >> word) {
        if (word == "VmHWM:") status >> kib;
      }
      return kib << 10;
    };
    std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
    uint64_t before = peak();
    auto importer = Make(path);
    importer->Start();
    bool ok = importer->WaitForImage().ok();
    uint64_t grown = ok ? peak() - before : ~uint64_t{0};
    _exit(write(pipes[1], &grown, sizeof(grown)) == sizeof(grown) ? 0 : 1);
  }
  uint64_t grown = 0;
  ASSERT_EQ(read(pipes[0], &grown, sizeof(grown)), static_cast<ssize_t>(sizeof(grown)));
  waitpid(child, nullptr, 0);
  close(pipes[0]);
  close(pipes[1]);
  // Two threads and two spare buffers of 4 MiB, two scratches of 2 MiB and the threads' own memory.
  EXPECT_LT(grown, 40 * kMiB);
  printf("importing 256 MiB took %s\n", FormatBytes(grown).c_str());
}

}  // namespace
}  // namespace terrace::weights
