// Downloads in ranges from a server that errs: what is repeated, what is not, what stays for the
// next attempt, and that nothing wrong ever has the final name.
#include "storage/object/object_download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>

#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "object_server_testing.h"
#include "storage/object/s3_store.h"

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr uint64_t kRange = 64 * 1024;
constexpr int kRanges = 12;  // the last one is short

// Notes how long it was to wait, and does not.
class FakeSleeper final : public Sleeper {
 public:
  explicit FakeSleeper(ManualClock& clock) : clock_(clock) {}
  void SleepUs(int64_t us, const std::atomic<bool>&) override {
    absl::MutexLock lock(&mutex_);
    waits_.push_back(us);
    clock_.AdvanceUs(us);
  }
  std::vector<int64_t> waits() {
    absl::MutexLock lock(&mutex_);
    return waits_;
  }

 private:
  ManualClock& clock_;
  absl::Mutex mutex_;
  std::vector<int64_t> waits_ ABSL_GUARDED_BY(mutex_);
};

std::string RandomText(size_t bytes, uint64_t seed) {
  Random random(seed);
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random.Next());
  return text;
}

std::string HexDigest(const std::string& text) {
  unsigned char out[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out);
  return fmt::format("{:02x}", fmt::join(out, out + sizeof(out), ""));
}

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() {
    setenv("no_proxy", "127.0.0.1", 1);
    std::string pattern = (fs::temp_directory_path() / "terrace-object-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    destination_ = folder_ + "/m.gguf";
    options_.range_bytes = kRange;
    options_.parallel = 4;
    options_.save_bytes = 2 * kRange;
    server_.Put("/models/m", {body_});
    S3Settings settings;
    settings.endpoint = server_.url();
    settings.credentials = {"id", "secret", ""};
    HttpOptions http;
    http.low_speed_s = 1;  // the shortest there is
    store_ = *S3Store::Create(settings, "models", http, clock_);
  }
  ~DownloadTest() override { fs::remove_all(folder_); }

  absl::StatusOr<DownloadResult> Get(const std::string& key = "m") {
    return DownloadObject(*store_, key, destination_, options_, {clock_, random_, sleeper_});
  }
  std::string Contents() {
    std::ifstream in(destination_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::set<std::string> Names() {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }
  // The whole object came, and nothing is left beside it.
  void ExpectWhole(const absl::StatusOr<DownloadResult>& result) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->bytes, body_.size());
    EXPECT_EQ(result->sha256, HexDigest(body_));
    EXPECT_TRUE(Contents() == body_);
    EXPECT_EQ(Names(), std::set<std::string>{"m.gguf"});
  }
  // Only the range at `offset` was asked for again.
  void ExpectRepeated(uint64_t offset, int times) {
    for (uint64_t at = 0; at < body_.size(); at += kRange) {
      EXPECT_EQ(server_.CountAt(at), at == offset ? times : 1) << "range at " << at;
    }
  }

  const std::string body_ = RandomText(kRanges * kRange - 1000, 7);
  std::string folder_, destination_;
  FakeObjectServer server_;
  ManualClock clock_{1369353600000000};
  Random random_{11};
  FakeSleeper sleeper_{clock_};
  std::unique_ptr<S3Store> store_;
  DownloadOptions options_;
};

TEST_F(DownloadTest, RangesComeInParallelAndOnce) {
  absl::Notification four;
  std::atomic<int> asked{0};
  server_.OnRequest([&](const SeenRequest& request) {
    // No range is answered before four are asked for at a time.
    if (request.last == 0) return;
    if (++asked == 4) four.Notify();
    EXPECT_TRUE(four.WaitForNotificationWithTimeout(absl::Minutes(1)));
  });
  uint64_t reported = 0;
  options_.progress = [&](const DownloadProgress& progress) {
    EXPECT_GE(progress.done_bytes, reported);
    reported = progress.done_bytes;
  };
  auto result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->retries, 0);
  EXPECT_EQ(reported, body_.size());
  EXPECT_EQ(server_.most_in_flight(), 4);
  ExpectRepeated(body_.size(), 0);
  for (const SeenRequest& request : server_.seen()) {
    EXPECT_EQ(request.Header("if-match"), request.last > 0 ? "\"v1\"" : "");
  }
}

TEST_F(DownloadTest, RequestsAreSmallAtBothEndsAndLargeBetween) {
  options_.parallel = 1;
  options_.request_bytes = 3 * kRange;
  std::vector<uint64_t> sizes;
  server_.OnRequest([&](const SeenRequest& request) {
    if (request.last > 0) sizes.push_back((request.last - request.first) / kRange + 1);
  });
  ExpectWhole(Get());
  ASSERT_GE(sizes.size(), 3u);
  EXPECT_EQ(sizes.front(), 1u);
  EXPECT_EQ(sizes.back(), 1u);
  EXPECT_EQ(*std::max_element(sizes.begin(), sizes.end()), 3u);
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}), kRanges);
}

