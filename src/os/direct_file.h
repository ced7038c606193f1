// A file read or written past the page cache where the file system allows it (O_DIRECT), else with
// ordinary I/O (and uses_direct_io() says so). Positional calls only; thread-safe.
#ifndef TERRACE_OS_DIRECT_FILE_H_
#define TERRACE_OS_DIRECT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::os {

class DirectFile {
 public:
  static absl::StatusOr<std::unique_ptr<DirectFile>> OpenForRead(const std::string& path);
  // An existing file, to change what it holds.
  static absl::StatusOr<std::unique_ptr<DirectFile>> OpenForUpdate(const std::string& path);
  // Creates or truncates.
  static absl::StatusOr<std::unique_ptr<DirectFile>> Create(const std::string& path);
  ~DirectFile();
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  bool uses_direct_io() const { return direct_; }

  // Offsets, sizes and addresses must be multiples of 4 KiB when direct I/O is used. A short read
  // or write is an error (DataLoss, ResourceExhausted for a full disk) that names path and offset.
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> data) const;
  absl::Status Sync() const;

 private:
  DirectFile(int fd, std::string path, uint64_t size, bool direct);
  static absl::StatusOr<std::unique_ptr<DirectFile>> OpenExisting(const std::string& path,
                                                                  int flags);
  int fd_;
  std::string path_;
  uint64_t size_;
  bool direct_;
};

}  // namespace terrace::os

#endif  // TERRACE_OS_DIRECT_FILE_H_
