// The remote store against a real Redis server, and against servers that are wrong, slow or gone.
#include "storage/remote/remote_store.h"

#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "kv/redis_server.h"

namespace terrace::storage {
namespace {

using testing_redis::RedisServer;
using testing_support::Listener;

constexpr size_t kData = 8192;

BlockKey Key(uint64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

std::vector<std::byte> Data(uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> data(kData);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random.Below(256));
  return data;
}

RemoteStoreOptions Options(int32_t port) {
  RemoteStoreOptions options;
  options.port = port;
  options.timeout_us = 300'000;
  return options;
}

#define NEED_REDIS()                                 \
  if (!RedisServer::Installed()) {                   \
    GTEST_SKIP() << "redis-server is not installed"; \
  }                                                  \
  static_assert(true)

TEST(RemoteStore, KeepsBlocksAndSaysHowManyAreThere) {
  NEED_REDIS();
  RedisServer server;
  RealClock clock;
  RemoteStore store(Options(server.port()), &clock);
  for (uint64_t i : {1, 2, 3, 5}) ASSERT_TRUE(store.Write(Key(i), Data(i)).ok());
  const std::vector<BlockKey> keys = {Key(1), Key(2), Key(3), Key(4), Key(5)};
  EXPECT_EQ(store.CountPresent(keys), 3u) << "up to the first gap";
  std::vector<std::byte> out(kData);
  for (uint64_t i : {1, 2, 3, 5}) {
    ASSERT_TRUE(store.Read(Key(i), out).ok());
    EXPECT_EQ(out, Data(i));
  }
  EXPECT_TRUE(absl::IsNotFound(store.Read(Key(4), out)));
  EXPECT_EQ(store.State().read, 4u);
  EXPECT_EQ(store.State().missing, 1u);
  EXPECT_TRUE(store.usable());
  // More keys than one pipeline holds.
  const std::vector<std::byte> small(64);
  std::vector<BlockKey> many;
  for (uint64_t i = 1000; i < 2300; ++i) {
    many.push_back(Key(i));
    if (i >= 2200) continue;
    ASSERT_TRUE(store.Write(Key(i), small).ok());
  }
  EXPECT_EQ(store.CountPresent(many), 1200u);
}

TEST(RemoteStore, DamagedSwappedAndForeignValuesAreMissesAndRemoved) {
  NEED_REDIS();
  RedisServer server;
  RealClock clock;
  RemoteStore store(Options(server.port()), &clock);
  redisContext* raw = redisConnect("127.0.0.1", server.port());
  ASSERT_EQ(raw->err, 0);
  auto get = [&](uint64_t number) {
    auto* reply = static_cast<redisReply*>(
        redisCommand(raw, "GET terrace:kv:1:%s", Key(number).Hex().c_str()));
    std::string value(reply->str, reply->len);
    freeReplyObject(reply);
    return value;
  };
  auto set = [&](uint64_t number, const std::string& value) {
    freeReplyObject(redisCommand(raw, "SET terrace:kv:1:%s %b", Key(number).Hex().c_str(),
                                 value.data(), value.size()));
  };
  std::vector<std::byte> out(kData);
  ASSERT_TRUE(store.Write(Key(1), Data(1)).ok());
  ASSERT_TRUE(store.Write(Key(2), Data(2)).ok());
  const std::string good = get(1);
  for (size_t at : {size_t{0}, size_t{20}, size_t{40}, size_t{60}, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    set(1, bad);
    EXPECT_TRUE(absl::IsNotFound(store.Read(Key(1), out))) << "byte " << at;
    EXPECT_EQ(store.CountPresent({{Key(1)}}), 0u) << "it must be removed";
  }
  set(1, get(2));
  EXPECT_TRUE(absl::IsNotFound(store.Read(Key(1), out))) << "another block's value";
  set(1, good.substr(0, good.size() / 2));
  EXPECT_TRUE(absl::IsNotFound(store.Read(Key(1), out))) << "cut";
  set(1, "");
  EXPECT_TRUE(absl::IsNotFound(store.Read(Key(1), out))) << "empty";
  EXPECT_EQ(store.State().damaged, 8u);
  EXPECT_TRUE(store.Read(Key(2), out).ok()) << "the others are not touched";
  EXPECT_TRUE(store.usable());
  redisFree(raw);
}

TEST(RemoteStore, AServerThatIsGoneIsLeftAloneForAWhile) {
  NEED_REDIS();
  auto server = std::make_unique<RedisServer>();
  RealClock clock;
  RemoteStoreOptions options = Options(server->port());
  options.down_us = 60'000'000;
  RemoteStore store(options, &clock);
  ASSERT_TRUE(store.Write(Key(1), Data(1)).ok());
  server->Kill();
  std::vector<std::byte> out(kData);
  EXPECT_TRUE(absl::IsUnavailable(store.Read(Key(1), out)));
  EXPECT_FALSE(store.usable());
  const int64_t start_us = clock.NowUs();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(absl::IsUnavailable(store.Read(Key(1), out)));
  EXPECT_EQ(store.CountPresent({{Key(1)}}), 0u);
  EXPECT_LT(clock.NowUs() - start_us, options.timeout_us) << "nothing may be tried meanwhile";
  EXPECT_EQ(store.State().failures, 1u);
}

TEST(RemoteStore, AServerThatNeverAnswersCostsOneTimeLimit) {
  Listener silent;  // takes connections, says nothing
  RealClock clock;
  RemoteStore store(Options(silent.port()), &clock);
  const int64_t start_us = clock.NowUs();
  EXPECT_EQ(store.CountPresent({{Key(1)}}), 0u);
  const int64_t took_us = clock.NowUs() - start_us;
  EXPECT_GE(took_us, 250'000);
  EXPECT_LT(took_us, 5'000'000);
  EXPECT_FALSE(store.usable());
}

TEST(RemoteStore, PasswordsAreSentAndRefusalsSaySo) {
  NEED_REDIS();
  RedisServer server("hush");
  RealClock clock;
  RemoteStoreOptions options = Options(server.port());
  options.password = "hush";
  RemoteStore right(options, &clock);
  EXPECT_TRUE(right.Write(Key(1), Data(1)).ok());
  options.password = "wrong";
  RemoteStore wrong(options, &clock);
  const absl::Status status = wrong.Write(Key(1), Data(1));
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.ToString().find("wrong"), std::string::npos) << "no secret in messages";
}

TEST(RemoteUrl, IsReadAndChecked) {
  auto all = ParseRemoteUrl("redis://me:secret@kv.local:7000/3");
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->user, "me");
  EXPECT_EQ(all->password, "secret");
  EXPECT_EQ(all->host, "kv.local");
  EXPECT_EQ(all->port, 7000);
  EXPECT_EQ(all->database, 3);
  auto least = ParseRemoteUrl("redis://kv");
  ASSERT_TRUE(least.ok());
  EXPECT_EQ(least->port, 6379);
  auto v6 = ParseRemoteUrl("redis://[::1]:7000");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  for (const char* bad : {"", "kv:6379", "http://kv", "redis://", "redis://:6379", "redis://kv:0",
                          "redis://kv:port", "redis://kv/x", "redis://[::1"}) {
    EXPECT_FALSE(ParseRemoteUrl(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace terrace::storage
