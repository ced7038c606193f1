// Helpers of the tier tests: images of known content on disk, sources over them, readers that err.
#ifndef TERRACE_TESTS_TIER_TESTING_H_
#define TERRACE_TESTS_TIER_TESTING_H_

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/status.h"
#include "os/direct_file.h"
#include "os/mapping.h"
#include "storage/disk/block_reader.h"
#include "tier/tier_manager.h"

namespace terrace::tier {

// The bytes every test image holds: 8-byte words that depend on the model's seed, the segment and
// the place, so that a block in the wrong place is seen.
inline void FillSegment(uint64_t seed, uint32_t segment, std::span<std::byte> out) {
  uint64_t word = Hash64(&segment, sizeof(segment), seed);
  for (size_t i = 0; i < out.size(); i += 8) {
    std::memcpy(out.data() + i, &word, 8);
    word = word * 6364136223846793005ull + 1442695040888963407ull;
  }
}

inline bool HoldsSegment(uint64_t seed, uint32_t segment, const std::byte* data, uint64_t bytes) {
  uint64_t word = Hash64(&segment, sizeof(segment), seed);
  for (size_t i = 0; i < bytes; i += 8) {
    if (std::memcmp(data + i, &word, 8) != 0) return false;
    word = word * 6364136223846793005ull + 1442695040888963407ull;
  }
  return true;
}

class TestFolder {
 public:
  TestFolder() {
    // Not /tmp: that may be memory, and these tests want a disk.
    std::string name = (std::filesystem::current_path() / "terrace-tier-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A model's image in a file, and its source. Thread-safe after construction, hooks included.
class TestSource : public SegmentSource {
 public:
  TestSource(const std::string& path, uint64_t seed, std::vector<uint64_t> segment_bytes,
             uint64_t block_bytes = kMaxBlockBytes)
      : seed_(seed), sizes_(std::move(segment_bytes)) {
    auto out = os::DirectFile::Create(path).value();
    uint64_t offset = 0;
    for (uint32_t i = 0; i < sizes_.size(); ++i) {
      os::Mapping bytes = os::Mapping::Anonymous(sizes_[i]).value();
      FillSegment(seed, i, bytes.span());
      std::vector<DiskBlock> blocks;
      for (uint64_t at = 0; at < sizes_[i]; at += block_bytes) {
        const uint64_t size = std::min(block_bytes, sizes_[i] - at);
        blocks.push_back(
            {offset + at, static_cast<uint32_t>(size), Hash64(bytes.data() + at, size)});
      }
      EXPECT_TRUE(out->WriteAt(offset, bytes.span()).ok());
      offset += sizes_[i];
      blocks_.push_back(std::move(blocks));
    }
    EXPECT_TRUE(out->Sync().ok());
    file_ = os::DirectFile::OpenForRead(path).value();
  }

  OnDisk Locate(uint32_t segment) const override {
    if (produce_only || (produces != nullptr && produces(segment))) return {};
    return {file_.get(), blocks_[segment]};
  }
  absl::Status Produce(uint32_t segment, std::span<std::byte> out,
                       const CancelFlag* cancel) override {
    ++produced;
    if (out.size() != sizes_[segment]) return absl::InternalError("wrong size");
    if (on_produce != nullptr) RETURN_IF_ERROR(on_produce(segment, cancel));
    FillSegment(seed_, segment, out);
    return absl::OkStatus();
  }

  ModelSpec Spec(const std::string& name, std::shared_ptr<SegmentSource> self,
                 int64_t hot_keep_us = 0) const {
    ModelSpec spec;
    spec.name = name;
    spec.tenant = "tenant";
    spec.hot_keep_us = hot_keep_us;
    for (uint32_t i = 0; i < sizes_.size(); ++i) {
      spec.segments.push_back({"seg." + std::to_string(i), sizes_[i]});
    }
    spec.source = std::move(self);
    return spec;
  }

  uint64_t seed() const { return seed_; }
  const os::DirectFile& file() const { return *file_; }
  std::vector<std::vector<DiskBlock>>& blocks() { return blocks_; }

  std::atomic<bool> produce_only{false};
  std::atomic<int> produced{0};
  // Set before use, not changed while in use.
  std::function<bool(uint32_t)> produces;
  std::function<absl::Status(uint32_t, const CancelFlag*)> on_produce;

 private:
  const uint64_t seed_;
  const std::vector<uint64_t> sizes_;
  std::unique_ptr<os::DirectFile> file_;
  std::vector<std::vector<DiskBlock>> blocks_;
};

// A reader whose reads can be failed, spoiled or held back.
class FaultyReader final : public storage::BlockReader {
 public:
  explicit FaultyReader(std::unique_ptr<storage::BlockReader> below) : below_(std::move(below)) {}
  void Read(const os::DirectFile& file, uint64_t offset, std::span<std::byte> out,
            Done done) override {
    const int number = ++reads;
    if (before != nullptr) {
      absl::Status status = before(number, offset);
      if (!status.ok()) {
        done(std::move(status));
        return;
      }
    }
    below_->Read(file, offset, out,
                 [this, number, out, done = std::move(done)](absl::Status status) {
                   if (status.ok() && after != nullptr) after(number, out);
                   done(std::move(status));
                 });
  }

  std::atomic<int> reads{0};
  // Set before use.
  std::function<absl::Status(int number, uint64_t offset)> before;
  std::function<void(int number, std::span<std::byte>)> after;

 private:
  std::unique_ptr<storage::BlockReader> below_;
};

}  // namespace terrace::tier

#endif  // TERRACE_TESTS_TIER_TESTING_H_
