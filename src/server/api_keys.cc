#include "server/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "obs/log.h"
#include "os/atomic_file.h"
#include "server/json_fields.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kPrefix = "tk_";
constexpr size_t kIdLetters = 8;
constexpr size_t kSecretLetters = 43;  // of 62: more than 256 bits
constexpr size_t kMaxKeys = 100'000;
constexpr int64_t kLookAgainUs = 1'000'000;
constexpr double kMinuteUs = 60e6;

using Digest = std::array<uint8_t, 32>;

Digest Sha256(std::string_view text) {
  Digest digest{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return digest;
}

absl::StatusOr<std::string> RandomLetters(size_t count) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string out;
  while (out.size() < count) {
    uint8_t byte = 0;
    if (RAND_bytes(&byte, 1) != 1) return absl::InternalError("no random bytes can be had");
    // Evenly: the 8 values beyond the last whole round are thrown away.
    if (byte < 248) out.push_back(kLetters[byte % 62]);
  }
  return out;
}

std::string Hex(const Digest& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

bool FromHex(std::string_view text, Digest* out) {
  if (text.size() != 2 * out->size()) return false;
  for (size_t i = 0; i < out->size(); ++i) {
    int value = 0;
    for (const char c : text.substr(2 * i, 2)) {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (digit < 0) return false;
      value = value * 16 + digit;
    }
    (*out)[i] = static_cast<uint8_t>(value);
  }
  return true;
}

absl::Status ReadKey(const json::value& value, ApiKey* key) {
  if (!value.is_object()) return absl::InvalidArgumentError("an entry is not an object");
  const json::object& object = value.get_object();
  std::string hash, sla = "standard", allow;
  std::optional<int32_t> requests, tokens, concurrent;
  JsonFields fields(object);
  fields.RequiredString("id", &key->id);
  fields.RequiredString("name", &key->name);
  fields.String("tenant", &key->tenant);
  fields.RequiredString("sha256", &hash);
  fields.Bool("infer", &key->infer);
  fields.Bool("admin", &key->admin);
  fields.String("sla", &sla);
  fields.String("allow", &allow);
  constexpr int64_t kMost = 2'000'000'000;
  fields.Int("requests_per_minute", 0, kMost, &requests);
  fields.Int("tokens_per_minute", 0, kMost, &tokens);
  fields.Int("concurrent", 0, kMost, &concurrent);
  if (auto error = fields.TakeError()) return absl::InvalidArgumentError(error->message);
  key->requests_per_minute = requests.value_or(0);
  key->tokens_per_minute = tokens.value_or(0);
  key->concurrent = concurrent.value_or(0);
  for (const auto& [name, to] :
       {std::pair{"created", &key->created_s}, {"expires", &key->expires_s}}) {
    const json::value* time = object.if_contains(name);
    if (time != nullptr && time->is_int64()) *to = time->get_int64();
  }
  if (!FromHex(hash, &key->hash)) {
    return absl::InvalidArgumentError("sha256 must be 64 digits of hexadecimal");
  }
  const std::optional<SlaClass> known = ParseSla(sla);
  if (!known) return absl::InvalidArgumentError("sla must be realtime, standard or batch");
  key->sla = *known;
  ASSIGN_OR_RETURN(key->allow, CidrList::Parse(allow));
  return absl::OkStatus();
}

ApiError Unauthorized(std::string message) {
  return {.status = 401, .code = "invalid_api_key", .message = std::move(message)};
}

// The key that a request brings; empty: none.
std::string_view BroughtKey(const HttpRequest& request) {
  const std::string_view header = request.Header("authorization");
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() > kScheme.size() && ToLower(header.substr(0, kScheme.size())) == kScheme) {
    return StripSpace(header.substr(kScheme.size()));
  }
  return StripSpace(request.Header("x-api-key"));
}

}  // namespace

std::string_view SlaName(SlaClass sla) {
  switch (sla) {
    case SlaClass::kRealtime:
      return "realtime";
    case SlaClass::kStandard:
      return "standard";
    case SlaClass::kBatch:
      return "batch";
  }
  return "";
}

std::optional<SlaClass> ParseSla(std::string_view text) {
  for (const SlaClass sla : {SlaClass::kRealtime, SlaClass::kStandard, SlaClass::kBatch}) {
    if (SlaName(sla) == text) return sla;
  }
  return std::nullopt;
}

absl::StatusOr<std::string> MakeKey(ApiKey* key) {
  ASSIGN_OR_RETURN(key->id, RandomLetters(kIdLetters));
  ASSIGN_OR_RETURN(const std::string secret, RandomLetters(kSecretLetters));
  std::string text = fmt::format("{}{}_{}", kPrefix, key->id, secret);
  key->hash = Sha256(text);
  return text;
}

