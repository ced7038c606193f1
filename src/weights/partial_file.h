// The part of a download that has come so far, and what it is a part of.
#ifndef TERRACE_WEIGHTS_PARTIAL_FILE_H_
#define TERRACE_WEIGHTS_PARTIAL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weights/sha256.h"

namespace terrace::weights {

// "<destination>.partial", locked against other processes while it is open. Not thread-safe.
class PartialFile {
 public:
  // Opens what an earlier attempt left, or an empty file. Aborted if another process has it open.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Open(const std::string& destination);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  uint64_t bytes() const { return bytes_; }
  // Of these, what was there when it was opened; 0 after Restart().
  uint64_t kept_bytes() const { return kept_bytes_; }
  // The source and the validator (an ETag) of the bytes; empty if not known.
  const std::string& source() const { return source_; }
  const std::string& validator() const { return validator_; }

  // Empties the file: the bytes to come are of this source and validator.
  absl::Status Restart(const std::string& source, const std::string& validator);
  absl::Status Append(std::span<const std::byte> data);
  // SHA-256 of the whole file. Reads what an earlier attempt wrote; the rest was hashed as it came.
  absl::StatusOr<std::string> Digest();
  // Syncs the file and gives it its final name.
  absl::Status Commit();
  // Deletes the file and what is beside it.
  void Discard();

 private:
  PartialFile(int fd, std::string destination);
  absl::Status HashUpTo(uint64_t end);

  int fd_;
  std::string destination_, path_, note_path_;
  uint64_t bytes_ = 0;
  uint64_t kept_bytes_ = 0;
  std::string source_, validator_;
  Sha256 hash_;
  uint64_t hashed_ = 0;  // bytes from the start that hash_ has seen
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_PARTIAL_FILE_H_
