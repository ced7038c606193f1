#include "os/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::os {
namespace {

std::string FolderOf(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

absl::Status WriteAll(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    ssize_t n = ::write(fd, contents.data(), contents.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, fmt::format("writing {}", path));
    contents.remove_prefix(static_cast<size_t>(n));
  }
  if (::fsync(fd) != 0) return ErrnoStatus(errno, fmt::format("syncing {}", path));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  ASSIGN_OR_RETURN(auto file, DirectFile::Create(path + std::string(kPartialSuffix)));
  return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(file)));
}

AtomicFile::AtomicFile(std::string path, std::unique_ptr<DirectFile> file)
    : path_(std::move(path)),
      partial_path_(path_ + std::string(kPartialSuffix)),
      file_(std::move(file)) {}

AtomicFile::~AtomicFile() {
  if (file_ != nullptr) ::unlink(partial_path_.c_str());
}

absl::Status AtomicFile::Commit() {
  absl::Status status = file_->Sync();
  if (status.ok()) status = RenameDurably(partial_path_, path_);
  if (!status.ok()) ::unlink(partial_path_.c_str());
  file_.reset();
  return status;
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  std::string partial = path + std::string(kPartialSuffix);
  int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("creating {}", partial));
  absl::Status status = WriteAll(fd, contents, partial);
  ::close(fd);
  if (status.ok()) status = RenameDurably(partial, path);
  if (!status.ok()) ::unlink(partial.c_str());
  return status;
}

absl::Status SyncFolder(const std::string& folder) {
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("opening folder {}", folder));
  absl::Status status;
  // Some file systems have no folder sync and say EINVAL; they order renames by themselves.
  if (::fsync(fd) != 0 && errno != EINVAL) {
    status = ErrnoStatus(errno, fmt::format("syncing folder {}", folder));
  }
  ::close(fd);
  return status;
}

absl::Status RenameDurably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("renaming {} to {}", from, to));
  }
  return SyncFolder(FolderOf(to));
}

absl::StatusOr<int> RemovePartials(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("listing {}", folder));
  int removed = 0;
  for (const std::filesystem::directory_iterator end; it != end;) {
    const std::filesystem::path path = it->path();
    it.increment(error);
    if (error) return ErrnoStatus(error.value(), fmt::format("listing {}", folder));
    if (!path.string().ends_with(kPartialSuffix)) continue;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return ErrnoStatus(errno, fmt::format("deleting {}", path.string()));
    }
    ++removed;
  }
  return removed;
}

}  // namespace terrace::os
