// A model file that lies in an object store and comes to this machine's disk while it is already
// being read: the lowest tier below an image. Ranges that a reader waits for come first; what has
// come is written through to the disk and is the file of the next start.
#ifndef TERRACE_WEIGHTS_OBJECT_SOURCE_H_
#define TERRACE_WEIGHTS_OBJECT_SOURCE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "format/byte_source.h"
#include "storage/object/object_store.h"

namespace terrace {
class Clock;
}
namespace terrace::storage {
class DiskBudget;
}

namespace terrace::weights {

// The store and the key in it that a source names ("s3://bucket/key", "http://...", "https://...").
struct ObjectPlace {
  std::shared_ptr<storage::ObjectStore> store;  // shared by the files of a set
  std::string key;
  std::string name;  // for messages
};

// True for sources that OpenObject takes.
bool IsObject(std::string_view source);
// `environment` gives the AWS_* variables of s3: sources (storage/object/s3_store.h), "" for one
// that is not set; `clock` must outlive the store. InvalidArgument for a source that cannot be one.
absl::StatusOr<ObjectPlace> FindObject(
    const std::string& source, const std::function<std::string(std::string_view)>& environment,
    const Clock& clock);

struct ObjectSourceOptions {
  std::string folder;  // files of objects lie here; created if absent
  int parallel = 16;   // ranges in flight
  int attempts = 6;    // of each range
  int64_t backoff_us = 200'000;
  int64_t patience_us = 10'000'000;  // with a store that refuses when its object is opened
  // What the object's SHA-256 must be (64 hexadecimal digits); empty: not checked. If it is given,
  // reads wait for the whole object and its check.
  std::string sha256;
  storage::DiskBudget* disk = nullptr;  // what may be written; null: as much as there is
  // Told, on any thread, what an operator should know. May be empty.
  std::function<void(const std::string&)> notice;
};

// Asks the store for the object's state. If the folder holds the file of that very state (ETag or
// version, size), or the store cannot be reached and the folder holds one of it, that file is read
// and nothing is fetched. Else it is fetched in the background, from now on until the source is
// destroyed: reads wait for their ranges. A read fails as the fetch does (object_store.h), and the
// next one tries again, but for an object that has changed: that is FailedPrecondition until the
// source is opened anew.
absl::StatusOr<std::unique_ptr<format::ByteSource>> OpenObject(const ObjectPlace& place,
                                                               const ObjectSourceOptions& options);

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_OBJECT_SOURCE_H_
