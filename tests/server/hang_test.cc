// What still works while the engine hangs with its locks held: looking at it, and telling clients.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "http_client.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "server/engine_view.h"
#include "server/http_server.h"
#include "server/watchdog.h"

namespace terrace::server {
namespace {

// An engine whose state can be looked at unless somebody holds its lock.
struct Engine {
  absl::Mutex mutex;
  std::atomic<int> readings{0};
  uint64_t tokens = 0;

  EngineViewDeps Deps(const Clock* clock) {
    return {.clock = clock,
            .queue =
                [this] {
                  absl::MutexLock lock(&mutex);
                  ++readings;
                  scheduler::SchedulerState state;
                  state.generated_tokens = tokens;
                  return state;
                },
            .tiers = [] { return tier::TierSnapshot(); }};
  }
};

TEST(EngineView, TellsTheStateAsOfTheCall) {
  RealClock clock;
  Engine engine;
  EngineView view(engine.Deps(&clock));
  for (uint64_t i = 1; i <= 100; ++i) {
    {
      absl::MutexLock lock(&engine.mutex);
      engine.tokens = i;
    }
    EXPECT_EQ(view.Queue().generated_tokens, i);
  }
  EXPECT_EQ(view.StaleUs(), 0);
}

TEST(EngineView, DoesNotWaitForAnEngineThatHangs) {
  RealClock clock;
  Engine engine;
  EngineView view(engine.Deps(&clock));
  engine.tokens = 7;
  ASSERT_EQ(view.Queue().generated_tokens, 7u);
  engine.mutex.Lock();
  bool fresh = true;
  EXPECT_EQ(view.Read(&fresh)->queue.generated_tokens, 7u) << "as it was";
  EXPECT_FALSE(fresh);
  // Whoever waited may have waited for a reader that began late.
  while (view.StaleUs() == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(view.StaleUs(), EngineView::kPatienceUs);
  // From now on nobody waits: a thousand looks take less than five that wait.
  const int64_t start_us = clock.NowUs();
  for (int i = 0; i < 1000; ++i) view.Read(&fresh);
  EXPECT_FALSE(fresh);
  EXPECT_LT(clock.NowUs() - start_us, 5 * EngineView::kPatienceUs);
  const int readings = engine.readings;
  engine.mutex.Unlock();
  while (!fresh) view.Read(&fresh);
  EXPECT_EQ(view.StaleUs(), 0);
  EXPECT_LE(engine.readings - readings, 10) << "one reading answers all who asked before it";
}

TEST(EngineView, ManyAskAtOnce) {
  RealClock clock;
  Engine engine;
  EngineView view(engine.Deps(&clock));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&view] {
      for (int k = 0; k < 200; ++k) view.Read();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(engine.readings, 1600);
}

constexpr int64_t kSecond = 1'000'000;

TEST(Watchdog, AnEngineThatLetsNobodyLookHangs) {
  Watchdog watchdog(2 * kSecond);
  Watchdog::Sample sample{.last_step_us = 1};
  auto hangs_after = [&](int64_t most_s) {
    for (int64_t quarter = 1; quarter <= 4 * most_s; ++quarter) {
      sample.now_us += kSecond / 4;
      if (watchdog.Look(sample)) return quarter;
    }
    return int64_t{0};
  };
  EXPECT_EQ(hangs_after(100), 0) << "it has nothing to do";
  sample.stale = true;
  sample.waits = true;  // from before: says nothing of now
  EXPECT_EQ(hangs_after(100), 9) << "2 s from the first look that failed";
  // One that computes meanwhile is believed for longer.
  Watchdog patient(2 * kSecond);
  sample.runnable = true;
  for (int i = 0; i < 30; ++i) {
    sample.now_us += kSecond;
    EXPECT_FALSE(patient.Look(sample));
  }
}

TEST(Watchdog, WhoWaitsForASilentStoreDoesNotHang) {
  Watchdog watchdog(2 * kSecond);
  Watchdog::Sample sample{.has_work = true, .waits_for_store = true, .waits = true};
  for (int i = 0; i < 3600; ++i) {
    sample.now_us += kSecond / 2;
    EXPECT_FALSE(watchdog.Look(sample));
  }
  // Once its answer has come, or its failure, the engine has to go on by itself.
  sample.waits_for_store = sample.waits = false;
  int looks = 0;
  for (; !watchdog.Look(sample); ++looks) sample.now_us += kSecond / 2;
  EXPECT_NEAR(looks, 4, 1);
  // What was seen of an engine that lets nobody look any more is from before.
  Watchdog stale(2 * kSecond);
  sample.waits_for_store = sample.stale = true;
  for (looks = 0; !stale.Look(sample); ++looks) sample.now_us += kSecond / 2;
  EXPECT_NEAR(looks, 4, 1);
}

TEST(Watchdog, AMachineThatStoodStillIsNoHang) {
  Watchdog watchdog(5 * kSecond);
  Watchdog::Sample sample{.has_work = true};
  EXPECT_FALSE(watchdog.Look(sample));
  sample.now_us += kSecond / 4;
  EXPECT_FALSE(watchdog.Look(sample));
  sample.now_us += 3600 * kSecond;  // suspended
  EXPECT_FALSE(watchdog.Look(sample));
  int looks = 1;
  for (; !watchdog.Look(sample); ++looks) sample.now_us += kSecond / 4;
  EXPECT_NEAR(looks, 16, 2) << "the rest of the 5 s";
}

// Answers nothing at /wait, and holds its thread at /hang.
class Hanging final : public HttpHandler {
 public:
  void Handle(std::shared_ptr<Exchange> exchange) override {
    const bool hang = exchange->request().path == "/hang";
    {
      absl::MutexLock lock(&mutex_);
      waiting_.push_back(std::move(exchange));
    }
    ++begun;
    if (hang) released.WaitForNotification();
  }

  std::atomic<int> begun{0};
  absl::Notification released;

 private:
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Exchange>> waiting_ ABSL_GUARDED_BY(mutex_);
};

TEST(FailAll, ReachesTheClientsOfAThreadThatHangs) {
  RealClock clock;
  NullLogger log;
  Metrics metrics;
  HttpOptions options;
  options.endpoints = {{}};
  options.io_threads = 1;
  auto server = HttpServer::Bind(
      options, {.clock = &clock, .access_log = &log, .runtime_log = &log, .metrics = &metrics});
  ASSERT_TRUE(server.ok());
  Hanging handler;
  (*server)->Start(&handler);
  const uint16_t port = (*server)->ports()[0];
  HttpClient first(port), second(port), last(port);
  for (HttpClient* client : {&first, &second}) {
    client->Send("POST /wait HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
  }
  while (handler.begun < 2) std::this_thread::yield();
  last.Send("POST /hang HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
  while (handler.begun < 3) std::this_thread::yield();
  (*server)->FailAll(
      {.status = 503, .code = "engine_restart", .message = "It hung.", .retry_after_s = 2});
  for (HttpClient* client : {&first, &second}) {
    const HttpReply reply = client->Read();
    EXPECT_EQ(reply.status, 503);
    EXPECT_NE(reply.body.find("engine_restart"), std::string::npos) << reply.body;
    EXPECT_EQ(reply.headers.at("retry-after"), "2");
  }
  // New ones are heard, too.
  HttpClient late(port);
  late.Send("POST /wait HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n");
  while (handler.begun < 4) std::this_thread::yield();
  handler.released.Notify();
  (*server)->Stop();
}

}  // namespace
}  // namespace terrace::server