TEST_F(DownloadTest, TwiceUnavailableThenFine) {
  server_.Add({Fault::kRefuse, 2, 3 * kRange});
  auto result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->retries, 2);
  ExpectRepeated(3 * kRange, 3);
  // Half of each wait is random, and the second is twice the first.
  auto waits = sleeper_.waits();
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_THAT(waits[0], AllOf(Ge(options_.backoff_us / 2), Le(options_.backoff_us)));
  EXPECT_THAT(waits[1], AllOf(Ge(options_.backoff_us), Le(options_.backoff_us * 2)));
}

TEST_F(DownloadTest, TheFirstLookIsRepeatedToo) {
  server_.Add({Fault::kRefuse, 2, std::nullopt, 500});
  ExpectWhole(Get());
}

TEST_F(DownloadTest, AServerThatAsksForTimeGetsIt) {
  server_.Add({Fault::kRefuse, 1, kRange, 429, "Retry-After: 9\r\n"});
  ExpectWhole(Get());
  EXPECT_THAT(sleeper_.waits(), Each(9000000));
}

TEST_F(DownloadTest, ResetInMidBodyRepeatsThatRange) {
  server_.Add({Fault::kReset, 1, 5 * kRange});
  ExpectWhole(Get());
  ExpectRepeated(5 * kRange, 2);
}

TEST_F(DownloadTest, BodiesOfAnotherLengthRepeatThatRange) {
  server_.Add({Fault::kCut, 2, 2 * kRange});
  ExpectWhole(Get());
  ExpectRepeated(2 * kRange, 3);
  for (Fault::Kind kind : {Fault::kShort, Fault::kLess, Fault::kMore}) {
    server_.Add({kind, 1, 4 * kRange});
    auto result = Get();
    ExpectWhole(result);
    EXPECT_EQ(result->retries, 1) << kind;
  }
}

TEST_F(DownloadTest, AStalledRangeIsGivenUpAndRepeated) {
  server_.Add({Fault::kStall, 1, 1 * kRange});
  server_.Add({Fault::kSilent, 1, 2 * kRange});
  auto result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->retries, 2);
  EXPECT_EQ(server_.CountAt(0), 1);
  EXPECT_EQ(server_.CountAt(kRange), 2);
  EXPECT_EQ(server_.CountAt(2 * kRange), 2);
}

TEST_F(DownloadTest, ForbiddenAndMissingFailAtOnceByName) {
  for (int code : {403, 404}) {
    for (std::optional<uint64_t> where : {std::optional<uint64_t>(), std::optional(2 * kRange)}) {
      size_t before = server_.seen().size();
      server_.Add({Fault::kRefuse, 1, where, code});
      absl::Status status = Get().status();
      EXPECT_EQ(absl::IsNotFound(status), code == 404) << status;
      EXPECT_EQ(absl::IsPermissionDenied(status), code == 403) << status;
      EXPECT_THAT(std::string(Message(status)), HasSubstr("s3://models/m"));
      EXPECT_FALSE(fs::exists(destination_));
      EXPECT_TRUE(sleeper_.waits().empty());
      EXPECT_TRUE(where || server_.seen().size() == before + 1);
      EXPECT_TRUE(code == 403 || Names().empty());
    }
  }
  EXPECT_TRUE(absl::IsNotFound(Get("none").status()));
  ExpectWhole(Get());  // a later request tries again
}

TEST_F(DownloadTest, AttemptsEndAndTheNextCallTakesUpWhatCame) {
  options_.attempts = 3;
  options_.parallel = 1;  // in order, so that what has come is known
  server_.Add({Fault::kRefuse, 3, 6 * kRange});
  absl::Status status = Get().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(Message(status)), AllOf(HasSubstr("3 attempts"), HasSubstr("503")));
  EXPECT_EQ(Names(), (std::set<std::string>{"m.gguf.partial", "m.gguf.partial.ranges"}));
  auto result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->resumed_at_bytes, 6 * kRange);
  ExpectRepeated(6 * kRange, 4);
}

TEST_F(DownloadTest, ACancelledDownloadIsResumed) {
  std::atomic<bool> cancel{false};
  options_.parallel = 1;
  options_.cancel = &cancel;
  server_.OnRequest([&](const SeenRequest& request) { cancel = request.first == 4 * kRange; });
  EXPECT_TRUE(absl::IsCancelled(Get().status()));
  EXPECT_FALSE(fs::exists(destination_));
  server_.OnRequest(nullptr);
  cancel = false;
  auto result = Get();
  ExpectWhole(result);
  EXPECT_GE(result->resumed_at_bytes, 4 * kRange);
}

