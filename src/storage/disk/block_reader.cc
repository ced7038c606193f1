#include "storage/disk/block_reader.h"

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "os/uring.h"

namespace terrace::storage {
namespace {

class AsyncDiskReader final : public DiskReader {
 public:
  explicit AsyncDiskReader(std::unique_ptr<os::AsyncIo> io) : io_(std::move(io)) {}

  void Read(const os::DirectFile& file, uint64_t offset, std::span<std::byte> out,
            Done done) override {
    io_->Read(file.fd(), offset, out,
              [this, &file, offset, out, done = std::move(done)](int64_t result) mutable {
                Finish(file, offset, out, std::move(done), result);
              });
  }
  bool uses_uring() const override { return io_->uses_uring(); }

 private:
  void Finish(const os::DirectFile& file, uint64_t offset, std::span<std::byte> out, Done done,
              int64_t result) {
    if (result == -EINTR || result == -EAGAIN) {
      Read(file, offset, out, std::move(done));
      return;
    }
    if (result < 0) {
      done(ErrnoStatus(static_cast<int>(-result), fmt::format("reading {} bytes at offset {} of {}",
                                                              out.size(), offset, file.path())));
      return;
    }
    const auto got = static_cast<uint64_t>(result);
    if (got >= out.size()) {
      done(absl::OkStatus());
      return;
    }
    // Direct I/O goes on only from an aligned place; it stops at another one only where the file
    // ends.
    const bool can_go_on = got > 0 && (!file.uses_direct_io() || got % 4096 == 0);
    if (!can_go_on) {
      done(absl::DataLossError(fmt::format("short read at offset {} of {}: {} of {} bytes", offset,
                                           file.path(), got, out.size())));
      return;
    }
    Read(file, offset + got, out.subspan(got), std::move(done));
  }

  std::unique_ptr<os::AsyncIo> io_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DiskReader>> DiskReader::Create(const DiskReaderOptions& options) {
  os::AsyncIoOptions io_options;
  io_options.depth = options.depth;
  io_options.fallback_threads = options.depth;
  io_options.allow_uring = options.allow_uring;
  io_options.registered = options.registered;
  ASSIGN_OR_RETURN(auto io, os::AsyncIo::Create(io_options));
  return std::unique_ptr<DiskReader>(std::make_unique<AsyncDiskReader>(std::move(io)));
}

}  // namespace terrace::storage
