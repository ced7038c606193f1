// Keys, networks, compression, versions on trial and the watchdog: the parts of the service that
// need no connection.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "server/api_keys.h"
#include "server/cidr.h"
#include "server/compress.h"
#include "server/front.h"
#include "server/version_router.h"
#include "server/watchdog.h"

namespace terrace::server {
namespace {

constexpr int64_t kSecond = 1'000'000;

class Keys : public ::testing::Test {
 protected:
  Keys() : path_(testing::TempDir() + "/keys-" + std::to_string(getpid()) + ".json") {
    std::filesystem::remove(path_);
  }
  ~Keys() override { std::filesystem::remove(path_); }

  // Adds a key and gives its text.
  std::string Add(ApiKey key) {
    absl::StatusOr<std::string> text = MakeKey(&key);
    EXPECT_TRUE(text.ok());
    keys_.push_back(key);
    EXPECT_TRUE(WriteKeys(path_, keys_).ok());
    return *text;
  }
  static HttpRequest With(const std::string& header, const std::string& value) {
    HttpRequest request{.method = "POST", .path = "/v1/chat/completions", .peer = "10.1.2.3"};
    request.headers.emplace_back(header, value);
    return request;
  }
  int StatusOf(KeyRing* ring, HttpRequest request, bool needs_admin = false) {
    const std::optional<ApiError> error = ring->Admit(needs_admin, &request);
    last_ = request;
    if (error) error_ = *error;
    return error ? error->status : 200;
  }

  const std::string path_;
  std::vector<ApiKey> keys_;
  ManualClock clock_{100 * kSecond};
  NullLogger log_;
  HttpRequest last_;
  ApiError error_;
};

TEST_F(Keys, FileRoundTripsAndHoldsNoSecret) {
  ApiKey key{.name = "ci", .tenant = "build", .admin = true, .sla = SlaClass::kBatch};
  key.requests_per_minute = 7;
  key.tokens_per_minute = 8;
  key.concurrent = 9;
  key.expires_s = 1234567890;
  key.allow = *CidrList::Parse("10.0.0.0/8, ::1");
  const std::string text = Add(key);
  std::ifstream file(path_);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(content.find(text.substr(12)), std::string::npos) << "the secret is in the file";
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  absl::StatusOr<std::vector<ApiKey>> read = ReadKeys(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 1u);
  const ApiKey& back = (*read)[0];
  EXPECT_EQ(back.hash, keys_[0].hash);
  EXPECT_EQ(back.name + back.tenant + back.allow.ToString(), "cibuild10.0.0.0/8, ::1");
  EXPECT_TRUE(back.admin && back.infer);
  EXPECT_EQ(back.sla, SlaClass::kBatch);
  EXPECT_EQ(back.requests_per_minute + back.tokens_per_minute + back.concurrent, 24);
  EXPECT_EQ(back.expires_s, 1234567890);
}

TEST_F(Keys, A50RightKeysComeInWhateverTheCaseOfTheSchemeAndWrongOnesDoNot) {
  const std::string text = Add({.name = "app", .tenant = "t1"});
  KeyRing ring(path_, &clock_, &log_);
  EXPECT_EQ(StatusOf(&ring, With("authorization", "Bearer " + text)), 200);
  EXPECT_EQ(last_.caller.tenant, "t1");
  EXPECT_EQ(StatusOf(&ring, With("authorization", "bearer " + text)), 200);
  EXPECT_EQ(StatusOf(&ring, With("authorization", "BEARER  " + text)), 200);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", text)), 200);
  std::string wrong = text;
  wrong.back() = wrong.back() == 'a' ? 'b' : 'a';
  for (const std::string& bad :
       {std::string(), std::string("x"), wrong, text + "x", text.substr(0, 20),
        std::string("tk_00000000_") + std::string(43, 'a'), std::string(100'000, 'x')}) {
    EXPECT_EQ(StatusOf(&ring, With("authorization", "Bearer " + bad)), 401) << bad.substr(0, 60);
    EXPECT_EQ(error_.code, "invalid_api_key");
  }
  EXPECT_EQ(StatusOf(&ring, With("authorization", "Basic " + text)), 401);
}

TEST_F(Keys, RightsPlacesAndExpiry) {
  ApiKey admin{.name = "ops", .infer = false, .admin = true};
  ApiKey placed{.name = "placed"};
  placed.allow = *CidrList::Parse("192.0.2.0/24");
  ApiKey ending{.name = "ending"};
  ending.expires_s = 105;
  const std::string admin_text = Add(admin), placed_text = Add(placed), ending_text = Add(ending);
  KeyRing ring(path_, &clock_, &log_);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", admin_text), true), 200);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", ending_text), true), 403);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", placed_text)), 403);
  HttpRequest near = With("x-api-key", placed_text);
  near.peer = "192.0.2.9";
  EXPECT_EQ(StatusOf(&ring, near), 200);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", ending_text)), 200);
  clock_.AdvanceUs(5 * kSecond);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", ending_text)), 401);
}

TEST_F(Keys, ChangesTakeEffectWithoutARestartAndABrokenFileChangesNothing) {
  const std::string first = Add({.name = "first"});
  KeyRing ring(path_, &clock_, &log_);
  const std::string second = Add({.name = "second"});
  keys_.erase(keys_.begin());
  ASSERT_TRUE(WriteKeys(path_, keys_).ok());
  clock_.AdvanceUs(2 * kSecond);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", second)), 200);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", first)), 401);
  std::ofstream(path_) << "{\"version\":1,\"keys\":[{\"id\":3}]}";
  clock_.AdvanceUs(2 * kSecond);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", second)), 200);
  // Gone for a moment, it lets nobody in; gone for good, it has no keys.
  std::filesystem::remove(path_);
  clock_.AdvanceUs(2 * kSecond);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", first)), 401);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", second)), 200);
  ASSERT_TRUE(WriteKeys(path_, keys_).ok());
  clock_.AdvanceUs(2 * kSecond);
  EXPECT_FALSE(ring.empty());
  std::filesystem::remove(path_);
  clock_.AdvanceUs(2 * kSecond);
  EXPECT_FALSE(ring.empty());
  clock_.AdvanceUs(2 * kSecond);
  EXPECT_TRUE(ring.empty());
}