TEST_F(DownloadTest, WhatWasLeftOfAnotherStateOrBrokenNotesIsNotTakenUp) {
  options_.attempts = 1;
  options_.parallel = 1;
  auto interrupt = [&] {
    server_.Add({Fault::kRefuse, 1, 6 * kRange});
    EXPECT_FALSE(Get().ok());
    EXPECT_TRUE(fs::exists(DownloadNotePath(destination_)));
  };
  interrupt();
  server_.Put("/models/m", {body_, "\"v2\""});
  auto result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->resumed_at_bytes, 0u);

  interrupt();
  fs::resize_file(DownloadNotePath(destination_), 30);
  result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->resumed_at_bytes, 0u);

  interrupt();
  fs::resize_file(destination_ + ".partial", 1000);
  result = Get();
  ExpectWhole(result);
  EXPECT_EQ(result->resumed_at_bytes, 0u);
}

TEST_F(DownloadTest, AnObjectThatChangesMeanwhileIsFetchedAnew) {
  options_.parallel = 1;
  const std::string other = RandomText(body_.size(), 8);
  server_.OnRequest([&](const SeenRequest& request) {
    if (request.first == 5 * kRange) server_.Put("/models/m", {other, "\"v2\""});
  });
  auto result = Get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->restarts, 1);
  EXPECT_TRUE(Contents() == other);
  EXPECT_EQ(Names(), std::set<std::string>{"m.gguf"});
}

TEST_F(DownloadTest, AnObjectThatKeepsChangingIsAnErrorThatSaysSo) {
  std::atomic<int> state{1};
  server_.OnRequest([&](const SeenRequest& request) {
    if (request.first > 0) {
      server_.Put("/models/m", {body_, fmt::format("\"v{}\"", ++state)});
    }
  });
  absl::Status status = Get().status();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_THAT(std::string(Message(status)),
              AllOf(HasSubstr("s3://models/m"), HasSubstr("changed")));
  EXPECT_TRUE(Names().empty());
}

TEST_F(DownloadTest, WrongBytesFailTheChecksumAndLeaveNothing) {
  options_.sha256 = HexDigest(body_);
  server_.Add({Fault::kWrong, 1, 3 * kRange});
  absl::Status status = Get().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(Message(status)), HasSubstr("s3://models/m"));
  EXPECT_TRUE(Names().empty());
  ExpectWhole(Get());
}

TEST_F(DownloadTest, TheTimeLimitEndsIt) {
  options_.attempts = 1000;
  options_.time_limit_us = 60000000;
  server_.Add({Fault::kRefuse, 1000, 2 * kRange});
  absl::Status status = Get().status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(Message(status)), AllOf(HasSubstr("60 s"), HasSubstr("503")));
  int64_t total = 0;
  for (int64_t wait : sleeper_.waits()) {
    total += wait;
    EXPECT_LE(wait, options_.max_backoff_us);
  }
  EXPECT_LE(total, options_.time_limit_us);
}

TEST_F(DownloadTest, AFullDiskShowsBeforeAnythingIsFetched) {
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = {body_.size() / 2, old.rlim_max};
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  absl::Status status = Get().status();
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(server_.CountAt(0), 0);
}

TEST_F(DownloadTest, TwoDownloadsToOneFileDoNotMix) {
  server_.OnRequest([&](const SeenRequest& request) {
    if (request.first != kRange) return;
    EXPECT_TRUE(absl::IsAborted(Get().status()));
  });
  ExpectWhole(Get());
}

TEST_F(DownloadTest, EmptyObjects) {
  server_.Put("/models/none", {""});
  auto result = Get("none");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->sha256, HexDigest(""));
  EXPECT_TRUE(fs::exists(destination_));
  EXPECT_EQ(fs::file_size(destination_), 0u);
}

// Any mix of faults that go away ends with the whole object.
TEST_F(DownloadTest, SeededFaultsAreAllOvercome) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Random random(seed);
    for (int i = 0; i < 8; ++i) {
      const Fault::Kind kinds[] = {Fault::kRefuse, Fault::kReset, Fault::kCut, Fault::kShort};
      uint64_t offset = random.Below(kRanges) * kRange;
      server_.Add({kinds[random.Below(4)], 1, offset, random.Below(2) == 0 ? 500 : 503});
    }
    options_.attempts = 9;  // one more than all faults on one range
    options_.parallel = 1 + static_cast<int>(random.Below(16));
    ExpectWhole(Get());
  }
}

}  // namespace
}  // namespace terrace::storage
