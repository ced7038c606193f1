// Finds the files of a model at a source: a path or URL of a GGUF file (with the other parts of its
// set), or "hf:owner/name[:file]", a repository on a model hub with the common hub API: one of its
// GGUF files, or, where it has none or `file` is "safetensors", its checkpoint.
#ifndef TERRACE_WEIGHTS_HUB_H_
#define TERRACE_WEIGHTS_HUB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "weights/fetch.h"

namespace terrace::weights {

inline constexpr char kDefaultHub[] = "https://huggingface.co";

// One file to fetch.
struct RemoteFile {
  std::string source;  // for Fetch
  std::string name;    // under which it is stored; may name one folder before it
  std::string sha256;  // empty: not known
  uint64_t bytes = 0;  // 0: not known
};

struct RemoteModel {
  std::string suggested_name;     // for the store
  std::string identity;           // the source, with the revision pinned where there is one
  std::vector<RemoteFile> files;  // a single file, all parts of a set, or a folder's files
};

// `file` of a hub source is a file's name, or a part of one that occurs in one model only (such as
// "q4_k_m"). InvalidArgument and NotFound list what there is to choose from. `options` (token,
// retries) are for the hub's API.
absl::StatusOr<RemoteModel> ResolveSource(const std::string& source, const std::string& hub,
                                          const FetchOptions& options);

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_HUB_H_
