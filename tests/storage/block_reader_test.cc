#include "storage/disk/block_reader.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "os/mapping.h"

namespace terrace::storage {
namespace {

class DiskReaderTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    char name[] = "/tmp/terrace-storage-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    data_ = os::Mapping::Anonymous(1 << 20).value();
    for (uint64_t i = 0; i < data_.bytes(); ++i)
      data_.data()[i] = static_cast<std::byte>(i * 7 / 3);
    auto file = os::DirectFile::Create(folder_ + "/f").value();
    ASSERT_TRUE(file->WriteAt(0, data_.span()).ok());
    file_ = os::DirectFile::OpenForRead(folder_ + "/f").value();
    DiskReaderOptions options;
    options.allow_uring = GetParam();
    reader_ = DiskReader::Create(options).value();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) {
    absl::Status got;
    absl::Notification done;
    reader_->Read(*file_, offset, out, [&](absl::Status status) {
      got = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return got;
  }

  std::string folder_;
  os::Mapping data_;
  std::unique_ptr<os::DirectFile> file_;
  std::unique_ptr<DiskReader> reader_;
};

TEST_P(DiskReaderTest, ReadsARangeInFull) {
  os::Mapping out = os::Mapping::Anonymous(1 << 19).value();
  ASSERT_TRUE(Read(4096, out.span()).ok());
  EXPECT_EQ(std::memcmp(out.data(), data_.data() + 4096, out.bytes()), 0);
}

TEST_P(DiskReaderTest, AFileThatEndsTooEarlyIsDataLoss) {
  os::Mapping out = os::Mapping::Anonymous(1 << 19).value();
  EXPECT_EQ(Read((1 << 20) - 8192, out.span()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(1 << 20, out.span()).code(), absl::StatusCode::kDataLoss);
}

TEST_P(DiskReaderTest, AFileCutOffInMidPageIsDataLoss) {
  ASSERT_EQ(::truncate((folder_ + "/f").c_str(), 10'000), 0);
  os::Mapping out = os::Mapping::Anonymous(1 << 19).value();
  absl::Status status = Read(0, out.span());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find(file_->path()), std::string::npos) << status;
}

INSTANTIATE_TEST_SUITE_P(Ways, DiskReaderTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "uring" : "threads"; });

}  // namespace
}  // namespace terrace::storage
