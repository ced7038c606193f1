// Pulling models from files, from a web server and from a hub.
#include "weights/pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "format/gguf.h"
#include "format/model_set.h"
#include "http_testing.h"
#include "weights/sha256.h"
#include "weights_testing.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
using format::ReadFile;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Digest(const std::string& text) {
  Sha256 hash;
  hash.Add(std::as_bytes(std::span(text)));
  return hash.Finish();
}

class PullTest : public ::testing::Test {
 protected:
  PullTest() {
    setenv("no_proxy", "127.0.0.1", 1);
    options_.fetch.retry_wait_us = 1000;
    options_.fetch.attempts = 2;
    options_.hub = server_.url();
  }
  absl::StatusOr<PullResult> Get(const std::string& source) {
    return Pull(source, store_, options_);
  }
  std::string Error(const std::string& source) {
    auto result = Get(source);
    return result.ok() ? "(accepted)" : std::string(Message(result.status()));
  }
  // A hub repository with these files.
  void SetRepository(const std::vector<std::pair<std::string, std::string>>& files) {
    std::string siblings;
    for (const auto& [path, body] : files) {
      server_.Set("/owner/Tiny-GGUF/resolve/0123abcd/" + path, {.body = body});
      siblings +=
          fmt::format(R"({}{{"rfilename":"{}","size":{},"lfs":{{"sha256":"{}","size":{}}}}})",
                      siblings.empty() ? "" : ",", path, body.size(), Digest(body), body.size());
    }
    server_.Set("/api/models/owner/Tiny-GGUF?blobs=true",
                {.body = fmt::format(R"({{"sha":"0123abcd","siblings":[{}]}})", siblings)});
  }
  // The three parts of a split model, by file name.
  std::vector<std::pair<std::string, std::string>> SplitModel() {
    auto whole = format::OpenGguf(Golden("arch/qwen3")).value();
    std::vector<std::pair<std::string, std::string>> parts;
    for (uint32_t part = 0; part < 3; ++part) {
      format::GgufWriter writer;
      if (part == 0) writer.AddMetadata(whole.metadata);
      writer.AddInt("split.no", format::GgufValueType::kUint16, part);
      writer.AddInt("split.count", format::GgufValueType::kUint16, 3);
      writer.AddInt("split.tensors.count", format::GgufValueType::kInt32,
                    static_cast<int64_t>(whole.tensors.size()));
      for (size_t i = part; i < whole.tensors.size(); i += 3) {
        const format::TensorInfo& tensor = whole.tensors[i];
        writer.AddTensor(tensor.name, tensor.dtype, tensor.shape,
                         [&](uint64_t offset, std::span<std::byte> out) {
                           return whole.ReadTensor(tensor, offset, out);
                         });
      }
      parts.emplace_back(format::PartPath("tiny", part + 1, 3), writer.FileBytes().value());
    }
    return parts;
  }

  TempFolder folder_;
  ModelStore store_{folder_ / "models"};
  HttpServer server_;
  PullOptions options_;
  std::string model_ = ReadFile(Golden("arch/llama"));
};