TEST_F(Keys, LimitsRefuseWithAnHonestRetryAfter) {
  ApiKey key{.name = "slow"};
  key.requests_per_minute = 6;
  const std::string text = Add(key);
  KeyRing ring(path_, &clock_, &log_);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(StatusOf(&ring, With("x-api-key", text)), 200);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", text)), 429);
  EXPECT_EQ(error_.retry_after_s, 10);
  clock_.AdvanceUs(10 * kSecond);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", text)), 200);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", text)), 429);
}

TEST_F(Keys, TokensAreCountedAfterwardsAndRequestsWhileTheyRun) {
  ApiKey tokens{.name = "tokens"}, few{.name = "few"};
  tokens.tokens_per_minute = 600;
  few.concurrent = 2;
  const std::string tokens_text = Add(tokens), few_text = Add(few);
  KeyRing ring(path_, &clock_, &log_);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", tokens_text)), 200);
  last_.caller.ticket->OnDone({.prompt_tokens = 500, .completion_tokens = 400});
  last_.caller.ticket->OnDone({.prompt_tokens = 500});  // told twice: counts once
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", tokens_text)), 429);
  EXPECT_EQ(error_.retry_after_s, 31);  // 300 too many, at 10 a second, and one to begin with
  clock_.AdvanceUs(31 * kSecond);
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", tokens_text)), 200);

  EXPECT_EQ(StatusOf(&ring, With("x-api-key", few_text)), 200);
  std::shared_ptr<Ticket> running = last_.caller.ticket;
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", few_text)), 200);
  const std::shared_ptr<Ticket> other = last_.caller.ticket;
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", few_text)), 429);
  running.reset();  // it ended
  EXPECT_EQ(StatusOf(&ring, With("x-api-key", few_text)), 200);
}

// ---- Classes and contracts ---------------------------------------------------------------------

HttpRequest Asking(SlaClass best, const std::string& key, const std::string& sla,
                   const std::string& swap) {
  HttpRequest request;
  request.caller.sla = best;
  request.caller.key = key;
  if (!sla.empty()) request.headers.emplace_back("x-terrace-sla", sla);
  if (!swap.empty()) request.headers.emplace_back("x-terrace-swap", swap);
  return request;
}

TEST(Service, AKeysClassIsTheBestThatItMayAskFor) {
  HttpRequest request = Asking(SlaClass::kStandard, "k", "", "");
  EXPECT_FALSE(ReadService(&request));
  EXPECT_EQ(request.caller.sla, SlaClass::kStandard);
  request = Asking(SlaClass::kStandard, "k", "batch", "");
  EXPECT_FALSE(ReadService(&request));
  EXPECT_EQ(request.caller.sla, SlaClass::kBatch);
  request = Asking(SlaClass::kStandard, "k", "realtime", "");
  EXPECT_EQ(ReadService(&request)->status, 403);
  request = Asking(SlaClass::kRealtime, "", "", "");
  EXPECT_FALSE(ReadService(&request));
  EXPECT_EQ(request.caller.sla, SlaClass::kStandard) << "without a key and without a word";
  request = Asking(SlaClass::kRealtime, "", "soon", "");
  EXPECT_EQ(ReadService(&request)->status, 400);
}

