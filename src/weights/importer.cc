#include "weights/importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"

namespace terrace::weights {
namespace {

// How often an importer looks whether another process has finished the same image.
constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr int kSpareBuffers = 2;
// What a file system takes for an image's folder and the tables of its files.
constexpr uint64_t kFolderBytes = 64 * kKiB;

bool IsCancelled(const tier::CancelFlag* cancel) {
  return cancel != nullptr && cancel->cancelled.load(std::memory_order_relaxed);
}

// Equal in everything but checksums.
bool SameLayout(const format::ImageManifest& plan, format::ImageManifest image) {
  for (format::ImageSegment& segment : image.segments) {
    for (format::ImageBlock& block : segment.blocks) block.checksum = 0;
  }
  return plan == image;
}

}  // namespace

Importer::Importer(format::ModelSource source, ImporterOptions options)
    : source_(std::move(source)), options_(std::move(options)) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  // While one packs, another waits for the disk.
  thread_count_ = options_.threads > 0 ? options_.threads : std::clamp(2 * cores, 2, 4);
}

absl::StatusOr<std::shared_ptr<Importer>> Importer::Create(format::ModelSource source,
                                                           const ops::Backend* backend,
                                                           const ImporterOptions& options) {
  std::shared_ptr<Importer> importer(new Importer(std::move(source), options));
  ASSIGN_OR_RETURN(importer->plan_, MakePlan(importer->source_, *backend));
  importer->packer_.emplace(&importer->source_, &importer->plan_, backend);
  absl::MutexLock lock(&importer->mutex_);
  const format::ImageManifest manifest = ManifestOf(importer->plan_, importer->source_);
  for (uint32_t segment = 0; segment < manifest.segments.size(); ++segment) {
    importer->first_block_.push_back(importer->blocks_.size());
    uint64_t begin = 0;
    for (const format::ImageBlock& block : manifest.segments[segment].blocks) {
      importer->blocks_.push_back({segment, begin, block.offset, block.bytes});
      begin += block.bytes;
    }
  }
  importer->first_block_.push_back(importer->blocks_.size());
  if (!options.write_image) {
    importer->outcome_ = absl::FailedPreconditionError("no image is wanted for this model");
    return importer;
  }
  // What cannot be cleaned now costs disk, not correctness.
  format::RemoveDeadImports(options.image_folder).IgnoreError();
  if (importer->OpenFinishedImage()) importer->outcome_ = absl::OkStatus();
  return importer;
}

Importer::~Importer() { Stop(); }

void Importer::Start() {
  if (image_complete()) return;
  for (int i = 0; i < thread_count_; ++i) threads_.emplace_back([this] { Work(); });
  if (options_.write_image) threads_.emplace_back([this] { Coordinate(); });
}

void Importer::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status Importer::WaitForImage() {
  absl::MutexLock lock(&mutex_);
  while (!outcome_) changed_.Wait(&mutex_);
  return *outcome_;
}

tier::SegmentSource::OnDisk Importer::Locate(uint32_t segment) const {
  OnDisk place;
  const format::Image* image = image_.load(std::memory_order_acquire);
  if (image == nullptr) return place;
  place.file = &image->file();
  const auto& blocks = image->manifest().segments[segment].blocks;
  place.blocks.reserve(blocks.size());
  for (const format::ImageBlock& block : blocks) {
    place.blocks.push_back({block.offset, block.bytes, block.checksum});
  }
  return place;
}

absl::Status Importer::Produce(uint32_t segment, std::span<std::byte> out,
                               const tier::CancelFlag* cancel) {
  if (segment >= plan_.segments.size() || out.size() != plan_.segments[segment].bytes) {
    return absl::InvalidArgumentError(
        fmt::format("segment {} with room for {} bytes", segment, out.size()));
  }
  RETURN_IF_ERROR(source_.CheckUnchanged());
  Packer::Scratch scratch;
  Demand demand{segment, out, cancel, first_block_[segment], first_block_[segment + 1]};
  absl::MutexLock lock(&mutex_);
  demands_.push_back(&demand);
  changed_.SignalAll();
  while (demand.next < demand.end) FillOne(&demand, &scratch);
  while (demand.busy > 0) changed_.Wait(&mutex_);
  std::erase(demands_, &demand);
  changed_.SignalAll();
  const format::Image* image = image_.load(std::memory_order_acquire);
  if (!demand.status.ok() || image == nullptr) return demand.status;
  // Asked for although there is an image: its blocks are damaged.
  mutex_.Unlock();
  absl::Status status = Mend(*image, segment, out);
  mutex_.Lock();
  return status;
}

