// Models that are served from an object store while their file comes to the disk.
#include "weights/object_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "../storage/object_server_testing.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "device/cpu/thread_team.h"
#include "storage/disk/disk_budget.h"
#include "weights/importer.h"
#include "weights/sha256.h"
#include "weights_testing.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
using format::ReadFile;
using storage::Fault;
using ::testing::HasSubstr;

constexpr uint64_t kRange = 8 << 20;

class ObjectSourceTest : public ::testing::Test {
 protected:
  ObjectSourceTest() {
    setenv("no_proxy", "127.0.0.1", 1);
    WriteModel(folder_ / "m.gguf", 24);
    model_ = ReadFile(folder_ / "m.gguf");
    server_.Put("/bucket/m.gguf", {model_});
    options_.folder = folder_ / "objects";
    options_.backoff_us = 1000;
    options_.attempts = 3;
    options_.patience_us = 60'000'000;
    options_.notice = [this](const std::string& notice) {
      absl::MutexLock lock(&mutex_);
      notices_.push_back(notice);
    };
  }

  absl::StatusOr<std::unique_ptr<format::ByteSource>> Open(
      const std::string& url = "s3://bucket/m.gguf") {
    auto place = FindObject(
        url,
        [this](std::string_view name) {
          return name == "AWS_ENDPOINT_URL" ? server_.url() : std::string();
        },
        clock_);
    if (!place.ok()) return place.status();
    return OpenObject(*place, options_);
  }
  std::string Read(const format::ByteSource& source, uint64_t offset, uint64_t bytes) {
    std::string out(bytes, '\0');
    absl::Status status = source.ReadAt(offset, std::as_writable_bytes(std::span(out)));
    return status.ok() ? out : status.ToString();
  }
  std::vector<std::string> Files() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(options_.folder)) {
      names.push_back(entry.path().extension());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder folder_;
  RealClock clock_;
  storage::FakeObjectServer server_;
  ObjectSourceOptions options_;
  std::string model_;
  absl::Mutex mutex_;
  std::vector<std::string> notices_;  // guarded by mutex_ while sources live
};

TEST_F(ObjectSourceTest, AModelIsImportedWhileItsFileComes) {
  ThreadTeam team(1);
  std::unique_ptr<ops::Backend> backend = MakeBackend(true, &team);
  for (int start = 0; start < 2; ++start) {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<std::unique_ptr<format::ByteSource>> files;
    files.push_back(*std::move(file));
    auto source = format::OpenGguf(std::move(files), {"s3://bucket/m.gguf"});
    ASSERT_TRUE(source.ok()) << source.status();
    auto importer = Importer::Create(*std::move(source), backend.get(), {folder_ / "images"});
    ASSERT_TRUE(importer.ok()) << importer.status();
    EXPECT_EQ((*importer)->image_complete(), start == 1) << "the image of the first start is found";
    (*importer)->Start();
    EXPECT_TRUE((*importer)->WaitForImage().ok()) << (*importer)->WaitForImage();
  }
}

TEST_F(ObjectSourceTest, OpeningIsTriedAgainForAsLongAsItMay) {
  // More refusals than a few quick tries get past, of either kind that may go away.
  server_.Add({Fault::kRefuse, 4, std::nullopt, 503});
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(Read(**source, 0, model_.size()), model_);
  source->reset();
  fs::remove_all(options_.folder);
  server_.Add({Fault::kRefuse, 1000, std::nullopt, 500});
  options_.patience_us = 300'000;
  const int64_t begin_us = clock_.NowUs();
  const absl::Status refused = Open().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tries over"));
  EXPECT_GE(clock_.NowUs() - begin_us, options_.patience_us / 2);
}

TEST_F(ObjectSourceTest, A44_RefusedCutAndWrongSizedRangesComeAgain) {
  server_.Add({Fault::kRefuse, 2, 0, 503});
  server_.Add({Fault::kReset, 1, kRange});
  server_.Add({Fault::kCut, 1, 2 * kRange});
  server_.Add({Fault::kLess, 1, 3 * kRange});
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(Read(**source, 0, model_.size()), model_);
  std::map<uint64_t, int> asked;
  for (const storage::SeenRequest& request : server_.seen()) {
    if (request.ranged && request.last > 0) ++asked[request.first];
  }
  for (const auto& [first, times] : asked) EXPECT_LE(times, 3) << first;
}

TEST_F(ObjectSourceTest, A44_RefusalsForGoodAreToldAtOnceAndNameTheObject) {
  absl::Status missing = Open("s3://bucket/none.gguf").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(missing.ToString(), HasSubstr("s3://bucket/none.gguf"));
  server_.Add({Fault::kRefuse, 1, std::nullopt, 403});
  absl::Status refused = Open().status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_TRUE(Open().ok()) << "a later start tries again";
}

