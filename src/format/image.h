// The image of a model: its tensors packed for this machine's kernels, in execution order, in
// blocks that can be read past the page cache, with a manifest. docs/formats/image.md describes the
// bytes.
//
// An image is the folder <image_folder>/<fingerprint>/ with blocks.bin and manifest.json. It is
// written in <fingerprint>.importing/, locked by its writer for as long as it lives, and renamed
// last: a folder under the final name is complete, whatever happened meanwhile.
#ifndef TERRACE_FORMAT_IMAGE_H_
#define TERRACE_FORMAT_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/model_source.h"
#include "os/direct_file.h"
#include "tensor/dtype.h"

namespace terrace::format {

inline constexpr int kImageVersion = 1;
inline constexpr uint64_t kImageAlignment = 4096;
inline constexpr uint64_t kImageMaxBlockBytes = uint64_t{4} << 20;

struct ImageBlock {
  uint64_t offset = 0;    // in blocks.bin, a multiple of 4 KiB
  uint32_t bytes = 0;     // a multiple of 4 KiB, at most 4 MiB
  uint64_t checksum = 0;  // XXH3-64 of those bytes
  bool operator==(const ImageBlock&) const = default;
};

struct ImageSegment {
  std::string name;
  uint64_t bytes = 0;
  std::vector<ImageBlock> blocks;  // in order; together the segment's bytes
  bool operator==(const ImageSegment&) const = default;
};

struct ImageTensor {
  std::string name;
  uint32_t segment = 0;
  uint64_t offset = 0;  // in the segment
  uint64_t bytes = 0;
  DType dtype = DType::kF32;
  std::string layout;
  std::vector<int64_t> shape;
  // A stack [count, out, in] of which this is the first matrix; each further one lies at the same
  // offset of the next segment.
  bool spread = false;
  bool operator==(const ImageTensor&) const = default;
};

struct ImageManifest {
  std::string fingerprint;
  std::vector<FileIdentity> source;
  std::vector<ImageSegment> segments;
  std::vector<ImageTensor> tensors;
  uint64_t BlobBytes() const;  // size of blocks.bin
  bool operator==(const ImageManifest&) const = default;
};

// Segments of these sizes back to back, cut into blocks; checksums are zero.
std::vector<ImageBlock> CutIntoBlocks(uint64_t offset, uint64_t bytes);

std::string SerializeManifest(const ImageManifest& manifest);
// Checks the manifest's checksum and every number in it. DataLoss says what does not hold.
absl::StatusOr<ImageManifest> ParseManifest(std::string_view text);

// A complete image opened for reading; while it is, RemoveLeastUsedImage leaves it alone.
// Thread-safe; immutable but for Mend.
class Image {
 public:
  // NotFound if there is none; DataLoss if it is damaged (the bytes of blocks are not read).
  static absl::StatusOr<std::unique_ptr<Image>> Open(const std::string& image_folder,
                                                     const std::string& fingerprint);
  ~Image();
  Image(const Image&) = delete;
  Image& operator=(const Image&) = delete;
  const ImageManifest& manifest() const { return manifest_; }
  const os::DirectFile& file() const { return *file_; }

  // Gives a segment's damaged blocks back the bytes they had: `bytes` is the whole segment, made
  // anew, at an address that direct I/O takes. Returns how many blocks were written. DataLoss if
  // `bytes` are not what the manifest says (nothing is written then); other errors if the disk
  // refuses the bytes or does not keep them.
  absl::StatusOr<int> Mend(uint32_t segment, std::span<const std::byte> bytes) const;

 private:
  Image() = default;
  ImageManifest manifest_;
  std::unique_ptr<os::DirectFile> file_;
  int lock_fd_ = -1;  // the folder, locked against removal
};

// Writes one image. WriteBlock is thread-safe, the rest is for one thread. Destroying it without
// Publish() removes what it wrote.
class ImageWriter {
 public:
  // Makes room for `bytes`, removing the leftover of a dead writer of the same image. Aborted if a
  // live one, in any process, is at it; ResourceExhausted if the disk has no room.
  static absl::StatusOr<std::unique_ptr<ImageWriter>> Begin(const std::string& image_folder,
                                                            const std::string& fingerprint,
                                                            uint64_t bytes);
  ~ImageWriter();
  ImageWriter(const ImageWriter&) = delete;
  ImageWriter& operator=(const ImageWriter&) = delete;

  // `data` lies at a multiple of 4 KiB.
  absl::Status WriteBlock(uint64_t offset, std::span<const std::byte> data);
  // False where the file system cannot set room aside: the disk may still fill up.
  bool preallocated() const { return preallocated_; }
  // Syncs everything and gives the image its final name, replacing a damaged one. The manifest's
  // fingerprint is the writer's.
  absl::Status Publish(const ImageManifest& manifest);

 private:
  ImageWriter(std::string folder, std::string final_folder, int lock_fd);
  std::string folder_;
  std::string final_folder_;
  int lock_fd_;  // the folder itself, locked by flock
  std::unique_ptr<os::DirectFile> file_;
  bool published_ = false;
  bool preallocated_ = false;
};

// Removes what dead writers left in `image_folder`; live ones are left alone. Returns how many.
absl::StatusOr<int> RemoveDeadImports(const std::string& image_folder);

// Removes complete images that were made from another state of the same source files as `current`
// (the files changed since). Returns how many.
absl::StatusOr<int> RemoveStaleImages(const std::string& image_folder,
                                      const std::vector<FileIdentity>& current);

// Removes the complete image that was opened the longest ago and that no process has open now.
// False if there is none.
absl::StatusOr<bool> RemoveLeastUsedImage(const std::string& image_folder);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_IMAGE_H_
