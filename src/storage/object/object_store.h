// The lowest tier: whole objects under keys in a store that is reached over a network, read in
// ranges. Each call is one attempt; storage/object/object_download.h repeats what may be repeated.
#ifndef TERRACE_STORAGE_OBJECT_OBJECT_STORE_H_
#define TERRACE_STORAGE_OBJECT_OBJECT_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::storage {

// What names one state of an object. Passed back to ReadRange, it pins that state.
struct ObjectInfo {
  uint64_t bytes = 0;
  std::string etag;           // as the server writes it, with its quotes; empty: none
  std::string version;        // S3's version id; empty: none
  std::string last_modified;  // as the server writes it

  // Two equal pins are the same bytes: there is a version or a strong ETag.
  bool Pinned() const { return !version.empty() || (!etag.empty() && !etag.starts_with("W/")); }
  bool operator==(const ObjectInfo&) const = default;
};

struct ObjectEntry {
  std::string key;
  uint64_t bytes = 0;
  std::string etag;
};

// How one request is bounded, and what comes back beside its result.
struct RequestControl {
  const std::atomic<bool>* cancel = nullptr;  // set: the call ends soon with Cancelled
  int64_t timeout_us = 0;                     // of the whole request; 0: none
  int64_t* retry_after_us = nullptr;  // set to what a refusing server asks to wait, if it does
};

// Thread-safe. Errors name the object and never hold a credential or a URL's query:
//   Unavailable         may go away: 408, 429, 5xx, a reset, a stall, a short or overlong body
//   NotFound            404, 410
//   PermissionDenied    401, 403
//   Aborted             the object is no longer the one that is pinned
//   FailedPrecondition  another answer that repeating won't change
//   Cancelled           by `cancel`
class ObjectStore {
 public:
  // Gets the bytes of a range in order, on the calling thread, as they come; `offset` is of the
  // object. An error ends the request and is returned.
  using Sink = std::function<absl::Status(uint64_t offset, std::span<const std::byte> data)>;

  virtual ~ObjectStore() = default;

  // How messages name the object: its URL without query, user or password.
  virtual std::string NameOf(const std::string& key) const = 0;
  virtual absl::StatusOr<ObjectInfo> Stat(const std::string& key,
                                          const RequestControl& control) = 0;
  // [offset, offset + bytes) must lie in the object; bytes > 0. OK: all of them went to `sink`.
  virtual absl::Status StreamRange(const std::string& key, uint64_t offset, uint64_t bytes,
                                   const ObjectInfo& pinned, const RequestControl& control,
                                   const Sink& sink) = 0;
  // The objects whose keys start with `prefix`, in the store's order. Unimplemented where the
  // protocol cannot tell (plain HTTP).
  virtual absl::StatusOr<std::vector<ObjectEntry>> List(const std::string& prefix,
                                                        const RequestControl& control) = 0;

  // StreamRange into memory. On an error `out` holds anything.
  absl::Status ReadRange(const std::string& key, uint64_t offset, std::span<std::byte> out,
                         const ObjectInfo& pinned, const RequestControl& control);
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_OBJECT_STORE_H_
