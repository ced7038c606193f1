// Fetching files: resumed where it can be, checked, and never half under the final name.
#include "weights/fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "../format/format_testing.h"
#include "http_testing.h"
#include "weights/sha256.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
using format::ReadFile;
using format::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string RandomText(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

std::string Digest(const std::string& text) {
  Sha256 hash;
  hash.Add(std::as_bytes(std::span(text)));
  return hash.Finish();
}

class FetchTest : public ::testing::Test {
 protected:
  FetchTest() {
    options_.retry_wait_us = 1000;
    options_.attempts = 3;
    setenv("no_proxy", "127.0.0.1", 1);
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  // A fetch that fails in the middle of `body`, leaving `bytes` of it.
  void Interrupt(const std::string& path, Resource resource, size_t bytes) {
    resource.cut_times = 1;
    resource.cut_bytes = bytes;
    server_.Set(path, resource);
    FetchOptions once = options_;
    std::atomic<bool> cancel{false};
    once.cancel = &cancel;
    once.progress = [&](const FetchProgress& progress) { cancel = progress.done_bytes >= bytes; };
    EXPECT_TRUE(absl::IsCancelled(Fetch(server_.url(path), destination_, once).status()));
    EXPECT_FALSE(fs::exists(destination_));
    ASSERT_EQ(fs::file_size(destination_ + ".partial"), bytes);
    resource.cut_times = 0;
    server_.Set(path, resource);
  }

  TempFolder folder_;
  std::string destination_ = folder_ / "m.gguf";
  HttpServer server_;
  FetchOptions options_;
  std::string body_ = RandomText(3 << 20, 1);
};

TEST_F(FetchTest, Sha256OfKnownTexts) {
  EXPECT_EQ(Digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_TRUE(ParseSha256("sha256:" + std::string(64, 'A')).ok());
  EXPECT_FALSE(ParseSha256(std::string(63, 'a')).ok());
  EXPECT_FALSE(ParseSha256(std::string(64, 'g')).ok());
}

TEST_F(FetchTest, FetchesOverHttp) {
  server_.Set("/m", {.body = body_});
  uint64_t last = 0, total = 0;
  options_.progress = [&](const FetchProgress& progress) {
    EXPECT_GE(progress.done_bytes, last);
    last = progress.done_bytes;
    total = progress.total_bytes;
  };
  options_.sha256 = Digest(body_);
  auto result = Fetch(server_.url("/m"), destination_, options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->bytes, body_.size());
  EXPECT_EQ(result->sha256, Digest(body_));
  EXPECT_EQ(last, body_.size());
  EXPECT_EQ(total, body_.size());
  EXPECT_EQ(ReadFile(destination_), body_);
  EXPECT_THAT(Names(), ::testing::ElementsAre("m.gguf"));
}

TEST_F(FetchTest, FetchesAnEmptyFileAndOneOfUnknownLength) {
  server_.Set("/empty", {.body = ""});
  ASSERT_TRUE(Fetch(server_.url("/empty"), destination_, options_).ok());
  EXPECT_EQ(fs::file_size(destination_), 0u);
  server_.Set("/long", {.body = body_, .length = false});
  ASSERT_TRUE(Fetch(server_.url("/long"), destination_, options_).ok());
  EXPECT_EQ(ReadFile(destination_), body_);
}

TEST_F(FetchTest, ResumesAfterACutBodyWithinOneCall) {
  server_.Set("/m", {.body = body_, .cut_times = 2, .cut_bytes = 1 << 20});
  auto result = Fetch(server_.url("/m"), destination_, options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ReadFile(destination_), body_);
  auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_THAT(requests[1],
              AllOf(HasSubstr("range: bytes=1048576-"), HasSubstr("if-range: \"v1\"")));
  EXPECT_THAT(requests[2], HasSubstr("range: bytes=2097152-"));
}

TEST_F(FetchTest, ResumesInALaterCall) {
  Interrupt("/m", {.body = body_}, 1 << 20);
  options_.sha256 = Digest(body_);
  auto result = Fetch(server_.url("/m"), destination_, options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed_at_bytes, 1u << 20);
  EXPECT_EQ(ReadFile(destination_), body_);
  EXPECT_THAT(server_.requests().back(), HasSubstr("range: bytes=1048576-"));
  EXPECT_THAT(Names(), ::testing::ElementsAre("m.gguf"));
}

TEST_F(FetchTest, StartsOverWhenTheSourceChangedOrCannotResume) {
  std::string other = RandomText(2 << 20, 2);
  Interrupt("/m", {.body = body_}, 1 << 20);
  server_.Set("/m", {.body = other, .etag = "\"v2\""});
  auto result = Fetch(server_.url("/m"), destination_, options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed_at_bytes, 0u);
  EXPECT_EQ(ReadFile(destination_), other);
  fs::remove(destination_);

  Interrupt("/m", {.body = body_}, 1 << 20);
  server_.Set("/m", {.body = body_, .ranges = false});
  ASSERT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok());
  EXPECT_EQ(ReadFile(destination_), body_);
  fs::remove(destination_);

  // The partial of one URL is not the start of another.
  Interrupt("/m", {.body = body_}, 1 << 20);
  server_.Set("/n", {.body = other});
  ASSERT_TRUE(Fetch(server_.url("/n"), destination_, options_).ok());
  EXPECT_EQ(ReadFile(destination_), other);
}

TEST_F(FetchTest, APartialThatIsAlreadyWholeIsTaken) {
  Interrupt("/m", {.body = body_, .length = false}, body_.size());
  auto result = Fetch(server_.url("/m"), destination_, options_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(ReadFile(destination_), body_);
}

TEST_F(FetchTest, WithoutAValidatorNothingIsResumed) {
  for (const char* etag : {"", "W/\"weak\""}) {
    server_.Set("/m", {.body = body_, .etag = etag, .cut_times = 1, .cut_bytes = 1 << 20});
    ASSERT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok());
    EXPECT_EQ(ReadFile(destination_), body_);
    EXPECT_THAT(server_.requests().back(), Not(HasSubstr("range:")));
  }
}

TEST_F(FetchTest, RetriesWhatIsRetryableAndGivesUpOnTheRest) {
  server_.Set("/busy", {.body = body_, .fail_times = 2, .fail_code = 503});
  EXPECT_TRUE(Fetch(server_.url("/busy"), destination_, options_).ok());
  server_.Set("/down", {.body = body_, .fail_times = 100, .fail_code = 500});
  auto down = Fetch(server_.url("/down"), folder_ / "x", options_).status();
  EXPECT_TRUE(absl::IsUnavailable(down)) << down;
  EXPECT_THAT(std::string(Message(down)), AllOf(HasSubstr("3 attempts"), HasSubstr("500")));
  size_t before = server_.requests().size();
  auto absent = Fetch(server_.url("/absent"), folder_ / "x", options_).status();
  EXPECT_TRUE(absl::IsNotFound(absent)) << absent;
  EXPECT_THAT(std::string(Message(absent)), HasSubstr(server_.url("/absent")));
  EXPECT_EQ(server_.requests().size(), before + 1) << "a 404 is not asked again";
  server_.Set("/secret", {.body = body_, .fail_times = 1, .fail_code = 401});
  EXPECT_TRUE(
      absl::IsPermissionDenied(Fetch(server_.url("/secret"), folder_ / "x", options_).status()));
  EXPECT_THAT(Names(), ::testing::ElementsAre("m.gguf")) << "failures leave nothing";
}

TEST_F(FetchTest, WaitsAsLongAsTheServerAsks) {
  server_.Set(
      "/m",
      {.body = body_, .fail_times = 1, .fail_code = 429, .fail_headers = "Retry-After: 1\r\n"});
  auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(950));
}

TEST_F(FetchTest, AStalledServerIsGivenUp) {
  options_.stall_timeout_s = 1;
  options_.attempts = 1;
  server_.Set("/m", {.body = body_, .stall_ms = 4000});
  auto status = Fetch(server_.url("/m"), destination_, options_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(FetchTest, AnUnreachableServerIsAnError) {
  auto status = Fetch("http://127.0.0.1:1/m", destination_, options_).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr("http://127.0.0.1:1/m"));
  EXPECT_TRUE(Names().empty());
}

TEST_F(FetchTest, FollowsRedirectsAndKeepsTheTokenFromOtherHosts) {
  HttpServer other;
  other.Set("/m", {.body = body_});
  server_.Set("/m", {.redirect = other.url("/m")});
  options_.bearer_token = "secret-token";
  ASSERT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok());
  EXPECT_EQ(ReadFile(destination_), body_);
  EXPECT_THAT(server_.requests()[0], HasSubstr("authorization: bearer secret-token"));
  EXPECT_THAT(other.requests()[0], Not(HasSubstr("secret-token")));
  server_.Set("/out", {.redirect = "file:///etc/passwd"});
  EXPECT_FALSE(Fetch(server_.url("/out"), folder_ / "x", options_).ok());
}

TEST_F(FetchTest, AWrongChecksumDeletesWhatCame) {
  server_.Set("/m", {.body = body_});
  options_.sha256 = std::string(64, '0');
  auto status = Fetch(server_.url("/m"), destination_, options_).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr(Digest(body_)));
  EXPECT_TRUE(Names().empty());
}

