// Reads ranges of files asynchronously and in full: the tier manager's view of a disk. The real one
// goes through io_uring past the page cache; tests put a fake in its place that errs, stalls and
// spoils bytes. Thread-safe.
#ifndef TERRACE_STORAGE_DISK_BLOCK_READER_H_
#define TERRACE_STORAGE_DISK_BLOCK_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "os/direct_file.h"

namespace terrace::storage {

class BlockReader {
 public:
  using Done = std::function<void(absl::Status)>;
  virtual ~BlockReader() = default;  // waits for what is in flight

  // Fills `out` from `offset` on, then calls `done`, on a thread of the reader or before Read
  // returns. A file that ends too early is DataLoss; errors name path and offset. `file` and the
  // memory must stay valid until then.
  virtual void Read(const os::DirectFile& file, uint64_t offset, std::span<std::byte> out,
                    Done done) = 0;
};

struct DiskReaderOptions {
  uint32_t depth = 8;
  bool allow_uring = true;
  // Memory that reads often go to (a staging ring); must outlive the reader.
  std::vector<std::span<std::byte>> registered;
};

class DiskReader : public BlockReader {
 public:
  static absl::StatusOr<std::unique_ptr<DiskReader>> Create(const DiskReaderOptions& options);
  // False where the kernel forbids io_uring and threads do the reading.
  virtual bool uses_uring() const = 0;
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_DISK_BLOCK_READER_H_
