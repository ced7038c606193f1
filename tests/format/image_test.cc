// Images: what is published is complete, what is damaged is refused, what died is removed.
#include "format/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/hash.h"
#include "base/units.h"
#include "format_testing.h"

namespace terrace::format {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Free {
  void operator()(std::byte* data) const { std::free(data); }
};

// A page-aligned block of one value.
std::unique_ptr<std::byte, Free> Block(size_t bytes, int value) {
  std::unique_ptr<std::byte, Free> data(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
  std::fill_n(data.get(), bytes, static_cast<std::byte>(value));
  return data;
}

ImageManifest Manifest(uint64_t mtime_ns = 7) {
  ImageManifest manifest;
  manifest.fingerprint = "00c0ffee";
  manifest.source = {
      {"/models/\"quoted\" \u00e4.gguf", 123456789012, int64_t(mtime_ns), 0xfedcba9876543210}};
  manifest.segments = {{"embed", 8192, CutIntoBlocks(0, 8192)},
                       {"blk.0.attn", (5 << 20), CutIntoBlocks(8192, 5 << 20)}};
  manifest.tensors = {{"token_embd.weight", 0, 64, 8000, DType::kQ4_K, "r16-1", {4, 256}},
                      {"empty", 1, 0, 0, DType::kF32, "plain", {4, 0}}};
  return manifest;
}

// Writes the image of `manifest`, filling in the checksums.
absl::Status Write(ImageWriter& writer, ImageManifest& manifest) {
  int value = 1;
  for (ImageSegment& segment : manifest.segments) {
    for (ImageBlock& block : segment.blocks) {
      auto data = Block(block.bytes, value++);
      block.checksum = Hash64(data.get(), block.bytes);
      RETURN_IF_ERROR(writer.WriteBlock(block.offset, {data.get(), block.bytes}));
    }
  }
  return absl::OkStatus();
}

void WriteAndPublish(const std::string& folder, ImageManifest manifest) {
  auto writer = ImageWriter::Begin(folder, manifest.fingerprint, manifest.BlobBytes());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(Write(**writer, manifest).ok());
  ASSERT_TRUE((*writer)->Publish(manifest).ok());
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(Manifest, SurvivesARoundTrip) {
  ImageManifest manifest = Manifest();
  manifest.segments[1].blocks[0].checksum = ~uint64_t{0};
  auto copy = ParseManifest(SerializeManifest(manifest));
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(*copy, manifest);
}

TEST(Manifest, RefusesEveryFlippedByteAndEveryPrefix) {
  std::string text = SerializeManifest(Manifest());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] ^= 0x04;
    EXPECT_FALSE(ParseManifest(bad).ok()) << i;
    EXPECT_FALSE(ParseManifest(text.substr(0, i)).ok()) << i;
  }
}

// A manifest with a right checksum may still be hostile.
TEST(Manifest, RefusesNumbersThatDoNotHold) {
  auto refused = [](auto change) {
    ImageManifest manifest = Manifest();
    change(manifest);
    return !ParseManifest(SerializeManifest(manifest)).ok();
  };
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[0].blocks[0].offset = 4096; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[0].blocks[0].bytes = 4097; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[0].blocks[0].bytes = 0; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[0].bytes += 4096; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[1].blocks.pop_back(); }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[1].blocks = {{8192, 5 << 20, 0}}; }))
      << "a block of more than 4 MiB";
  EXPECT_TRUE(refused([](ImageManifest& m) { m.segments[0].bytes = ~uint64_t{0}; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.tensors[0].segment = 2; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.tensors[0].offset = 8000; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.tensors[1].name = m.tensors[0].name; }));
  EXPECT_TRUE(refused([](ImageManifest& m) { m.tensors[0].shape[0] = -1; }));
}

TEST(Image, WhatIsPublishedReadsBack) {
  TempFolder folder;
  ImageManifest manifest = Manifest();
  auto writer = ImageWriter::Begin(folder.path(), manifest.fingerprint, manifest.BlobBytes());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(Write(**writer, manifest).ok());
  EXPECT_TRUE(absl::IsNotFound(Image::Open(folder.path(), manifest.fingerprint).status()))
      << "nothing is believed before it is published";
  ASSERT_TRUE((*writer)->Publish(manifest).ok());
  writer->reset();
  auto image = Image::Open(folder.path(), manifest.fingerprint);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ((*image)->manifest(), manifest);
  for (const ImageSegment& segment : manifest.segments) {
    for (const ImageBlock& block : segment.blocks) {
      auto data = Block(block.bytes, 0);
      ASSERT_TRUE((*image)->file().ReadAt(block.offset, {data.get(), block.bytes}).ok());
      EXPECT_EQ(Hash64(data.get(), block.bytes), block.checksum);
    }
  }
  EXPECT_THAT(Names(folder.path()), ::testing::ElementsAre(manifest.fingerprint));
}

