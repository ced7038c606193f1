// Where a model's segments come from: the image once it is complete, the source file until then.
// The image is written in the background meanwhile, by threads that help a waiting load first.
#ifndef TERRACE_WEIGHTS_IMPORTER_H_
#define TERRACE_WEIGHTS_IMPORTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "format/image.h"
#include "format/model_source.h"
#include "ops/backend.h"
#include "storage/disk/disk_budget.h"
#include "tier/types.h"
#include "weights/packer.h"
#include "weights/plan.h"

namespace terrace::weights {

struct ImporterOptions {
  std::string image_folder;
  bool write_image = true;
  int threads = 0;  // that pack and write; 0: two a core, at most 4
  // What images may take of the disk; null: as much as there is. Images that nobody has open make
  // room, the longest unused first. Must outlive the importer.
  storage::DiskBudget* disk = nullptr;
  // Told, on any thread, what an operator should know: an image that could not be written or was
  // mended. May be empty.
  std::function<void(const std::string&)> notice;
};

// Thread-safe. Besides what it serves it holds two blocks (8 MiB) more than it has threads while
// the image is being written, and about a block of source bytes a thread.
class Importer final : public tier::SegmentSource {
 public:
  // Removes what dead imports left in the image folder, and opens the image if it is there. Starts
  // no threads yet. `backend` must outlive Stop().
  static absl::StatusOr<std::shared_ptr<Importer>> Create(format::ModelSource source,
                                                          const ops::Backend* backend,
                                                          const ImporterOptions& options);
  ~Importer() override;

  // Begins to write the image unless it is there or not wanted. Call once.
  void Start();
  // Gives up an unfinished image, removing its files, and joins all threads. Produce then still
  // works.
  void Stop();

  const format::ModelSource& source() const { return source_; }
  const ImagePlan& plan() const { return plan_; }
  bool image_complete() const { return image_.load(std::memory_order_acquire) != nullptr; }
  absl::Status WaitForImage();

  OnDisk Locate(uint32_t segment) const override;
  absl::Status Produce(uint32_t segment, std::span<std::byte> out,
                       const tier::CancelFlag* cancel) override;
  tier::AwaitedStore Awaited() const override;

 private:
  struct FreeBytes {
    void operator()(std::byte* data) const { std::free(data); }
  };
  using Buffer = std::unique_ptr<std::byte, FreeBytes>;

  // A block of the image.
  struct Block {
    uint32_t segment = 0;
    uint64_t begin = 0;   // in the segment
    uint64_t offset = 0;  // in the file
    uint32_t bytes = 0;
    bool taken = false;  // somebody packs, writes or has written it
    uint64_t checksum = 0;
  };
  // A segment that a load waits for.
  struct Demand {
    uint32_t segment = 0;
    std::span<std::byte> out;
    const tier::CancelFlag* cancel = nullptr;
    size_t next = 0;  // block to fill next
    size_t end = 0;
    int busy = 0;  // threads at it
    absl::Status status;
  };
  // A packed block on its way to the disk.
  struct Packed {
    size_t block = 0;
    Buffer buffer;
  };

  Importer(format::ModelSource source, ImporterOptions options);

  void Coordinate();
  absl::Status WriteImage();
  absl::StatusOr<std::unique_ptr<format::ImageWriter>> BeginImage();
  absl::Status PublishImage(format::ImageWriter* writer);
  absl::StatusOr<storage::DiskClaim> ClaimDisk() const;
  absl::Status Mend(const format::Image& image, uint32_t segment, std::span<const std::byte> made);
  void Tell(const std::string& message) const;
  bool OpenFinishedImage();
  void Work();
  void WorkStep(Packer::Scratch* scratch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The demand that most needs help, null if none does.
  Demand* OpenDemand() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FillOne(Demand* demand, Packer::Scratch* scratch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<Packed> Offer(size_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteOne(Packed packed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PackOne(Packer::Scratch* scratch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const format::ModelSource source_;
  const ImporterOptions options_;
  int thread_count_ = 1;
  ImagePlan plan_;
  std::optional<Packer> packer_;
  std::vector<size_t> first_block_;  // of each segment, and one past the last

  std::unique_ptr<format::Image> owned_image_;  // set once, before image_
  std::atomic<const format::Image*> image_{nullptr};

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  // any of the fields below
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mutex_);
  format::ImageWriter* writer_ ABSL_GUARDED_BY(mutex_) = nullptr;  // while blocks are written
  size_t cursor_ ABSL_GUARDED_BY(mutex_) = 0;                      // blocks before it are taken
  size_t unwritten_ ABSL_GUARDED_BY(mutex_) = 0;
  int writing_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that use writer_ or a free buffer
  std::vector<Buffer> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Packed> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<Demand*> demands_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);  // of the blocks' writers
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> outcome_ ABSL_GUARDED_BY(mutex_);  // of the image
  std::vector<std::thread> threads_;
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_IMPORTER_H_
