// Brings a model from a source into the store: resolves its files, fetches them (resuming what an
// earlier attempt left), checks them, and publishes them as a new version.
#ifndef TERRACE_WEIGHTS_PULL_H_
#define TERRACE_WEIGHTS_PULL_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "weights/fetch.h"
#include "weights/hub.h"
#include "weights/model_store.h"

namespace terrace::weights {

struct PullProgress {
  std::string file;         // being fetched
  uint32_t file_index = 0;  // from 0
  uint32_t files = 0;
  uint64_t done_bytes = 0;   // of this file
  uint64_t total_bytes = 0;  // of this file; 0: not known
};

struct PullOptions {
  std::string name;     // in the store; empty: from the source
  std::string version;  // empty: the next number
  std::string sha256;   // of a single file
  std::string hub = kDefaultHub;
  FetchOptions fetch;  // its progress and sha256 are not used
  std::function<void(const PullProgress&)> progress;
};

struct PullResult {
  std::string name;
  StoredVersion version;
  bool already_there = false;  // the same files were in the store; that version is current now
  uint64_t resumed_at_bytes = 0;
};

// Errors are those of ResolveSource, Fetch and ModelStore; InvalidArgument or DataLoss if what was
// fetched is not a model. Nothing incomplete ever shows in the store.
absl::StatusOr<PullResult> Pull(const std::string& source, const ModelStore& store,
                                const PullOptions& options);

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_PULL_H_
