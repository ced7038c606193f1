// Random access to the bytes of a model file: a file on disk, or bytes in memory (tests, fuzzers).
// Thread-safe: positional reads only.
#ifndef TERRACE_FORMAT_BYTE_SOURCE_H_
#define TERRACE_FORMAT_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::format {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  const std::string& name() const { return name_; }  // a path, or what errors should call it
  uint64_t size() const { return size_; }            // bytes, when it was opened
  int64_t mtime_ns() const { return mtime_ns_; }     // 0 for bytes in memory

  // Fills `out` from `offset`. DataLoss that names the source, the offset and the bytes missing if
  // the source ends before (it may have shrunk since it was opened).
  virtual absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const = 0;

  // FailedPrecondition if the file's size or time of change is not what it was when it was opened.
  virtual absl::Status CheckUnchanged() const = 0;

  // Whether a reader waits now for a store beyond this machine, what it is called, and for how long
  // nothing has come from it. Never waits.
  struct Waiting {
    std::string store;  // empty: nobody waits
    int64_t still_us = 0;
  };
  virtual Waiting waiting() const { return {}; }

 protected:
  ByteSource(std::string name, uint64_t size, int64_t mtime_ns)
      : name_(std::move(name)), size_(size), mtime_ns_(mtime_ns) {}

 private:
  std::string name_;
  uint64_t size_;
  int64_t mtime_ns_;
};

// A regular file, read by pread through the page cache. Refuses folders and devices.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenFileSource(const std::string& path);

// Bytes that must outlive the source.
std::unique_ptr<ByteSource> MemorySource(std::string name, std::span<const std::byte> bytes);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_BYTE_SOURCE_H_