TEST_F(PullTest, FromAPath) {
  auto result = Get(Golden("arch/llama"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->name, "llama");
  EXPECT_EQ(result->version.version, "1");
  EXPECT_EQ(store_.Resolve("llama")->path, result->version.path);
  EXPECT_EQ(ReadFile(result->version.path), model_);
  auto again = Get(Golden("arch/llama"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->already_there);
  EXPECT_EQ(again->version.version, "1");
  EXPECT_EQ(store_.Find("llama")->versions.size(), 1u);
}

TEST_F(PullTest, FromAWebServerUnderANameAndVersion) {
  server_.Set("/some/Model%20X.gguf?download=1", {.body = model_});
  options_.name = "translate";
  options_.version = "2026-01";
  options_.sha256 = Digest(model_);
  uint64_t done = 0;
  options_.progress = [&](const PullProgress& progress) {
    done = progress.done_bytes;
    EXPECT_EQ(progress.total_bytes, model_.size());
  };
  auto result = Get(server_.url("/some/Model%20X.gguf?download=1"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(done, model_.size());
  EXPECT_EQ(store_.Resolve("translate@2026-01")->files[0].sha256, Digest(model_));
  options_.sha256.clear();
  EXPECT_TRUE(absl::IsAlreadyExists(Get(Golden("arch/qwen3")).status()));
}

TEST_F(PullTest, ANewFileIsANewVersionAndAnOldOneIsFoundAgain) {
  options_.name = "m";
  server_.Set("/m.gguf", {.body = model_});
  ASSERT_TRUE(Get(server_.url("/m.gguf")).ok());
  server_.Set("/m.gguf", {.body = ReadFile(Golden("arch/qwen3")), .etag = "\"v2\""});
  auto second = Get(server_.url("/m.gguf"));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->version.version, "2");
  EXPECT_EQ(store_.Resolve("m")->version, "2");
  server_.Set("/m.gguf", {.body = model_});
  auto third = Get(server_.url("/m.gguf"));
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_TRUE(third->already_there);
  EXPECT_EQ(store_.Resolve("m")->version, "1");
}

TEST_F(PullTest, GoesOnAfterAnInterruption) {
  server_.Set("/m.gguf", {.body = model_, .cut_times = 1, .cut_bytes = 100000});
  std::atomic<bool> cancel{false};
  options_.fetch.cancel = &cancel;
  options_.progress = [&](const PullProgress& progress) { cancel = progress.done_bytes >= 100000; };
  EXPECT_TRUE(absl::IsCancelled(Get(server_.url("/m.gguf")).status()));
  EXPECT_TRUE(store_.List().value().empty());
  cancel = false;
  options_.progress = nullptr;
  auto result = Get(server_.url("/m.gguf"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed_at_bytes, 100000u);
  EXPECT_EQ(ReadFile(result->version.path), model_);
}

TEST_F(PullTest, WhatIsNotAModelDoesNotEnterTheStore) {
  server_.Set("/page.gguf", {.body = "<html>not found</html>"});
  EXPECT_THAT(Error(server_.url("/page.gguf")), HasSubstr("not a GGUF file"));
  server_.Set("/cut.gguf", {.body = model_.substr(0, model_.size() - 4096)});
  EXPECT_THAT(Error(server_.url("/cut.gguf")), HasSubstr("missing"));
  options_.sha256 = std::string(64, '0');
  EXPECT_THAT(Error(Golden("arch/llama")), HasSubstr("SHA-256"));
  options_.sha256.clear();
  EXPECT_THAT(Error(server_.url("/absent.gguf")), HasSubstr("404"));
  EXPECT_THAT(Error(folder_ / "absent.gguf"), HasSubstr("absent.gguf"));
  EXPECT_THAT(Error("s3://bucket/x.gguf"), HasSubstr("s3://bucket/x.gguf"));
  EXPECT_TRUE(store_.List().value().empty());
  EXPECT_TRUE(fs::is_empty(store_.folder()));
}

TEST_F(PullTest, ASplitModelComesWhole) {
  for (const auto& [name, body] : SplitModel()) server_.Set("/" + name, {.body = body});
  auto result = Get(server_.url("/tiny-00002-of-00003.gguf"));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->name, "tiny");
  EXPECT_EQ(result->version.parts, 3u);
  EXPECT_TRUE(format::OpenGguf(result->version.path).ok());
}

TEST_F(PullTest, FromAHub) {
  SetRepository({{"README.md", "x"}, {"tiny-Q4_K_M.gguf", model_}, {"mmproj-tiny.gguf", "tower"}});
  auto result = Get("hf:owner/Tiny-GGUF");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->name, "tiny");
  EXPECT_EQ(ReadFile(result->version.path), model_);
  size_t requests = server_.requests().size();
  EXPECT_TRUE(Get("hf:owner/Tiny-GGUF")->already_there);
  EXPECT_EQ(server_.requests().size(), requests + 1) << "only the listing is asked for again";
}

TEST_F(PullTest, AHubFileIsChosenByNameOrPart) {
  SetRepository(
      {{"tiny-Q4_K_M.gguf", model_}, {"sub/tiny-Q8_0.gguf", ReadFile(Golden("arch/qwen3"))}});
  EXPECT_THAT(
      Error("hf:owner/Tiny-GGUF"),
      AllOf(HasSubstr("several"), HasSubstr("tiny-Q4_K_M.gguf"), HasSubstr("sub/tiny-Q8_0.gguf")));
  EXPECT_THAT(Error("hf:owner/Tiny-GGUF:q5"), HasSubstr("no GGUF file 'q5'"));
  auto part = Get("hf:owner/Tiny-GGUF:q8_0");
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(fs::path(part->version.path).filename(), "tiny-Q8_0.gguf");
  auto whole = Get("hf:owner/Tiny-GGUF:tiny-Q4_K_M.gguf");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->version.version, "2");
}

TEST_F(PullTest, AHubFileThatDoesNotMatchItsListingIsRefused) {
  SetRepository({{"tiny.gguf", model_}});
  std::string other = model_;
  other[other.size() / 2] ^= 1;
  server_.Set("/owner/Tiny-GGUF/resolve/0123abcd/tiny.gguf", {.body = other});
  EXPECT_THAT(Error("hf:owner/Tiny-GGUF"), HasSubstr("SHA-256"));
  EXPECT_TRUE(store_.List().value().empty());
}

TEST_F(PullTest, ASplitHubModelKeepsFinishedPartsOverAnInterruption) {
  auto parts = SplitModel();
  SetRepository(parts);
  std::string third = "/owner/Tiny-GGUF/resolve/0123abcd/" + parts[2].first;
  server_.Set(third, {.body = parts[2].second, .fail_times = 100, .fail_code = 500});
  EXPECT_FALSE(Get("hf:owner/Tiny-GGUF").ok());
  EXPECT_TRUE(store_.List().value().empty());
  server_.Set(third, {.body = parts[2].second});
  size_t before = server_.requests().size();
  auto result = Get("hf:owner/Tiny-GGUF");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->version.parts, 3u);
  EXPECT_EQ(server_.requests().size(), before + 2) << "the listing and the third part";
}

