// The models on this machine: <folder>/<name>/<version>/ holds the files of one version, and the
// link <folder>/<name>/current names the version that "name" alone means. Versions appear and
// change places by renames, so that a reader sees the old state or the new one.
#ifndef TERRACE_WEIGHTS_MODEL_STORE_H_
#define TERRACE_WEIGHTS_MODEL_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::weights {

// Where a file of a version came from; kept beside it in source.json.
struct StoredFile {
  std::string name;
  uint64_t bytes = 0;
  std::string sha256;
  bool operator==(const StoredFile&) const = default;
};

struct StoredVersion {
  std::string version;
  bool current = false;
  std::string path;  // the file to open
  uint64_t bytes = 0;
  uint32_t parts = 0;             // files of the model
  std::string source;             // what it was pulled from; empty if not known
  std::vector<StoredFile> files;  // as pulled
  std::string problem;            // why it cannot be opened; empty if it can
};

struct StoredModel {
  std::string name;
  std::vector<StoredVersion> versions;  // oldest first
};

struct ModelReference {
  std::string name;
  std::string version;  // empty: the current one
};
// "name" or "name@version"; InvalidArgument for names that cannot be in a store.
absl::StatusOr<ModelReference> ParseReference(std::string_view text);

// A version under way: a folder to put its files in, locked against other processes. Destroying it
// keeps the folder, so that the next attempt goes on from what is there.
class Incoming {
 public:
  ~Incoming();
  Incoming(const Incoming&) = delete;
  Incoming& operator=(const Incoming&) = delete;
  const std::string& folder() const { return folder_; }

 private:
  friend class ModelStore;
  Incoming(std::string model_folder, std::string folder, int lock_fd);
  std::string model_folder_, folder_;
  int lock_fd_;
};

// Stateless besides the folder's path: several processes may use one store.
class ModelStore {
 public:
  // The folder need not exist yet.
  explicit ModelStore(std::string folder) : folder_(std::move(folder)) {}
  const std::string& folder() const { return folder_; }

  // By name. An absent folder is an empty store.
  absl::StatusOr<std::vector<StoredModel>> List() const;
  absl::StatusOr<StoredModel> Find(std::string_view name) const;
  // The version that "name" or "name@version" means. NotFound names the nearest model or the
  // versions there are; FailedPrecondition if it cannot be opened.
  absl::StatusOr<StoredVersion> Resolve(std::string_view reference) const;

  // Begins or takes up a version of `name`; files that belong to another `source` are removed
  // first. Aborted if another process is at it.
  absl::StatusOr<std::unique_ptr<Incoming>> Begin(const std::string& name,
                                                  const std::string& source) const;
  // Gives what lies in `incoming` a version's name (empty: the next number) and makes it current.
  // AlreadyExists if that version is there.
  absl::StatusOr<StoredVersion> Publish(std::unique_ptr<Incoming> incoming, std::string version,
                                        const std::string& source,
                                        const std::vector<StoredFile>& files) const;
  absl::Status Discard(std::unique_ptr<Incoming> incoming) const;

  absl::Status SetCurrent(const std::string& name, const std::string& version) const;
  // Removes a version, or with no version the whole model. If it was the current one, the newest of
  // the others takes its place.
  absl::Status Remove(std::string_view reference) const;

 private:
  std::string ModelFolder(std::string_view name) const;
  absl::StatusOr<StoredModel> Read(const std::string& name) const;
  std::string folder_;
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_MODEL_STORE_H_