tier::AwaitedStore Importer::Awaited() const {
  for (const auto& file : source_.files) {
    format::ByteSource::Waiting waiting = file->waiting();
    if (!waiting.store.empty()) return {std::move(waiting.store), waiting.still_us};
  }
  return {};
}

void Importer::Tell(const std::string& message) const {
  if (options_.notice) options_.notice(message);
}

// The bytes just made are right or the segment fails; whether the disk takes them back is another
// matter, without which serving goes on.
absl::Status Importer::Mend(const format::Image& image, uint32_t segment,
                            std::span<const std::byte> made) {
  const std::string& name = plan_.segments[segment].name;
  absl::StatusOr<int> mended = image.Mend(segment, made);
  if (absl::IsDataLoss(mended.status())) return mended.status();
  if (!mended.ok()) {
    Tell(fmt::format("damaged blocks of {} cannot be mended, it is made anew each time: {}", name,
                     Message(mended.status())));
  } else if (*mended > 0) {
    Tell(fmt::format("{} damaged blocks of {} were made anew from the source", *mended, name));
  }
  return absl::OkStatus();
}

Importer::Demand* Importer::OpenDemand() const {
  for (Demand* demand : demands_) {
    if (demand->next < demand->end) return demand;
  }
  return nullptr;
}

void Importer::FillOne(Demand* demand, Packer::Scratch* scratch) {
  size_t index = demand->next++;
  ++demand->busy;
  const Block block = blocks_[index];
  mutex_.Unlock();
  std::span<std::byte> out = demand->out.subspan(block.begin, block.bytes);
  absl::Status status = IsCancelled(demand->cancel)
                            ? absl::CancelledError("the load was cancelled")
                            : packer_->Fill(block.segment, block.begin, out, scratch);
  mutex_.Lock();
  if (status.ok()) {
    // The bytes are at hand: pass a copy to the image's writers if they have room for it now.
    if (auto packed = Offer(index)) {
      mutex_.Unlock();
      std::memcpy(packed->buffer.get(), out.data(), out.size());
      mutex_.Lock();
      ready_.push_back(*std::move(packed));
      --writing_;
    }
  } else if (demand->status.ok()) {
    demand->status = status;
    demand->next = demand->end;
  }
  --demand->busy;
  changed_.SignalAll();
}

std::optional<Importer::Packed> Importer::Offer(size_t block) {
  if (writer_ == nullptr || !error_.ok() || stopping_ || blocks_[block].taken || free_.empty()) {
    return std::nullopt;
  }
  blocks_[block].taken = true;
  ++writing_;
  Packed packed{block, std::move(free_.back())};
  free_.pop_back();
  return packed;
}

bool Importer::HasWork() const {
  if (OpenDemand() != nullptr) return true;
  if (writer_ == nullptr || !error_.ok()) return false;
  if (!ready_.empty()) return true;
  // Packing for the image alone waits while a load is being served.
  return demands_.empty() && cursor_ < blocks_.size() && !free_.empty();
}

void Importer::Work() {
  Packer::Scratch scratch;
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && !image_complete()) {
    if (HasWork()) {
      WorkStep(&scratch);
    } else {
      changed_.Wait(&mutex_);
    }
  }
}

void Importer::WorkStep(Packer::Scratch* scratch) {
  if (Demand* demand = OpenDemand()) {
    FillOne(demand, scratch);
  } else if (!ready_.empty()) {
    Packed packed = std::move(ready_.front());
    ready_.pop_front();
    ++writing_;
    WriteOne(std::move(packed));
    --writing_;
  } else {
    PackOne(scratch);
  }
  changed_.SignalAll();
}

void Importer::PackOne(Packer::Scratch* scratch) {
  while (cursor_ < blocks_.size() && blocks_[cursor_].taken) ++cursor_;
  if (cursor_ == blocks_.size()) return;
  auto packed = Offer(cursor_);
  if (!packed) return;
  const Block block = blocks_[packed->block];
  mutex_.Unlock();
  absl::Status status = packer_->Fill(block.segment, block.begin,
                                      std::span(packed->buffer.get(), block.bytes), scratch);
  mutex_.Lock();
  if (status.ok()) {
    WriteOne(*std::move(packed));
  } else {
    Fail(status);
  }
  --writing_;
}

