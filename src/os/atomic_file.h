// Files that appear whole or not at all: written under a temporary name, synced, renamed, and the
// folder synced. After a crash only files ending in kPartialSuffix may be incomplete;
// RemovePartials deletes those at start.
#ifndef TERRACE_OS_ATOMIC_FILE_H_
#define TERRACE_OS_ATOMIC_FILE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "os/direct_file.h"

namespace terrace::os {

inline constexpr std::string_view kPartialSuffix = ".partial";

// A file being written. Destroying it without Commit() deletes the temporary file. Not thread-safe
// itself; file() is.
class AtomicFile {
 public:
  // Creates `<path>.partial`, replacing a leftover of that name.
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Valid until Commit().
  DirectFile& file() { return *file_; }
  // Syncs, closes, renames to the final name and syncs the folder. On failure the temporary file is
  // deleted and the final name still holds what it held before.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::unique_ptr<DirectFile> file);
  std::string path_;
  std::string partial_path_;
  std::unique_ptr<DirectFile> file_;
};

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);
// Makes what was created, renamed or deleted in `folder` last over a power cut.
absl::Status SyncFolder(const std::string& folder);
absl::Status RenameDurably(const std::string& from, const std::string& to);
// Deletes the files of `folder` (not below it) that end in kPartialSuffix; returns how many.
absl::StatusOr<int> RemovePartials(const std::string& folder);

}  // namespace terrace::os

#endif  // TERRACE_OS_ATOMIC_FILE_H_
