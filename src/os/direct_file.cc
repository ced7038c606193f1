#include "os/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::os {
namespace {

struct Opened {
  int fd;
  bool direct;
};

// File systems without direct I/O (tmpfs before 6.5, some network ones) refuse the flag at open.
absl::StatusOr<Opened> Open(const std::string& path, int flags) {
  int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_DIRECT, 0644);
  if (fd >= 0) return Opened{fd, true};
  if (errno == EINVAL || errno == EOPNOTSUPP) {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd >= 0) return Opened{fd, false};
  }
  return ErrnoStatus(errno, fmt::format("opening {}", path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectFile>> DirectFile::OpenForRead(const std::string& path) {
  return OpenExisting(path, O_RDONLY);
}

absl::StatusOr<std::unique_ptr<DirectFile>> DirectFile::OpenForUpdate(const std::string& path) {
  return OpenExisting(path, O_RDWR);
}

absl::StatusOr<std::unique_ptr<DirectFile>> DirectFile::OpenExisting(const std::string& path,
                                                                     int flags) {
  ASSIGN_OR_RETURN(Opened opened, Open(path, flags));
  struct stat info;
  if (::fstat(opened.fd, &info) != 0) {
    absl::Status status = ErrnoStatus(errno, fmt::format("reading the size of {}", path));
    ::close(opened.fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(opened.fd);
    return absl::InvalidArgumentError(fmt::format("{} is not a regular file", path));
  }
  return std::unique_ptr<DirectFile>(
      new DirectFile(opened.fd, path, static_cast<uint64_t>(info.st_size), opened.direct));
}

absl::StatusOr<std::unique_ptr<DirectFile>> DirectFile::Create(const std::string& path) {
  ASSIGN_OR_RETURN(Opened opened, Open(path, O_RDWR | O_CREAT | O_TRUNC));
  return std::unique_ptr<DirectFile>(new DirectFile(opened.fd, path, 0, opened.direct));
}

DirectFile::DirectFile(int fd, std::string path, uint64_t size, bool direct)
    : fd_(fd), path_(std::move(path)), size_(size), direct_(direct) {}

DirectFile::~DirectFile() { ::close(fd_); }

absl::Status DirectFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    ssize_t n =
        ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, fmt::format("reading {} bytes at offset {} of {}",
                                            out.size() - done, offset + done, path_));
    }
    if (n == 0) {
      return absl::DataLossError(fmt::format("short read at offset {} of {}: {} of {} bytes",
                                             offset, path_, done, out.size()));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status DirectFile::WriteAt(uint64_t offset, std::span<const std::byte> data) const {
  size_t done = 0;
  while (done < data.size()) {
    ssize_t n =
        ::pwrite(fd_, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, fmt::format("writing {} bytes at offset {} of {}",
                                            data.size() - done, offset + done, path_));
    }
    if (n == 0) {
      return absl::ResourceExhaustedError(fmt::format(
          "short write at offset {} of {}: {} of {} bytes", offset, path_, done, data.size()));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status DirectFile::Sync() const {
  if (::fdatasync(fd_) != 0) return ErrnoStatus(errno, fmt::format("syncing {}", path_));
  return absl::OkStatus();
}

}  // namespace terrace::os
