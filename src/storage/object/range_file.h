// The part of an object that has come so far, in any order, and which ranges of it are on disk.
#ifndef TERRACE_STORAGE_OBJECT_RANGE_FILE_H_
#define TERRACE_STORAGE_OBJECT_RANGE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/object/object_store.h"

namespace terrace::storage {

// "<destination>.partial", locked against other processes while it is open, with a note beside it:
// lines of text that name the object's state and hold one digit a range. The note is written after
// the ranges it names are synced, so after a crash it never says more than is there.
//
// WriteAt and ReadAt are thread-safe; the rest is for one thread.
class RangeFile {
 public:
  // Aborted if another process has it open.
  static absl::StatusOr<std::unique_ptr<RangeFile>> Open(const std::string& destination);
  ~RangeFile();
  RangeFile(const RangeFile&) = delete;
  RangeFile& operator=(const RangeFile&) = delete;

  // Makes it the file of this object. What the note says to be there of this very state is kept,
  // else the file is emptied; its whole size is reserved (ResourceExhausted on a full disk).
  // Returns for each range whether it is there.
  absl::StatusOr<std::vector<bool>> Begin(const std::string& object, const ObjectInfo& info,
                                          uint64_t range_bytes);
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> data);
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;
  // Makes the ranges in `done` last. Without effect if the object's state cannot be pinned.
  absl::Status Save(const std::vector<bool>& done);
  // Syncs the file and gives it its final name.
  absl::Status Commit();
  void Discard();

 private:
  RangeFile(int fd, std::string destination);
  std::string NoteHead() const;
  std::vector<bool> ReadNote() const;

  const int fd_;
  const std::string destination_, path_, note_path_;
  std::string object_;
  ObjectInfo info_;
  uint64_t range_bytes_ = 0;
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_RANGE_FILE_H_