TEST_F(PullTest, ACheckpointComesWholeFromAHub) {
  const std::string folder = std::string(TERRACE_TEST_DATA) + "/checkpoints/granite/";
  std::vector<std::pair<std::string, std::string>> files = {
      {"README.md", "x"},
      {"pytorch_model.bin", "the same weights"},
      {"1_Pooling/config.json", R"({"pooling_mode_mean_tokens":true})"},
      {"config.json", ReadFile(folder + "config.json")},
      {"model.safetensors", ReadFile(folder + "model.safetensors")}};
  SetRepository(files);
  auto result = Get("hf:owner/Tiny-GGUF");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->version.parts, 1u);
  EXPECT_EQ(result->version.bytes, files[4].second.size());
  EXPECT_TRUE(format::OpenModel(result->version.path).ok());
  EXPECT_EQ(ReadFile(result->version.path + "/1_Pooling/config.json"), files[2].second);
  EXPECT_FALSE(fs::exists(result->version.path + "/pytorch_model.bin"));
  EXPECT_EQ(store_.Resolve(result->name)->path, result->version.path);
  EXPECT_TRUE(Get("hf:owner/Tiny-GGUF")->already_there);

  // Beside a GGUF file it must be asked for.
  files.push_back({"tiny.gguf", model_});
  SetRepository(files);
  EXPECT_EQ(ReadFile(Get("hf:owner/Tiny-GGUF")->version.path), model_);
  EXPECT_TRUE(Get("hf:owner/Tiny-GGUF:safetensors")->already_there);

  // A config without weights is no model.
  SetRepository({files[3]});
  EXPECT_THAT(Error("hf:owner/Tiny-GGUF"), HasSubstr("no GGUF file"));
}

TEST_F(PullTest, BadHubSourcesAndListings) {
  for (const char* bad : {"hf:", "hf:x", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a b/c", "hf:/x"}) {
    EXPECT_THAT(Error(bad), HasSubstr("hf:owner/name")) << bad;
  }
  EXPECT_THAT(Error("hf:owner/none"), HasSubstr("404"));
  for (const char* body : {"", "[]", "{}", "{\"siblings\":3}", "not json"}) {
    server_.Set("/api/models/owner/Tiny-GGUF?blobs=true", {.body = body});
    EXPECT_THAT(Error("hf:owner/Tiny-GGUF"), HasSubstr("no listing")) << body;
  }
  server_.Set("/api/models/owner/Tiny-GGUF?blobs=true",
              {.body = R"({"siblings":[3,{"rfilename":4},{"rfilename":"../../.gguf"}]})"});
  EXPECT_THAT(Error("hf:owner/Tiny-GGUF"), HasSubstr("no GGUF file"));
}

}  // namespace
}  // namespace terrace::weights