TEST(Service, SwapContractsAreReadOrRefused) {
  HttpRequest request = Asking(SlaClass::kRealtime, "", "", "wait:3");
  EXPECT_FALSE(ReadService(&request));
  EXPECT_EQ(request.caller.swap.max_wait_us, 3 * kSecond);
  request = Asking(SlaClass::kRealtime, "", "", "warm-only");
  EXPECT_FALSE(ReadService(&request));
  EXPECT_TRUE(request.caller.swap.warm_only);
  request = Asking(SlaClass::kRealtime, "", "", "equivalent:other");
  EXPECT_FALSE(ReadService(&request));
  EXPECT_EQ(request.caller.equivalent, "other");
  for (const char* bad : {"wait:", "wait:-1", "wait:x", "wait:999999", "equivalent:", "never"}) {
    request = Asking(SlaClass::kRealtime, "", "", bad);
    EXPECT_EQ(ReadService(&request)->status, 400) << bad;
  }
}

// ---- Networks ----------------------------------------------------------------------------------

TEST(Cidr, AddressesAreInTheirNetworksOnly) {
  const CidrList list = *CidrList::Parse("10.0.0.0/8, 192.0.2.7 2001:db8::/33");
  for (const char* in : {"10.255.0.1", "192.0.2.7", "::ffff:10.1.1.1", "2001:db8:7fff::1"}) {
    EXPECT_TRUE(list.Allows(in)) << in;
  }
  for (const char* out : {"11.0.0.1", "192.0.2.8", "2001:db8:8000::1", "::1", "", "x"}) {
    EXPECT_FALSE(list.Allows(out)) << out;
  }
  EXPECT_TRUE(CidrList().Allows("anything"));
  for (const char* bad : {"10.0.0.0/33", "10.0.0/8", "x", "::/129", "10.0.0.0/", "10.0.0.0/-1"}) {
    EXPECT_FALSE(CidrList::Parse(bad).ok()) << bad;
  }
  EXPECT_TRUE(IsLoopbackAddress("127.9.9.9") && IsLoopbackAddress("::1"));
  EXPECT_FALSE(IsLoopbackAddress("0.0.0.0") || IsLoopbackAddress("::") || IsLoopbackAddress("x"));
}

// ---- Compression -------------------------------------------------------------------------------

TEST(Compress, RoundTripsAndRefusesWhatIsNoGzipOrTooLarge) {
  const std::string text = std::string(100'000, 'a') + "end";
  const std::string packed = *Gzip(text);
  EXPECT_LT(packed.size(), 2000u);
  EXPECT_EQ(*Gunzip(packed, text.size()), text);
  EXPECT_TRUE(absl::IsResourceExhausted(Gunzip(packed, text.size() - 1).status()));
  for (size_t cut : {size_t{0}, size_t{5}, packed.size() / 2, packed.size() - 1}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Gunzip(packed.substr(0, cut), 1 << 20).status())) << cut;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Gunzip(packed + "x", 1 << 20).status()));
  EXPECT_TRUE(AcceptsGzip("br, GZIP;q=0.5") && AcceptsGzip("*"));
  EXPECT_FALSE(AcceptsGzip("") || AcceptsGzip("br") || AcceptsGzip("gzip;q=0"));
}

// ---- Versions on trial -------------------------------------------------------------------------

class Router : public ::testing::Test {
 protected:
  std::string Ask(const std::string& equivalent = "") {
    HttpRequest request;
    request.caller.equivalent = equivalent;
    return router_.Route(request, "chat");
  }
  std::string warm_ = "chat";
  NullLogger log_;
  Metrics metrics_;
  VersionRouter router_{[this](std::string_view name) { return name == warm_; }, &log_, &metrics_};
};

TEST_F(Router, AVersionGetsItsShareExactly) {
  router_.Set({{.model = "chat@2", .traffic = 0.25}});
  int to_version = 0;
  for (int i = 0; i < 400; ++i) to_version += Ask() == "chat@2";
  EXPECT_EQ(to_version, 100);
  EXPECT_EQ(router_.Route({}, "other"), "other");
  router_.Set({});
  EXPECT_EQ(Ask(), "chat");
}

