#include "storage/object/range_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/status.h"
#include "base/units.h"
#include "os/atomic_file.h"
#include "storage/object/object_download.h"

namespace terrace::storage {
namespace {

constexpr size_t kMaxNoteBytes = 4 * kMiB;
constexpr uint64_t kMaxRanges = 8 * kMiB;  // 8 TiB in ranges of 1 MiB

// A server's header as one line of the note.
std::string OneLine(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return text;
}

}  // namespace

std::string DownloadNotePath(const std::string& destination) {
  return destination + std::string(os::kPartialSuffix) + ".ranges";
}

RangeFile::RangeFile(int fd, std::string destination)
    : fd_(fd),
      destination_(std::move(destination)),
      path_(destination_ + std::string(os::kPartialSuffix)),
      note_path_(DownloadNotePath(destination_)) {}

RangeFile::~RangeFile() { close(fd_); }

absl::StatusOr<std::unique_ptr<RangeFile>> RangeFile::Open(const std::string& destination) {
  std::string path = destination + std::string(os::kPartialSuffix);
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("creating '{}'", path));
  std::unique_ptr<RangeFile> file(new RangeFile(fd, destination));
  struct stat opened, named;
  // A process that commits or discards it while we wait for the lock leaves us another file.
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &opened) != 0 ||
      stat(path.c_str(), &named) != 0 || opened.st_ino != named.st_ino) {
    return absl::AbortedError(fmt::format("another process is fetching '{}'", destination));
  }
  return file;
}

std::string RangeFile::NoteHead() const {
  return fmt::format("terrace ranges 1\n{}\n{}\n{}\n{}\n{} {}\n", OneLine(object_),
                     OneLine(info_.etag), OneLine(info_.version), OneLine(info_.last_modified),
                     info_.bytes, range_bytes_);
}

std::vector<bool> RangeFile::ReadNote() const {
  uint64_t ranges = (info_.bytes + range_bytes_ - 1) / range_bytes_;
  std::vector<bool> done(ranges, false);
  struct stat status;
  if (!info_.Pinned() || fstat(fd_, &status) != 0 ||
      static_cast<uint64_t>(status.st_size) != info_.bytes) {
    return done;
  }
  std::string text(kMaxNoteBytes, '\0');
  std::ifstream in(note_path_, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  std::string head = NoteHead();
  if (text.size() != head.size() + ranges + 1 || !text.starts_with(head)) return done;
  for (uint64_t i = 0; i < ranges; ++i) done[i] = text[head.size() + i] == '1';
  return done;
}

absl::StatusOr<std::vector<bool>> RangeFile::Begin(const std::string& object,
                                                   const ObjectInfo& info, uint64_t range_bytes) {
  if (range_bytes == 0 || info.bytes / range_bytes >= kMaxRanges) {
    return absl::InvalidArgumentError(fmt::format("'{}': {} bytes are too many in ranges of {}",
                                                  object, info.bytes, range_bytes));
  }
  object_ = object;
  info_ = info;
  range_bytes_ = range_bytes;
  std::vector<bool> done = ReadNote();
  if (std::find(done.begin(), done.end(), true) != done.end()) return done;
  unlink(note_path_.c_str());
  if (ftruncate(fd_, 0) != 0) return ErrnoStatus(errno, fmt::format("emptying '{}'", path_));
  if (info.bytes == 0) return done;
  // Reserved at once, a full disk shows before anything is fetched.
  int result = fallocate(fd_, 0, 0, static_cast<off_t>(info.bytes));
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    result = ftruncate(fd_, static_cast<off_t>(info.bytes));
  }
  if (result == 0) return done;
  int error = errno == EFBIG ? ENOSPC : errno;
  return ErrnoStatus(error, fmt::format("reserving {} bytes for '{}'", info.bytes, path_));
}

absl::Status RangeFile::WriteAt(uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    ssize_t written = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      int error = errno == EFBIG ? ENOSPC : errno;
      return ErrnoStatus(error, fmt::format("writing '{}' at offset {}", path_, offset));
    }
    offset += static_cast<uint64_t>(written);
    data = data.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status RangeFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    ssize_t got = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, fmt::format("reading '{}' at {}", path_, offset));
    if (got == 0) return absl::DataLossError(fmt::format("'{}' has become shorter", path_));
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::Status RangeFile::Save(const std::vector<bool>& done) {
  if (!info_.Pinned()) return absl::OkStatus();
  if (fdatasync(fd_) != 0) return ErrnoStatus(errno, fmt::format("syncing '{}'", path_));
  std::string text = NoteHead();
  for (bool there : done) text += there ? '1' : '0';
  return os::WriteFileAtomically(note_path_, text + "\n");
}

absl::Status RangeFile::Commit() {
  if (fsync(fd_) != 0) return ErrnoStatus(errno, fmt::format("syncing '{}'", path_));
  RETURN_IF_ERROR(os::RenameDurably(path_, destination_));
  unlink(note_path_.c_str());
  return absl::OkStatus();
}

void RangeFile::Discard() {
  unlink(note_path_.c_str());
  unlink(path_.c_str());
}

}  // namespace terrace::storage
