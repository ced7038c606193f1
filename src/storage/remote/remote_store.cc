#include "storage/remote/remote_store.h"

#include <hiredis/hiredis.h>
#include <sys/time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"

namespace terrace::storage {
namespace {

constexpr std::string_view kPrefix = "terrace:kv:1:";
// Questions on their way at once; bounds the buffers of both ends.
constexpr size_t kPipelined = 512;

struct ReplyFree {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyFree>;

std::string NameOf(const BlockKey& key) { return fmt::format("{}{}", kPrefix, key.Hex()); }

timeval ToTimeval(int64_t us) {
  return {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
}

Reply Command(redisContext* context, const std::vector<std::string>& words) {
  std::vector<const char*> parts;
  std::vector<size_t> lengths;
  for (const std::string& word : words) {
    parts.push_back(word.data());
    lengths.push_back(word.size());
  }
  return Reply(static_cast<redisReply*>(
      redisCommandArgv(context, static_cast<int>(parts.size()), parts.data(), lengths.data())));
}

std::string_view Why(const redisContext* context, const redisReply* reply) {
  if (reply != nullptr && reply->type == REDIS_REPLY_ERROR) return {reply->str, reply->len};
  if (context != nullptr && context->err != 0) return context->errstr;
  return "an answer of an unexpected kind";
}

absl::Status BadUrl(std::string_view what) {
  return absl::InvalidArgumentError(
      fmt::format("{}: write redis://[user[:password]@]host[:port][/database]", what));
}

bool ReadNumber(std::string_view text, int32_t low, int32_t high, int32_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= low && *out <= high;
}

}  // namespace

absl::StatusOr<RemoteStoreOptions> ParseRemoteUrl(std::string_view url) {
  constexpr std::string_view kScheme = "redis://";
  RemoteStoreOptions options;
  if (!url.starts_with(kScheme)) return BadUrl("the address does not begin with redis://");
  url.remove_prefix(kScheme.size());
  if (const size_t at = url.rfind('@'); at != std::string_view::npos) {
    const std::string_view secret = url.substr(0, at);
    const size_t colon = secret.find(':');
    options.user = secret.substr(0, colon);
    if (colon != std::string_view::npos) options.password = secret.substr(colon + 1);
    url.remove_prefix(at + 1);
  }
  if (const size_t slash = url.find('/'); slash != std::string_view::npos) {
    const std::string_view number = url.substr(slash + 1);
    if (!number.empty() && !ReadNumber(number, 0, 65535, &options.database)) {
      return BadUrl("the database is not a number");
    }
    url = url.substr(0, slash);
  }
  if (url.starts_with('[')) {  // an IPv6 address
    const size_t end = url.find(']');
    if (end == std::string_view::npos) return BadUrl("the address has no ]");
    options.host = url.substr(1, end - 1);
    url.remove_prefix(end + 1);
  } else {
    options.host = url.substr(0, url.find(':'));
    url.remove_prefix(options.host.size());
  }
  if (options.host.empty()) return BadUrl("the host is missing");
  if (url.empty()) return options;
  if (url[0] != ':' || !ReadNumber(url.substr(1), 1, 65535, &options.port)) {
    return BadUrl("the port is not a number from 1 to 65535");
  }
  return options;
}

void RemoteStore::Closer::operator()(redisContext* context) const { redisFree(context); }

RemoteStore::RemoteStore(const RemoteStoreOptions& options, const Clock* clock)
    : options_(options), clock_(clock) {}

RemoteStore::~RemoteStore() = default;

bool RemoteStore::usable() const { return clock_->NowUs() >= down_until_us_; }

absl::Status RemoteStore::Failed(std::string_view what, std::string_view why) {
  down_until_us_ = clock_->NowUs() + options_.down_us;
  absl::MutexLock lock(&mutex_);
  ++state_.failures;
  idle_.clear();
  return absl::UnavailableError(
      fmt::format("{} at {}:{}: {}", what, options_.host, options_.port, why));
}

absl::StatusOr<RemoteStore::Connection> RemoteStore::Connect() const {
  const timeval limit = ToTimeval(options_.timeout_us);
  Connection connection(redisConnectWithTimeout(options_.host.c_str(), options_.port, limit));
  if (connection == nullptr || connection->err != 0) {
    return absl::UnavailableError(fmt::format("connecting: {}", Why(connection.get(), nullptr)));
  }
  redisSetTimeout(connection.get(), limit);
  if (!options_.password.empty()) {
    std::vector<std::string> words = {"AUTH"};
    if (!options_.user.empty()) words.push_back(options_.user);
    words.push_back(options_.password);
    Reply reply = Command(connection.get(), words);
    if (reply == nullptr || reply->type != REDIS_REPLY_STATUS) {
      return absl::UnavailableError("the password was refused");
    }
  }
  if (options_.database != 0) {
    Reply reply = Command(connection.get(), {"SELECT", fmt::format("{}", options_.database)});
    if (reply == nullptr || reply->type != REDIS_REPLY_STATUS) {
      return absl::UnavailableError(
          fmt::format("choosing the database: {}", Why(connection.get(), reply.get())));
    }
  }
  return connection;
}

absl::StatusOr<RemoteStore::Connection> RemoteStore::Take() {
  if (!usable()) return absl::UnavailableError("the remote KV store was down a moment ago");
  {
    absl::MutexLock lock(&mutex_);
    if (!idle_.empty()) {
      Connection connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  absl::StatusOr<Connection> connection = Connect();
  if (!connection.ok()) return Failed("the remote KV store", Message(connection.status()));
  return connection;
}

void RemoteStore::Return(Connection connection) {
  absl::MutexLock lock(&mutex_);
  idle_.push_back(std::move(connection));
}

size_t RemoteStore::CountPresent(std::span<const BlockKey> keys) {
  absl::StatusOr<Connection> connection = Take();
  if (!connection.ok()) return 0;
  redisContext* context = connection->get();
  size_t present = 0;
  for (size_t first = 0; first < keys.size() && present == first; first += kPipelined) {
    const size_t count = std::min(kPipelined, keys.size() - first);
    for (size_t i = 0; i < count; ++i) {
      const std::string name = NameOf(keys[first + i]);
      redisAppendCommand(context, "EXISTS %b", name.data(), name.size());
    }
    for (size_t i = 0; i < count; ++i) {
      void* raw = nullptr;
      const bool got = redisGetReply(context, &raw) == REDIS_OK;
      Reply reply(static_cast<redisReply*>(raw));
      if (!got || reply == nullptr || reply->type != REDIS_REPLY_INTEGER) {
        Failed("asking for KV blocks", Why(context, reply.get())).IgnoreError();
        return 0;
      }
      if (reply->integer == 1 && present == first + i) ++present;
    }
  }
  Return(*std::move(connection));
  return present;
}

absl::Status RemoteStore::Write(const BlockKey& key, std::span<const std::byte> data) {
  ASSIGN_OR_RETURN(Connection connection, Take());
  const BlockFrame frame = MakeFrame(key, data);
  std::string value(sizeof(frame) + data.size(), '\0');
  std::memcpy(value.data(), &frame, sizeof(frame));
  std::memcpy(value.data() + sizeof(frame), data.data(), data.size());
  Reply reply = Command(connection.get(), {"SET", NameOf(key), std::move(value), "EX",
                                           fmt::format("{}", options_.ttl_s)});
  if (reply == nullptr || reply->type != REDIS_REPLY_STATUS) {
    return Failed("writing a KV block", Why(connection.get(), reply.get()));
  }
  Return(std::move(connection));
  absl::MutexLock lock(&mutex_);
  ++state_.written;
  return absl::OkStatus();
}

absl::Status RemoteStore::Read(const BlockKey& key, std::span<std::byte> out) {
  ASSIGN_OR_RETURN(Connection connection, Take());
  Reply reply = Command(connection.get(), {"GET", NameOf(key)});
  if (reply == nullptr || (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_NIL)) {
    return Failed("reading a KV block", Why(connection.get(), reply.get()));
  }
  absl::Status status;
  if (reply->type == REDIS_REPLY_NIL) {
    status = absl::NotFoundError("the block is not in the remote store");
  } else if (reply->len != sizeof(BlockFrame) + out.size()) {
    status = absl::DataLossError(fmt::format("{} has {} bytes", NameOf(key), reply->len));
  } else {
    BlockFrame frame;
    std::memcpy(&frame, reply->str, sizeof(frame));
    std::memcpy(out.data(), reply->str + sizeof(frame), out.size());
    status = CheckFrame(frame, key, out, NameOf(key));
  }
  if (absl::IsDataLoss(status)) Command(connection.get(), {"DEL", NameOf(key)});
  // A connection on which even that failed is not kept.
  if (connection->err == 0) Return(std::move(connection));
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    ++state_.read;
    return absl::OkStatus();
  }
  ++(absl::IsDataLoss(status) ? state_.damaged : state_.missing);
  return absl::NotFoundError(std::string(Message(status)));
}

RemoteStoreState RemoteStore::State() const {
  absl::MutexLock lock(&mutex_);
  RemoteStoreState state = state_;
  state.usable = usable();
  return state;
}

}  // namespace terrace::storage