TEST_F(ObjectSourceTest, A44_AFailedFetchEndsReadsAndALaterReadTriesAgain) {
  server_.Add({Fault::kRefuse, 6, kRange, 500});  // of two fetches
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Read(**source, kRange, 100), HasSubstr("giving up after 3 attempts"));
  // The first read waited for the first fetch, or came after it and began the second.
  if (Read(**source, kRange, 100) != model_.substr(kRange, 100)) {
    EXPECT_EQ(Read(**source, kRange, 100), model_.substr(kRange, 100));
  }
  absl::MutexLock lock(&mutex_);
  ASSERT_FALSE(notices_.empty());
  EXPECT_THAT(notices_[0], HasSubstr("s3://bucket/m.gguf"));
}

TEST_F(ObjectSourceTest, TheFileOfAnEarlierStartIsReadEvenWithoutTheStore) {
  EXPECT_EQ(Read(**Open(), 0, model_.size()), model_);
  const size_t before = server_.seen().size();
  std::string name;
  {
    auto again = Open();
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Read(**again, 0, model_.size()), model_);
    name = (*again)->name();
  }
  EXPECT_LE(server_.seen().size(), before + 1) << "nothing is fetched twice";
  server_.Add({Fault::kRefuse, 1000, std::nullopt, 503});
  options_.patience_us = 300'000;
  auto offline = Open();
  ASSERT_TRUE(offline.ok()) << offline.status();
  EXPECT_EQ((*offline)->name(), name) << "so that its image is found";
  EXPECT_EQ(Read(**offline, 5, 100), model_.substr(5, 100));
  ASSERT_FALSE(notices_.empty());
  EXPECT_THAT(notices_.back(), HasSubstr("the file of an earlier start is read"));
}

TEST_F(ObjectSourceTest, AnotherStateOfTheObjectIsAnotherFile) {
  std::string name;
  {
    auto source = Open();
    EXPECT_EQ(Read(**source, 0, model_.size()), model_);
    name = (*source)->name();
  }
  std::string other = model_;
  other[other.size() - 1] ^= 1;
  server_.Put("/bucket/m.gguf", {other, "\"v2\""});
  auto source = Open();
  EXPECT_EQ(Read(**source, 0, other.size()), other);
  EXPECT_NE((*source)->name(), name);
  // All bytes have come; that they are whole is written after that, unless the source goes first.
  for (int i = 0; i < 30'000 && Files().back() != ".state"; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  source->reset();
  EXPECT_EQ(Files(), (std::vector<std::string>{".gguf", ".state"})) << "the old one is gone";
}

TEST_F(ObjectSourceTest, AnObjectThatChangesMeanwhileFailsUntilItIsOpenedAnew) {
  server_.Add({Fault::kStall, 1, kRange});
  auto source = Open();
  EXPECT_EQ(Read(**source, 0, 100), model_.substr(0, 100));
  server_.Put("/bucket/m.gguf", {model_, "\"v2\""});
  EXPECT_EQ((*source)->waiting().store, "");
  std::string read;
  std::thread reader([&] { read = Read(**source, kRange, 100); });
  // Who waits for the store is told of, and for how long it has been silent.
  while ((*source)->waiting().still_us < 1000) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ((*source)->waiting().store, "s3://bucket/m.gguf");
  reader.join();
  EXPECT_EQ((*source)->waiting().store, "");
  EXPECT_THAT(read, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_FALSE((*source)->CheckUnchanged().ok());
  EXPECT_EQ(Read(**Open(), kRange, 100), model_.substr(kRange, 100));
}

TEST_F(ObjectSourceTest, WithASumNothingIsReadBeforeItIsRight) {
  Sha256 hash;
  hash.Add(std::as_bytes(std::span(model_)));
  options_.sha256 = hash.Finish();
  server_.Add({Fault::kWrong, 2, kRange});  // of two fetches
  auto source = Open();
  EXPECT_THAT(Read(**source, 0, 4), HasSubstr("SHA-256"));
  if (Read(**source, 0, model_.size()) != model_) {
    EXPECT_EQ(Read(**source, 0, model_.size()), model_) << "a further read fetches it again";
  }
}

TEST_F(ObjectSourceTest, WhatTheDisksCapDoesNotAllowIsNotFetched) {
  storage::DiskBudget disk({options_.folder}, kRange);
  options_.disk = &disk;
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Read(**source, 0, 4), HasSubstr("storage.disk.size"));
  source->reset();
  EXPECT_LE(storage::PhysicalBytes(options_.folder), kRange);
}

}  // namespace
}  // namespace terrace::weights