TEST_F(Router, AVersionThatFailsTooOftenIsRolledBackUntilItsSettingsChange) {
  router_.Set({{.model = "chat@2", .traffic = 1, .errors = 0.1}});
  for (int i = 0; i < 18; ++i) router_.Report("chat@2", 200);
  for (int i = 0; i < 9; ++i) router_.Report("chat@2", 503);  // overload is not its fault
  router_.Report("chat@2", 500);
  router_.Report("chat@2", 500);
  EXPECT_EQ(Ask(), "chat@2");
  router_.Report("chat@2", 500);
  EXPECT_EQ(Ask(), "chat@2") << "three of thirty are a tenth, which is allowed";
  EXPECT_FALSE(router_.Trials().at(0).second);
  router_.Report("chat@2", 500);
  EXPECT_EQ(Ask(), "chat");
  EXPECT_EQ(router_.Trials().at(0).first.model, "chat@2");
  EXPECT_TRUE(router_.Trials().at(0).second);
  router_.Set({{.model = "chat@2", .traffic = 1, .errors = 0.1}});
  EXPECT_EQ(Ask(), "chat") << "the same settings do not bring it back";
  router_.Set({{.model = "chat@2", .traffic = 0.5, .errors = 0.1}});
  Ask();
  EXPECT_EQ(Ask(), "chat@2");
  EXPECT_NE(metrics_.Render().find("terrace_version_rollbacks_total{model=\"chat@2\"} 1"),
            std::string::npos);
}

TEST_F(Router, AnEquivalentAnswersOnlyIfItIsWarmAndTheOtherIsNot) {
  EXPECT_EQ(Ask("other"), "chat");
  warm_ = "other";
  EXPECT_EQ(Ask("other"), "other");
  EXPECT_EQ(Ask("third"), "chat");
  EXPECT_EQ(Ask(), "chat");
}

// ---- The watchdog ------------------------------------------------------------------------------

TEST(Watchdog, TellsHungFromIdleAndBusy) {
  Watchdog watchdog(10 * kSecond);
  Watchdog::Sample sample{.has_work = true, .last_step_us = 1};
  auto after = [&](int64_t seconds) {
    bool hung = false;
    for (int64_t i = 0; i < seconds; ++i) {  // it looks at least once a second
      sample.now_us += kSecond;
      hung = watchdog.Look(sample);
    }
    return hung;
  };
  EXPECT_FALSE(after(1));
  EXPECT_FALSE(after(9));
  sample.moved_bytes = 5;  // weights arrive
  EXPECT_FALSE(after(9));
  sample.last_step_us = 2;  // a step ended
  EXPECT_FALSE(after(9));
  sample.has_work = false;  // idle for long
  EXPECT_FALSE(after(1000));
  sample.has_work = true;
  EXPECT_FALSE(after(1)) << "the work has only just come";
  EXPECT_FALSE(after(9));
  EXPECT_TRUE(after(1)) << "nothing for the whole time-out";
}

TEST(Watchdog, SeesProgressInPinsToo) {
  Watchdog watchdog(10 * kSecond);
  Watchdog::Sample sample{.has_work = true};
  for (int i = 0; i < 100; ++i) {
    sample.now_us += 9 * kSecond;
    ++sample.pins;  // another layer of one long step
    EXPECT_FALSE(watchdog.Look(sample));
  }
}

// Seconds until an engine that has work and gets nowhere counts as hung.
int64_t SecondsToHang(Watchdog::Sample sample, int64_t cpu_us_per_second) {
  Watchdog watchdog(10 * kSecond);
  watchdog.Look(sample);
  for (int64_t seconds = 1; seconds < 1000; ++seconds) {
    sample.now_us += kSecond;
    sample.cpu_us += cpu_us_per_second;
    if (watchdog.Look(sample)) return seconds;
  }
  return 0;
}

TEST(Watchdog, BelievesForLongerWhoComputesOrWaits) {
  const int64_t patient = 10 * Watchdog::kPatience;
  EXPECT_EQ(SecondsToHang({.has_work = true}, 0), 10);
  EXPECT_EQ(SecondsToHang({.has_work = true}, kSecond / 100), 10) << "the probes themselves";
  EXPECT_EQ(SecondsToHang({.has_work = true}, kSecond), patient);
  EXPECT_EQ(SecondsToHang({.has_work = true}, kSecond / 10), patient) << "on a busy machine";
  EXPECT_EQ(SecondsToHang({.has_work = true, .runnable = true}, 0), patient);
  EXPECT_EQ(SecondsToHang({.has_work = true, .waits = true}, 0), patient);
}

}  // namespace
}  // namespace terrace::server
