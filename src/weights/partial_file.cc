#include "weights/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "os/atomic_file.h"

namespace terrace::weights {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxNoteBytes = 64 * kKiB;

// The text under `key` of the note at `path`; empty if anything is wrong with it.
std::pair<std::string, std::string> ReadNote(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  text.resize(kMaxNoteBytes);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  boost::system::error_code error;
  json::value root = json::parse(text, error);
  const json::object* note = error ? nullptr : root.if_object();
  auto field = [&](const char* key) -> std::string {
    const json::value* value = note == nullptr ? nullptr : note->if_contains(key);
    return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
  };
  return {field("source"), field("validator")};
}

}  // namespace

PartialFile::PartialFile(int fd, std::string destination)
    : fd_(fd),
      destination_(std::move(destination)),
      path_(destination_ + std::string(os::kPartialSuffix)),
      note_path_(path_ + ".json") {}

absl::StatusOr<std::unique_ptr<PartialFile>> PartialFile::Open(const std::string& destination) {
  std::string path = destination + std::string(os::kPartialSuffix);
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("creating '{}'", path));
  std::unique_ptr<PartialFile> file(new PartialFile(fd, destination));
  struct stat opened, named;
  // A process that commits or discards it while we wait for the lock leaves us another file.
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &opened) != 0 ||
      stat(path.c_str(), &named) != 0 || opened.st_ino != named.st_ino) {
    return absl::AbortedError(fmt::format("another process is fetching '{}'", destination));
  }
  file->bytes_ = file->kept_bytes_ = static_cast<uint64_t>(opened.st_size);
  if (file->bytes_ > 0) std::tie(file->source_, file->validator_) = ReadNote(file->note_path_);
  return file;
}

PartialFile::~PartialFile() { close(fd_); }

absl::Status PartialFile::Restart(const std::string& source, const std::string& validator) {
  if (ftruncate(fd_, 0) != 0) return ErrnoStatus(errno, fmt::format("emptying '{}'", path_));
  bytes_ = kept_bytes_ = hashed_ = 0;
  hash_ = Sha256();
  source_ = source;
  validator_ = validator;
  json::object note = {{"source", source}, {"validator", validator}};
  return os::WriteFileAtomically(note_path_, json::serialize(note) + "\n");
}

absl::Status PartialFile::Append(std::span<const std::byte> data) {
  bool hash_too = hashed_ == bytes_;
  size_t done = 0;
  while (done < data.size()) {
    ssize_t written =
        pwrite(fd_, data.data() + done, data.size() - done, static_cast<off_t>(bytes_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      int error = errno == EFBIG ? ENOSPC : errno;
      return ErrnoStatus(error, fmt::format("writing '{}' at offset {}", path_, bytes_ + done));
    }
    done += static_cast<size_t>(written);
  }
  bytes_ += data.size();
  if (hash_too) {
    hash_.Add(data);
    hashed_ = bytes_;
  }
  return absl::OkStatus();
}

absl::Status PartialFile::HashUpTo(uint64_t end) {
  std::vector<std::byte> buffer(std::min<uint64_t>(kMiB, end - hashed_));
  while (hashed_ < end) {
    uint64_t want = std::min<uint64_t>(buffer.size(), end - hashed_);
    ssize_t got = pread(fd_, buffer.data(), want, static_cast<off_t>(hashed_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, fmt::format("reading '{}'", path_));
    if (got == 0) return absl::DataLossError(fmt::format("'{}' has become shorter", path_));
    hash_.Add(std::span(buffer.data(), static_cast<size_t>(got)));
    hashed_ += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PartialFile::Digest() {
  RETURN_IF_ERROR(HashUpTo(bytes_));
  std::string digest = hash_.Finish();
  hash_ = Sha256();
  hashed_ = 0;
  return digest;
}

absl::Status PartialFile::Commit() {
  if (fsync(fd_) != 0) return ErrnoStatus(errno, fmt::format("writing '{}' to disk", path_));
  RETURN_IF_ERROR(os::RenameDurably(path_, destination_));
  unlink(note_path_.c_str());
  return absl::OkStatus();
}

void PartialFile::Discard() {
  unlink(path_.c_str());
  unlink(note_path_.c_str());
}

}  // namespace terrace::weights
