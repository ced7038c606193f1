#include "format/image.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"
#include "format/byte_source.h"
#include "os/atomic_file.h"

namespace terrace::format {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kImporting = ".importing";
constexpr std::string_view kRemoved = ".removed";
constexpr const char* kBlocks = "/blocks.bin";
constexpr const char* kManifest = "/manifest.json";
constexpr uint64_t kMaxManifestBytes = 256 * kMiB;

absl::StatusOr<std::string> ReadManifest(const std::string& folder) {
  ASSIGN_OR_RETURN(auto file, OpenFileSource(folder + kManifest));
  if (file->size() > kMaxManifestBytes) {
    return absl::DataLossError(fmt::format("'{}' has {} bytes", file->name(), file->size()));
  }
  std::string text(file->size(), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

bool SameFolder(int fd, const std::string& path) {
  struct stat opened, named;
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

// Locks the folder at `path`: its fd, or nothing if it is gone or another live process holds it.
// Only who holds the lock may rename or remove the folder, so what is locked and still has its name
// stays so.
std::optional<int> LockFolder(const std::string& path, bool* held_by_other, int kind = LOCK_EX) {
  *held_by_other = false;
  int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  if (flock(fd, kind | LOCK_NB) != 0) {
    *held_by_other = errno == EWOULDBLOCK;
    close(fd);
    return std::nullopt;
  }
  if (!SameFolder(fd, path)) {
    close(fd);
    return std::nullopt;
  }
  return fd;
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("removing '{}': {}", path, error.message()));
}

// Removes a complete image in two steps, so that a crash between them leaves nothing under its
// name.
absl::Status RemoveImage(const std::string& path) {
  std::string doomed = path + std::string(kRemoved);
  RETURN_IF_ERROR(RemoveAll(doomed));
  if (rename(path.c_str(), doomed.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("removing '{}'", path));
  }
  return RemoveAll(doomed);
}

// Takes room for `bytes`, so that a disk that is too small is found before it is full. False where
// the file system cannot.
absl::StatusOr<bool> Preallocate(const os::DirectFile& file, uint64_t bytes) {
  int error = 0;
  do {
    error = fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return true;
  if (error == EOPNOTSUPP || error == ENOSYS) return false;
  std::string what = fmt::format("making room for {} in '{}'", FormatBytes(bytes), file.path());
  if (error == EFBIG) error = ENOSPC;  // a limit on the size of files: no room either
  return ErrnoStatus(error, what);
}

// Calls `visit` with the path of each folder directly in `folder`; a missing folder is empty.
absl::Status ForEachFolder(const std::string& folder,
                           const std::function<void(const std::string&)>& visit) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return absl::OkStatus();
  std::vector<std::string> paths;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) paths.push_back(entry->path().string());
  }
  for (const std::string& path : paths) visit(path);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("reading '{}': {}", folder, error.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Image>> Image::Open(const std::string& image_folder,
                                                   const std::string& fingerprint) {
  std::string folder = fmt::format("{}/{}", image_folder, fingerprint);
  std::error_code error;
  if (!fs::exists(folder, error)) {
    return absl::NotFoundError(fmt::format("no image '{}'", folder));
  }
  auto damaged = [&](std::string_view what) {
    return absl::DataLossError(fmt::format("image '{}': {}", folder, what));
  };
  std::unique_ptr<Image> image(new Image());
  bool being_removed = false;
  std::optional<int> lock = LockFolder(folder, &being_removed, LOCK_SH);
  if (!lock) return absl::NotFoundError(fmt::format("image '{}' is being removed", folder));
  image->lock_fd_ = *lock;
  futimens(*lock, nullptr);  // the folder's time is that of its last opening
  auto text = ReadManifest(folder);
  if (!text.ok()) return damaged(Message(text.status()));
  auto manifest = ParseManifest(*text);
  if (!manifest.ok()) return WithContext(manifest.status(), fmt::format("image '{}'", folder));
  if (manifest->fingerprint != fingerprint) return damaged("it belongs to another model");
  image->manifest_ = *std::move(manifest);
  auto file = os::DirectFile::OpenForRead(folder + kBlocks);
  if (!file.ok()) return damaged(Message(file.status()));
  if ((*file)->size() != image->manifest_.BlobBytes()) {
    return damaged(fmt::format("blocks.bin has {} bytes, the manifest says {}", (*file)->size(),
                               image->manifest_.BlobBytes()));
  }
  image->file_ = *std::move(file);
  return image;
}

Image::~Image() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::StatusOr<int> Image::Mend(uint32_t segment, std::span<const std::byte> bytes) const {
  const ImageSegment& made = manifest_.segments[segment];
  if (bytes.size() != made.bytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} bytes for segment {}, which has {}", bytes.size(), made.name, made.bytes));
  }
  const uint64_t start = made.blocks.front().offset;
  for (const ImageBlock& block : made.blocks) {
    if (Hash64(bytes.data() + (block.offset - start), block.bytes) != block.checksum) {
      return absl::DataLossError(fmt::format(
          "segment {} was made anew and is not what {} was made from", made.name, file_->path()));
    }
  }
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kImageAlignment, kImageMaxBlockBytes)));
  if (buffer == nullptr) return absl::ResourceExhaustedError("no memory to read a block into");
  auto damaged = [&](const ImageBlock& block) {
    return !file_->ReadAt(block.offset, {buffer.get(), block.bytes}).ok() ||
           Hash64(buffer.get(), block.bytes) != block.checksum;
  };
  std::unique_ptr<os::DirectFile> out;
  int mended = 0;
  for (const ImageBlock& block : made.blocks) {
    if (!damaged(block)) continue;
    if (out == nullptr) {
      ASSIGN_OR_RETURN(out, os::DirectFile::OpenForUpdate(file_->path()));
    }
    RETURN_IF_ERROR(out->WriteAt(block.offset, bytes.subspan(block.offset - start, block.bytes)));
    RETURN_IF_ERROR(out->Sync());
    if (damaged(block)) {
      return absl::UnavailableError(fmt::format("{} does not keep what is written at offset {}",
                                                file_->path(), block.offset));
    }
    ++mended;
  }
  return mended;
}