TEST(Image, DamagedOnesAreRefusedAndReplaced) {
  ImageManifest manifest = Manifest();
  std::vector<std::function<void(const std::string&)>> damages = {
      [](const std::string& image) { fs::remove(image + "/manifest.json"); },
      [](const std::string& image) { fs::remove(image + "/blocks.bin"); },
      [](const std::string& image) { fs::resize_file(image + "/blocks.bin", 4096); },
      [](const std::string& image) { fs::resize_file(image + "/manifest.json", 100); },
      [](const std::string& image) { WriteFile(image + "/manifest.json", "{}"); },
  };
  for (const auto& damage : damages) {
    TempFolder folder;
    WriteAndPublish(folder.path(), manifest);
    damage(folder / manifest.fingerprint);
    auto image = Image::Open(folder.path(), manifest.fingerprint);
    EXPECT_EQ(image.status().code(), absl::StatusCode::kDataLoss) << image.status();
    WriteAndPublish(folder.path(), manifest);
    EXPECT_TRUE(Image::Open(folder.path(), manifest.fingerprint).ok());
    EXPECT_EQ(Names(folder.path()).size(), 1u);
  }
  // The image of one model under the name of another.
  TempFolder folder;
  WriteAndPublish(folder.path(), manifest);
  fs::rename(folder / manifest.fingerprint, folder / "another");
  EXPECT_FALSE(Image::Open(folder.path(), "another").ok());
}

TEST(ImageWriter, OneAtATimeAndAbandonedOnesLeaveNothing) {
  TempFolder folder;
  ImageManifest manifest = Manifest();
  auto first = ImageWriter::Begin(folder.path(), manifest.fingerprint, manifest.BlobBytes());
  ASSERT_TRUE(first.ok());
  auto second = ImageWriter::Begin(folder.path(), manifest.fingerprint, manifest.BlobBytes());
  EXPECT_TRUE(absl::IsAborted(second.status())) << second.status();
  EXPECT_TRUE(ImageWriter::Begin(folder.path(), "other", 4096).ok()) << "another image is free";
  EXPECT_EQ(RemoveDeadImports(folder.path()).value(), 0) << "live ones stay";
  first->reset();
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_TRUE(ImageWriter::Begin(folder.path(), manifest.fingerprint, 4096).ok());
}

TEST(ImageWriter, RemovesWhatDeadOnesLeft) {
  TempFolder folder;
  WriteAndPublish(folder.path(), Manifest());
  fs::create_directory(folder / "dead.importing");
  WriteFile(folder / "dead.importing/blocks.bin", "half");
  fs::create_directory(folder / "gone.removed");
  WriteFile(folder / "gone.removed/blocks.bin", "half");
  EXPECT_EQ(RemoveDeadImports(folder.path()).value(), 2);
  EXPECT_THAT(Names(folder.path()), ::testing::ElementsAre("00c0ffee"));
  EXPECT_EQ(RemoveDeadImports(folder / "absent").value(), 0);
  // A leftover of the same image is taken over.
  fs::create_directory(folder / "again.importing");
  WriteFile(folder / "again.importing/manifest.json", "old");
  auto writer = ImageWriter::Begin(folder.path(), "again", 4096);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_FALSE(fs::exists(folder / "again.importing/manifest.json"));
}

TEST(ImageWriter, AFullDiskIsFoundAtTheStartOrInTheMiddleAndLeavesNothing) {
  TempFolder folder;
  ImageManifest manifest = Manifest();
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = {64 << 10, old.rlim_max};

  setrlimit(RLIMIT_FSIZE, &small);
  auto refused = ImageWriter::Begin(folder.path(), manifest.fingerprint, manifest.BlobBytes());
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_TRUE(fs::is_empty(folder.path()));

  auto writer = ImageWriter::Begin(folder.path(), manifest.fingerprint, manifest.BlobBytes());
  ASSERT_TRUE(writer.ok());
  setrlimit(RLIMIT_FSIZE, &small);
  absl::Status status = Write(**writer, manifest);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  writer->reset();
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(ImageWriter, AFolderThatCannotBeMadeIsAnError) {
  TempFolder folder;
  WriteFile(folder / "file", "x");
  auto writer = ImageWriter::Begin(folder / "file", "f", 4096);
  EXPECT_FALSE(writer.ok());
  EXPECT_THAT(std::string(Message(writer.status())), HasSubstr(folder / "file"));
}

TEST(Image, StaleOnesOfAChangedSourceAreRemoved) {
  TempFolder folder;
  ImageManifest old = Manifest(7), other = Manifest(7);
  WriteAndPublish(folder.path(), old);
  other.fingerprint = "another";
  other.source[0].path = "/elsewhere.gguf";
  WriteAndPublish(folder.path(), other);
  EXPECT_EQ(RemoveStaleImages(folder.path(), old.source).value(), 0);
  EXPECT_EQ(RemoveStaleImages(folder.path(), Manifest(8).source).value(), 1);
  EXPECT_THAT(Names(folder.path()), ::testing::ElementsAre("another"));
}

}  // namespace
}  // namespace terrace::format