void Importer::WriteOne(Packed packed) {
  const Block block = blocks_[packed.block];
  format::ImageWriter* writer = writer_;
  mutex_.Unlock();
  std::span<const std::byte> data(packed.buffer.get(), block.bytes);
  uint64_t checksum = Hash64(data.data(), data.size());
  absl::Status status = writer->WriteBlock(block.offset, data);
  mutex_.Lock();
  free_.push_back(std::move(packed.buffer));
  if (!status.ok()) return Fail(status);
  blocks_[packed.block].checksum = checksum;
  --unwritten_;
}

void Importer::Fail(const absl::Status& status) {
  if (error_.ok()) error_ = status;
}

bool Importer::OpenFinishedImage() {
  auto image = format::Image::Open(options_.image_folder, plan_.fingerprint);
  if (!image.ok() || !SameLayout(ManifestOf(plan_, source_), (*image)->manifest())) return false;
  owned_image_ = *std::move(image);
  image_.store(owned_image_.get(), std::memory_order_release);
  return true;
}

void Importer::Coordinate() {
  absl::Status status = WriteImage();
  if (!status.ok() && !absl::IsCancelled(status)) {
    Tell(fmt::format("no image could be written, the model is read from its source: {}",
                     Message(status)));
  }
  absl::MutexLock lock(&mutex_);
  outcome_ = status;
  changed_.SignalAll();
}

absl::Status Importer::WriteImage() {
  format::RemoveStaleImages(options_.image_folder, source_.identity).IgnoreError();
  ASSIGN_OR_RETURN(storage::DiskClaim claim, ClaimDisk());
  ASSIGN_OR_RETURN(std::unique_ptr<format::ImageWriter> writer, BeginImage());
  if (writer == nullptr) return absl::OkStatus();  // another process made it
  // From here on the files themselves count.
  if (writer->preallocated()) claim.Release();
  {
    absl::MutexLock lock(&mutex_);
    for (int i = 0; i < thread_count_ + kSpareBuffers; ++i) {
      free_.emplace_back(static_cast<std::byte*>(
          std::aligned_alloc(format::kImageAlignment, format::kImageMaxBlockBytes)));
      if (free_.back() == nullptr)
        return absl::ResourceExhaustedError("no memory for import buffers");
    }
    unwritten_ = blocks_.size();
    writer_ = writer.get();
    changed_.SignalAll();
    while (unwritten_ > 0 && error_.ok() && !stopping_) changed_.Wait(&mutex_);
    while (writing_ > 0) changed_.Wait(&mutex_);
    writer_ = nullptr;
    free_.clear();
    ready_.clear();
    if (!error_.ok()) return error_;
    if (unwritten_ > 0) return absl::CancelledError("the import was stopped");
  }
  return PublishImage(writer.get());
}

absl::StatusOr<storage::DiskClaim> Importer::ClaimDisk() const {
  if (options_.disk == nullptr) return storage::DiskClaim();
  const uint64_t manifest = format::SerializeManifest(ManifestOf(plan_, source_)).size();
  // Checksums are written in digits, so the manifest grows by as many.
  const uint64_t more = AlignUp(2 * manifest, format::kImageAlignment) + kFolderBytes;
  return options_.disk->Claim(plan_.total_bytes + more, "an image", [this] {
    absl::StatusOr<bool> removed = format::RemoveLeastUsedImage(options_.image_folder);
    if (removed.ok() && *removed) Tell("an unused image made room for a new one");
    return removed.ok() && *removed;
  });
}

absl::StatusOr<std::unique_ptr<format::ImageWriter>> Importer::BeginImage() {
  while (true) {
    if (OpenFinishedImage()) return nullptr;
    auto writer =
        format::ImageWriter::Begin(options_.image_folder, plan_.fingerprint, plan_.total_bytes);
    if (writer.ok() || !absl::IsAborted(writer.status())) return writer;
    absl::MutexLock lock(&mutex_);
    if (!stopping_) changed_.WaitWithTimeout(&mutex_, kPoll);
    if (stopping_) return absl::CancelledError("the import was stopped");
  }
}

absl::Status Importer::PublishImage(format::ImageWriter* writer) {
  format::ImageManifest manifest = ManifestOf(plan_, source_);
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Block& block = blocks_[i];
      manifest.segments[block.segment].blocks[i - first_block_[block.segment]].checksum =
          block.checksum;
    }
  }
  // Blocks read before and after a change of the source would not belong together.
  RETURN_IF_ERROR(source_.CheckUnchanged());
  RETURN_IF_ERROR(writer->Publish(manifest));
  if (!OpenFinishedImage()) {
    return absl::InternalError("the image cannot be opened after it was written");
  }
  return absl::OkStatus();
}

}  // namespace terrace::weights
