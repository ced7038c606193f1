// Asynchronous file reads and writes: io_uring where the kernel permits it (containers often do
// not), else a small pool of threads with pread and pwrite; uses_uring() says which. Thread-safe.
#ifndef TERRACE_OS_URING_H_
#define TERRACE_OS_URING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::os {

struct AsyncIoOptions {
  uint32_t depth = 16;  // requests in flight at once; more wait in order
  uint32_t fallback_threads = 4;
  bool allow_uring = true;  // false: threads (tests)
  // Memory that lives as long as the AsyncIo and is registered with the kernel, so that requests
  // into it skip pinning pages. Silently not registered where the lock limit forbids it.
  std::vector<std::span<std::byte>> registered;
};

class AsyncIo {
 public:
  // Bytes moved (maybe fewer than asked, 0 at the end of the file) or a negative errno. Called on a
  // thread of this object; must not block for long and may call Read and Write.
  using Done = std::function<void(int64_t result)>;

  static absl::StatusOr<std::unique_ptr<AsyncIo>> Create(const AsyncIoOptions& options);
  virtual ~AsyncIo() = default;  // waits for what is in flight

  // `fd` and the memory must stay valid until `done` is called. At most 1 GiB a request.
  virtual void Read(int fd, uint64_t offset, std::span<std::byte> out, Done done) = 0;
  virtual void Write(int fd, uint64_t offset, std::span<const std::byte> data, Done done) = 0;
  virtual bool uses_uring() const = 0;
};

}  // namespace terrace::os

#endif  // TERRACE_OS_URING_H_
