// API keys: made, kept as hashes in a file, looked up in constant time, limited, and changed while
// the server runs.
//
// A key is "tk_" and an id, "_" and 43 random letters (256 bits); the file holds the id and the
// SHA-256 of the whole, which is enough for secrets that nobody can guess. The file is JSON,
// written under another name and renamed, mode 0600.
#ifndef TERRACE_SERVER_API_KEYS_H_
#define TERRACE_SERVER_API_KEYS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "request/request.h"
#include "server/api_error.h"
#include "server/cidr.h"
#include "server/exchange.h"

namespace terrace {
class Clock;
class Logger;
}  // namespace terrace

namespace terrace::server {

struct ApiKey {
  std::string id;  // 8 letters
  std::string name;
  std::string tenant;
  std::array<uint8_t, 32> hash{};  // SHA-256 of the key
  bool infer = true;
  bool admin = false;
  SlaClass sla = SlaClass::kStandard;  // the best class that it may ask for
  int32_t requests_per_minute = 0;     // 0: no limit, as below
  int32_t tokens_per_minute = 0;       // of prompts and answers together
  int32_t concurrent = 0;
  CidrList allow;
  int64_t created_s = 0;  // since the Unix epoch
  int64_t expires_s = 0;  // 0: never
};

// A new key for `key`, whose id and hash it sets. Its text is to be shown once and then forgotten.
absl::StatusOr<std::string> MakeKey(ApiKey* key);

// The file's content. ReadKeys: NotFound if there is no such file; InvalidArgument names what is
// wrong in it.
absl::StatusOr<std::vector<ApiKey>> ReadKeys(const std::string& path);
absl::Status WriteKeys(const std::string& path, const std::vector<ApiKey>& keys);

// "realtime", "standard" or "batch".
std::string_view SlaName(SlaClass sla);
std::optional<SlaClass> ParseSla(std::string_view text);

// The keys of a running server. Thread-safe.
class KeyRing {
 public:
  // Reads `path` now and again when it has changed, looked at once a second at most. A file that
  // cannot be read leaves the keys as they were and is told in the log; one that is gone has no
  // keys once two looks did not find it. All pointers must outlive the ring.
  KeyRing(std::string path, const Clock* clock, Logger* log);

  bool empty();
  // Finds the key that `request` brings ("Authorization: Bearer", whatever the case of the scheme,
  // or "X-API-Key") and fills the request's caller; counts it against the key's limits, which its
  // ticket ends. Errors: 401 for none or a wrong or expired one, 403 for one without the right or
  // from elsewhere than it may, 429 with Retry-After beyond a limit.
  std::optional<ApiError> Admit(bool needs_admin, HttpRequest* request);

 private:
  struct Usage;
  class KeyTicket;

  void RefreshLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<ApiError> TakeLocked(const ApiKey& key, std::shared_ptr<Usage>* usage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const Clock* const clock_;
  Logger* const log_;
  absl::Mutex mutex_;
  std::map<std::string, ApiKey, std::less<>> keys_ ABSL_GUARDED_BY(mutex_);  // by id
  // By id; shared with the tickets of requests under way.
  std::map<std::string, std::shared_ptr<Usage>, std::less<>> usage_ ABSL_GUARDED_BY(mutex_);
  int64_t looked_us_ ABSL_GUARDED_BY(mutex_) = -1;
  std::string stamp_ ABSL_GUARDED_BY(mutex_);  // of the file that was read
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // the last look found no file
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_API_KEYS_H_