absl::StatusOr<std::vector<ApiKey>> ReadKeys(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, fmt::format("opening {}", path));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  json::value parsed;
  if (auto error = ParseObject(text, &parsed)) {
    return absl::InvalidArgumentError(fmt::format("{}: {}", path, error->message));
  }
  const json::value* list = parsed.get_object().if_contains("keys");
  const json::value* version = parsed.get_object().if_contains("version");
  if (list == nullptr || !list->is_array() || version == nullptr || *version != 1 ||
      list->get_array().size() > kMaxKeys) {
    return absl::InvalidArgumentError(
        fmt::format("{}: expected \"version\": 1 and a list \"keys\"", path));
  }
  std::vector<ApiKey> keys;
  for (const json::value& each : list->get_array()) {
    ApiKey key;
    if (absl::Status status = ReadKey(each, &key); !status.ok()) {
      return WithContext(status, fmt::format("{}: key {}", path, keys.size() + 1));
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

absl::Status WriteKeys(const std::string& path, const std::vector<ApiKey>& keys) {
  json::array list;
  for (const ApiKey& key : keys) {
    const auto text = [](std::string_view part) { return json::string(part.data(), part.size()); };
    list.push_back(json::object{{"id", text(key.id)},
                                {"name", text(key.name)},
                                {"tenant", text(key.tenant)},
                                {"sha256", text(Hex(key.hash))},
                                {"infer", key.infer},
                                {"admin", key.admin},
                                {"sla", text(SlaName(key.sla))},
                                {"requests_per_minute", key.requests_per_minute},
                                {"tokens_per_minute", key.tokens_per_minute},
                                {"concurrent", key.concurrent},
                                {"allow", text(key.allow.ToString())},
                                {"created", key.created_s},
                                {"expires", key.expires_s}});
  }
  const json::object all = {{"version", 1}, {"keys", std::move(list)}};
  RETURN_IF_ERROR(os::WriteFileAtomically(path, json::serialize(all) + "\n"));
  if (chmod(path.c_str(), 0600) != 0) return ErrnoStatus(errno, "protecting " + path);
  return absl::OkStatus();
}

// What a key has used. Buckets hold up to a minute's worth and fill evenly; tokens are known only
// afterwards, so that theirs may go below zero.
struct KeyRing::Usage {
  absl::Mutex mutex;
  int32_t running ABSL_GUARDED_BY(mutex) = 0;
  double requests ABSL_GUARDED_BY(mutex) = 0;
  double tokens ABSL_GUARDED_BY(mutex) = 0;
  int64_t filled_us ABSL_GUARDED_BY(mutex) = -1;

  void FillLocked(const ApiKey& key, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const double minutes = filled_us < 0 ? 1 : static_cast<double>(now_us - filled_us) / kMinuteUs;
    filled_us = now_us;
    requests =
        std::min<double>(key.requests_per_minute, requests + minutes * key.requests_per_minute);
    tokens = std::min<double>(key.tokens_per_minute, tokens + minutes * key.tokens_per_minute);
  }
};

class KeyRing::KeyTicket final : public Ticket {
 public:
  explicit KeyTicket(std::shared_ptr<Usage> usage) : usage_(std::move(usage)) {}
  ~KeyTicket() override { OnDone({}); }
  void OnDone(const AccessRecord& record) override {
    if (done_.exchange(true)) return;
    absl::MutexLock lock(&usage_->mutex);
    --usage_->running;
    usage_->tokens -= record.prompt_tokens + record.completion_tokens;
  }

 private:
  const std::shared_ptr<Usage> usage_;
  std::atomic<bool> done_{false};
};

KeyRing::KeyRing(std::string path, const Clock* clock, Logger* log)
    : path_(std::move(path)), clock_(clock), log_(log) {
  absl::MutexLock lock(&mutex_);
  RefreshLocked();
}

bool KeyRing::empty() {
  absl::MutexLock lock(&mutex_);
  RefreshLocked();
  return keys_.empty();
}

void KeyRing::RefreshLocked() {
  const int64_t now_us = clock_->NowUs();
  if (looked_us_ >= 0 && now_us - looked_us_ < kLookAgainUs) return;
  looked_us_ = now_us;
  // By name each time: the file may have been replaced.
  struct stat info;
  std::string stamp = "none";
  if (stat(path_.c_str(), &info) == 0) {
    stamp = fmt::format("{}:{}:{}.{}", info.st_ino, info.st_size, info.st_mtim.tv_sec,
                        info.st_mtim.tv_nsec);
  }
  // One that is gone at one look is being replaced: without keys everybody on this machine gets in.
  const bool gone_before = std::exchange(gone_, stamp == "none");
  if (stamp == stamp_ || (gone_ && !gone_before && !keys_.empty())) return;
  const bool first = stamp_.empty();
  stamp_ = stamp;
  absl::StatusOr<std::vector<ApiKey>> read = std::vector<ApiKey>();
  if (stamp != "none") read = ReadKeys(path_);
  if (!read.ok()) {
    log_->Error("the API keys could not be read; those from before stay in force",
                {{"error", Message(read.status())}});
    return;
  }
  keys_.clear();
  for (ApiKey& key : *read) keys_[key.id] = std::move(key);
  std::erase_if(usage_, [this](const auto& each) {
    mutex_.AssertHeld();
    return !keys_.contains(each.first);
  });
  if (!first || !keys_.empty()) log_->Info("API keys read", {{"keys", keys_.size()}});
}

std::optional<ApiError> KeyRing::TakeLocked(const ApiKey& key, std::shared_ptr<Usage>* usage) {
  std::shared_ptr<Usage>& entry = usage_[key.id];
  if (entry == nullptr) entry = std::make_shared<Usage>();
  *usage = entry;
  absl::MutexLock lock(&entry->mutex);
  entry->FillLocked(key, clock_->NowUs());
  auto refuse = [&](std::string message, double minutes) {
    const int wait_s = std::max(1, static_cast<int>(std::ceil(minutes * 60)));
    return ApiError{.status = 429,
                    .code = "rate_limit_exceeded",
                    .message = fmt::format("{} Try again in {} s.", message, wait_s),
                    .retry_after_s = wait_s};
  };
  if (key.concurrent > 0 && entry->running >= key.concurrent) {
    return refuse(fmt::format("The key may run {} requests at once.", key.concurrent), 0);
  }
  if (key.requests_per_minute > 0 && entry->requests < 1) {
    return refuse(fmt::format("The key may send {} requests a minute.", key.requests_per_minute),
                  (1 - entry->requests) / key.requests_per_minute);
  }
  if (key.tokens_per_minute > 0 && entry->tokens <= 0) {
    return refuse(fmt::format("The key may use {} tokens a minute.", key.tokens_per_minute),
                  (1 - entry->tokens) / key.tokens_per_minute);
  }
  entry->requests -= 1;
  ++entry->running;
  return std::nullopt;
}

std::optional<ApiError> KeyRing::Admit(bool needs_admin, HttpRequest* request) {
  const std::string_view brought = BroughtKey(*request);
  if (brought.empty()) {
    return Unauthorized("An API key is needed: send it as \"Authorization: Bearer KEY\".");
  }
  const Digest digest = Sha256(brought);
  const bool formed = brought.size() == kPrefix.size() + kIdLetters + 1 + kSecretLetters &&
                      brought.starts_with(kPrefix);
  const std::string_view id = formed ? brought.substr(kPrefix.size(), kIdLetters) : "";
  absl::MutexLock lock(&mutex_);
  RefreshLocked();
  // The id is no secret; what is compared takes the same time however much of it is right, also
  // when there is no such key.
  const auto found = keys_.find(id);
  const Digest expected = found == keys_.end() ? Digest{} : found->second.hash;
  const bool same = CRYPTO_memcmp(digest.data(), expected.data(), digest.size()) == 0;
  if (!same || found == keys_.end()) return Unauthorized("The API key is not valid.");
  const ApiKey& key = found->second;
  if (key.expires_s > 0 && clock_->WallUs() / 1'000'000 >= key.expires_s) {
    return Unauthorized("The API key has expired; ask for a new one.");
  }
  if (!key.allow.Allows(request->peer)) {
    return ApiError{.status = 403,
                    .code = "address_not_allowed",
                    .message = "The API key may not be used from this address."};
  }
  if (needs_admin ? !key.admin : !(key.infer || key.admin)) {
    return ApiError{.status = 403,
                    .code = "not_allowed",
                    .message = fmt::format("The API key has no right to {}.",
                                           needs_admin ? "administer" : "use models")};
  }
  std::shared_ptr<Usage> usage;
  if (auto error = TakeLocked(key, &usage)) return error;
  request->caller = {.key = fmt::format("{} ({})", key.name, key.id),
                     .tenant = key.tenant.empty() ? key.name : key.tenant,
                     .admin = key.admin,
                     .sla = key.sla,
                     .ticket = std::make_shared<KeyTicket>(std::move(usage))};
  return std::nullopt;
}

}  // namespace terrace::server