ImageWriter::ImageWriter(std::string folder, std::string final_folder, int lock_fd)
    : folder_(std::move(folder)), final_folder_(std::move(final_folder)), lock_fd_(lock_fd) {}

absl::StatusOr<std::unique_ptr<ImageWriter>> ImageWriter::Begin(const std::string& image_folder,
                                                                const std::string& fingerprint,
                                                                uint64_t bytes) {
  std::error_code error;
  fs::create_directories(image_folder, error);
  if (error) {
    return absl::UnavailableError(fmt::format("creating '{}': {}", image_folder, error.message()));
  }
  std::string folder = fmt::format("{}/{}{}", image_folder, fingerprint, kImporting);
  std::optional<int> lock;
  // Each failed round means that another process removed or published the folder meanwhile.
  for (int round = 0; round < 10 && !lock; ++round) {
    if (mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, fmt::format("creating '{}'", folder));
    }
    bool held_by_other = false;
    lock = LockFolder(folder, &held_by_other);
    if (held_by_other) break;
  }
  if (!lock) {
    return absl::AbortedError(fmt::format("'{}' is being written by another process", folder));
  }
  std::unique_ptr<ImageWriter> writer(
      new ImageWriter(folder, fmt::format("{}/{}", image_folder, fingerprint), *lock));
  for (const char* name : {kBlocks, kManifest}) RETURN_IF_ERROR(RemoveAll(folder + name));
  ASSIGN_OR_RETURN(writer->file_, os::DirectFile::Create(folder + kBlocks));
  ASSIGN_OR_RETURN(writer->preallocated_, Preallocate(*writer->file_, bytes));
  return writer;
}

ImageWriter::~ImageWriter() {
  // Removed while it is still locked, so that nobody takes it for a live import's folder.
  if (!published_) RemoveAll(folder_).IgnoreError();
  close(lock_fd_);
}

absl::Status ImageWriter::WriteBlock(uint64_t offset, std::span<const std::byte> data) {
  return file_->WriteAt(offset, data);
}

absl::Status ImageWriter::Publish(const ImageManifest& manifest) {
  RETURN_IF_ERROR(file_->Sync());
  RETURN_IF_ERROR(os::WriteFileAtomically(folder_ + kManifest, SerializeManifest(manifest)));
  RETURN_IF_ERROR(os::SyncFolder(folder_));
  std::error_code error;
  if (fs::exists(final_folder_, error)) RETURN_IF_ERROR(RemoveImage(final_folder_));
  RETURN_IF_ERROR(os::RenameDurably(folder_, final_folder_));
  published_ = true;
  flock(lock_fd_, LOCK_SH);  // others may open it now
  return absl::OkStatus();
}

absl::StatusOr<int> RemoveDeadImports(const std::string& image_folder) {
  int removed = 0;
  RETURN_IF_ERROR(ForEachFolder(image_folder, [&](const std::string& path) {
    if (path.ends_with(kRemoved)) removed += RemoveAll(path).ok();
    if (!path.ends_with(kImporting)) return;
    bool held_by_other = false;
    std::optional<int> lock = LockFolder(path, &held_by_other);
    if (!lock) return;
    removed += RemoveAll(path).ok();
    close(*lock);
  }));
  return removed;
}

absl::StatusOr<int> RemoveStaleImages(const std::string& image_folder,
                                      const std::vector<FileIdentity>& current) {
  int removed = 0;
  RETURN_IF_ERROR(ForEachFolder(image_folder, [&](const std::string& path) {
    if (path.ends_with(kImporting) || path.ends_with(kRemoved)) return;
    auto text = ReadManifest(path);
    if (!text.ok()) return;
    auto manifest = ParseManifest(*text);
    if (!manifest.ok() || manifest->source.empty() || current.empty()) return;
    bool same_paths = manifest->source[0].path == current[0].path;
    if (same_paths && manifest->source != current) removed += RemoveImage(path).ok();
  }));
  return removed;
}

absl::StatusOr<bool> RemoveLeastUsedImage(const std::string& image_folder) {
  std::vector<std::pair<fs::file_time_type, std::string>> images;
  RETURN_IF_ERROR(ForEachFolder(image_folder, [&](const std::string& path) {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(path, error);
    if (error || path.ends_with(kImporting) || path.ends_with(kRemoved)) return;
    if (fs::exists(path + kManifest, error)) images.emplace_back(time, path);
  }));
  std::sort(images.begin(), images.end());
  for (const auto& [time, path] : images) {
    bool in_use = false;
    std::optional<int> lock = LockFolder(path, &in_use);
    if (!lock) continue;
    const absl::Status removed = RemoveImage(path);
    close(*lock);
    RETURN_IF_ERROR(removed);
    return true;
  }
  return false;
}

}  // namespace terrace::format
