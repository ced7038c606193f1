#include "format/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/status.h"

namespace terrace::format {
namespace {

absl::Status EndsEarly(const std::string& name, uint64_t offset, uint64_t missing) {
  return absl::DataLossError(
      fmt::format("'{}' ends {} bytes too early for a read at offset {}", name, missing, offset));
}

// Times before 1970 count as 1970: manifests hold no negative numbers.
int64_t MtimeNs(const struct stat& info) {
  return std::max<int64_t>(0, int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec);
}

class FileSource final : public ByteSource {
 public:
  FileSource(int fd, std::string path, uint64_t size, int64_t mtime_ns)
      : ByteSource(std::move(path), size, mtime_ns), fd_(fd) {}
  ~FileSource() override { close(fd_); }

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    size_t done = 0;
    while (done < out.size()) {
      ssize_t got =
          pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return ErrnoStatus(errno, fmt::format("reading '{}' at offset {}", name(), offset + done));
      }
      if (got == 0) return EndsEarly(name(), offset, out.size() - done);
      done += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

  absl::Status CheckUnchanged() const override {
    struct stat info;
    if (fstat(fd_, &info) != 0) return ErrnoStatus(errno, fmt::format("'{}'", name()));
    if (static_cast<uint64_t>(info.st_size) == size() && MtimeNs(info) == mtime_ns()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        fmt::format("'{}' was written to while it was in use", name()));
  }

 private:
  int fd_;
};

class SpanSource final : public ByteSource {
 public:
  SpanSource(std::string name, std::span<const std::byte> bytes)
      : ByteSource(std::move(name), bytes.size(), 0), bytes_(bytes) {}

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    uint64_t left = offset <= bytes_.size() ? bytes_.size() - offset : 0;
    if (out.size() > left) return EndsEarly(name(), offset, out.size() - left);
    if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return absl::OkStatus();
  }

  absl::Status CheckUnchanged() const override { return absl::OkStatus(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFileSource(const std::string& path) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("opening '{}'", path));
  struct stat info;
  if (fstat(fd, &info) != 0) {
    absl::Status status = ErrnoStatus(errno, fmt::format("reading the size of '{}'", path));
    close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(fmt::format("'{}' is not a regular file", path));
  }
  int64_t mtime_ns = MtimeNs(info);
  return std::make_unique<FileSource>(fd, path, static_cast<uint64_t>(info.st_size), mtime_ns);
}

std::unique_ptr<ByteSource> MemorySource(std::string name, std::span<const std::byte> bytes) {
  return std::make_unique<SpanSource>(std::move(name), bytes);
}

}  // namespace terrace::format
