// Pulling models from a bucket, with what the AWS_* variables say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "../storage/object_server_testing.h"
#include "http_testing.h"
#include "weights/pull.h"
#include "weights_testing.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
using format::ReadFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PullS3Test : public ::testing::Test {
 protected:
  PullS3Test() {
    setenv("no_proxy", "127.0.0.1", 1);
    variables_ = {{"AWS_ENDPOINT_URL", server_.url()},
                  {"AWS_REGION", "eu-test-1"},
                  {"AWS_ACCESS_KEY_ID", "the-id"},
                  {"AWS_SECRET_ACCESS_KEY", "the-secret"}};
    options_.fetch.retry_wait_us = 1000;
    options_.fetch.attempts = 2;
    options_.fetch.environment = [this](std::string_view name) {
      auto found = variables_.find(name);
      return found == variables_.end() ? std::string() : found->second;
    };
    server_.Put("/bucket/dir/Tiny.gguf", {model_});
  }

  TempFolder folder_;
  ModelStore store_{folder_ / "models"};
  std::map<std::string, std::string, std::less<>> variables_;
  storage::FakeObjectServer server_;
  PullOptions options_;
  std::string model_ = ReadFile(Golden("arch/llama"));
};

TEST_F(PullS3Test, AModelComesSigned) {
  uint64_t done = 0;
  options_.progress = [&](const PullProgress& progress) { done = progress.done_bytes; };
  server_.Add({storage::Fault::kRefuse, 1, 0, 503});
  auto result = Pull("s3://bucket/dir/Tiny.gguf", store_, options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->name, "tiny");
  EXPECT_EQ(ReadFile(result->version.path), model_);
  EXPECT_EQ(done, model_.size());
  for (const storage::SeenRequest& request : server_.seen()) {
    EXPECT_THAT(request.Header("authorization"),
                AllOf(HasSubstr("Credential=the-id/"), HasSubstr("/eu-test-1/s3/aws4_request")));
  }
}

TEST_F(PullS3Test, ErrorsNameTheObjectAndNoSecretAndLeaveNothing) {
  absl::Status missing = Pull("s3://bucket/none.gguf", store_, options_).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(Message(missing)), HasSubstr("s3://bucket/none.gguf"));
  server_.Add({storage::Fault::kRefuse, 1, std::nullopt, 403});
  absl::Status refused = Pull("s3://bucket/dir/Tiny.gguf", store_, options_).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(Message(refused)), Not(HasSubstr("the-")));
  EXPECT_TRUE(absl::IsInvalidArgument(Pull("s3://bucket", store_, options_).status()));
  options_.sha256 = std::string(64, '0');
  EXPECT_TRUE(absl::IsDataLoss(Pull("s3://bucket/dir/Tiny.gguf", store_, options_).status()));
  variables_.erase("AWS_SECRET_ACCESS_KEY");
  EXPECT_TRUE(
      absl::IsInvalidArgument(Pull("s3://bucket/dir/Tiny.gguf", store_, options_).status()));
}

// The part that one kind of source left must not be taken up by the other, whose notes are others.
TEST_F(PullS3Test, PartsOfAnotherKindOfSourceAreNotMixedIn) {
  const std::string path = folder_ / "m.gguf";
  HttpServer web;
  Resource resource{.body = std::string(model_.size(), 'w')};
  resource.cut_times = 100;
  resource.cut_bytes = model_.size() / 2;
  web.Set("/m", resource);
  FetchOptions once = options_.fetch;
  once.attempts = 1;
  std::atomic<bool> cancel{false};
  once.cancel = &cancel;
  once.progress = [&](const FetchProgress& progress) { cancel = progress.done_bytes > 0; };
  EXPECT_FALSE(Fetch(web.url("/m"), path, once).ok());
  EXPECT_TRUE(fs::exists(path + ".partial.json"));
  cancel = false;
  once.progress = nullptr;
  server_.Add({storage::Fault::kRefuse, 1, 0, 503});
  EXPECT_FALSE(Fetch("s3://bucket/dir/Tiny.gguf", path, once).ok());
  EXPECT_FALSE(fs::exists(path + ".partial.json"));
  EXPECT_FALSE(fs::exists(path + ".partial"));
  auto result = Fetch("s3://bucket/dir/Tiny.gguf", path, once);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed_at_bytes, 0u);
  EXPECT_EQ(ReadFile(path), model_);
  // The other way round: a note of ranges does not outlive a fetch from the web.
  format::WriteFile(path + ".partial.ranges", "old");
  resource.cut_times = 0;
  web.Set("/m", resource);
  ASSERT_TRUE(Fetch(web.url("/m"), path, once).ok());
  EXPECT_FALSE(fs::exists(path + ".partial.ranges"));
}

}  // namespace
}  // namespace terrace::weights