TEST_F(FetchTest, DamageToWhatWasFetchedBeforeIsFound) {
  Interrupt("/m", {.body = body_}, 1 << 20);
  std::string partial = ReadFile(destination_ + ".partial");
  partial[1000] ^= 1;
  format::WriteFile(destination_ + ".partial", partial);
  options_.sha256 = Digest(body_);
  EXPECT_TRUE(absl::IsDataLoss(Fetch(server_.url("/m"), destination_, options_).status()));
  EXPECT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok());
}

TEST_F(FetchTest, TheOldFileStaysUntilTheNewOneIsWhole) {
  format::WriteFile(destination_, "old");
  server_.Set("/m", {.body = body_, .fail_times = 100, .fail_code = 404});
  EXPECT_FALSE(Fetch(server_.url("/m"), destination_, options_).ok());
  EXPECT_EQ(ReadFile(destination_), "old");
  server_.Set("/m", {.body = body_});
  EXPECT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok());
  EXPECT_EQ(ReadFile(destination_), body_);
}

TEST_F(FetchTest, AFullDiskIsAnErrorAndNothingTakesTheFinalName) {
  server_.Set("/m", {.body = body_});
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = {1 << 20, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  auto status = Fetch(server_.url("/m"), destination_, options_).status();
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE(fs::exists(destination_));
  EXPECT_TRUE(Fetch(server_.url("/m"), destination_, options_).ok()) << "resumed with room";
}

TEST_F(FetchTest, CopiesLocalFiles) {
  std::string source = folder_ / "source.bin";
  format::WriteFile(source, body_);
  for (const std::string& name : {source, "file:" + source, "file://" + source}) {
    auto result = Fetch(name, destination_, options_);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->sha256, Digest(body_));
    EXPECT_EQ(ReadFile(destination_), body_);
    fs::remove(destination_);
  }
  EXPECT_TRUE(absl::IsNotFound(Fetch(folder_ / "absent", destination_, options_).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Fetch("ftp://x/y", destination_, options_).status()));
  EXPECT_FALSE(Fetch(folder_.path(), destination_, options_).ok());
  EXPECT_THAT(Names(), ::testing::ElementsAre("source.bin"));
}

TEST_F(FetchTest, ReadsSmallTexts) {
  server_.Set("/t", {.body = "{\"a\":1}"});
  EXPECT_EQ(FetchText(server_.url("/t"), 100, options_).value(), "{\"a\":1}");
  EXPECT_TRUE(absl::IsResourceExhausted(FetchText(server_.url("/t"), 3, options_).status()));
  EXPECT_TRUE(absl::IsNotFound(FetchText(server_.url("/none"), 3, options_).status()));
}

}  // namespace
}  // namespace terrace::weights
