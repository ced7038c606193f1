// Pieces of segments that are not on the device, for who needs little of them and soon.
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/units.h"
#include "os/mapping.h"
#include "tier/manager_impl.h"

namespace terrace::tier {
namespace {

constexpr absl::Duration kCancelPoll = absl::Milliseconds(5);

// The pages of a file that hold a part of a piece.
struct PagePart {
  FileRange pages;     // `out` is cut when all parts are known
  uint64_t skip = 0;   // bytes of the pages before the part
  uint64_t bytes = 0;  // of the part
  std::byte* to = nullptr;
};

// Notes how reads end; shared with their callbacks.
class Reads {
 public:
  explicit Reads(size_t count) : left_(count) {}
  void Ended(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    ok_ &= status.ok();
    --left_;
  }
  // False if it takes longer than `most`.
  bool AllEnded(absl::Duration most) {
    absl::MutexLock lock(&mutex_);
    auto none = [this] { return left_ == 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&none), most);
  }
  bool ok() {
    absl::MutexLock lock(&mutex_);
    return ok_;
  }

 private:
  absl::Mutex mutex_;
  size_t left_ ABSL_GUARDED_BY(mutex_);
  bool ok_ ABSL_GUARDED_BY(mutex_) = true;
};

// Where `piece` lies in the segment's blocks, which follow each other in memory; false if it goes
// past them.
bool Cut(const SegmentSource::OnDisk& place, const SegmentPiece& piece,
         std::vector<PagePart>* parts) {
  uint64_t begin = piece.offset;
  std::byte* to = piece.out.data();
  uint64_t left = piece.out.size(), block_begin = 0;
  for (const DiskBlock& block : place.blocks) {
    if (left == 0) break;
    if (begin < block_begin + block.bytes) {
      const uint64_t in_block = begin - block_begin;
      const uint64_t bytes = std::min(left, block.bytes - in_block);
      const uint64_t first = in_block / kBlockAlignment * kBlockAlignment;
      PagePart part;
      part.pages.file = place.file;
      part.pages.offset = block.offset + first;
      part.skip = in_block - first;
      part.bytes = bytes;
      part.to = to;
      parts->push_back(part);
      begin += bytes;
      to += bytes;
      left -= bytes;
    }
    block_begin += block.bytes;
  }
  return left == 0;
}

uint64_t PageBytes(const PagePart& part) {
  return AlignUp(part.skip + part.bytes, kBlockAlignment);
}

// Waits for all of `reads`, which go on after a cancellation while they write to memory.
bool AwaitReads(Reads& reads, const CancelFlag* cancel, const std::function<void()>& give_up) {
  bool cancelled = false;
  while (!reads.AllEnded(cancelled || cancel == nullptr ? absl::InfiniteDuration() : kCancelPoll)) {
    if (!cancel->cancelled) continue;
    cancelled = true;
    give_up();
  }
  return !cancelled;
}

}  // namespace

absl::StatusOr<bool> TierManagerImpl::ReadPieces(ModelId id, uint32_t index,
                                                 std::span<const SegmentPiece> pieces,
                                                 const CancelFlag* cancel) {
  std::shared_ptr<SegmentSource> source;
  size_t from_host = 0;
  while (source == nullptr && from_host < pieces.size()) {
    // For each piece anew, so that nobody waits long for the lock.
    absl::MutexLock lock(&mutex_);
    const Model* model = FindLocked(id);
    if (model == nullptr || index >= model->segments.size()) return false;
    const Segment& segment = model->segments[index];
    const SegmentPiece& piece = pieces[from_host];
    if (segment.residence == Residence::kResident) return false;
    if (!segment.host.complete) {
      source = model->spec.source;
    } else {
      if (piece.offset + piece.out.size() > segment.spec.bytes) return false;
      std::memcpy(piece.out.data(), segment.host.memory.data() + piece.offset, piece.out.size());
      ++from_host;
    }
  }
  if (source == nullptr) return true;
  const SegmentSource::OnDisk place = source->Locate(index);
  if (place.file == nullptr) return false;
  std::vector<PagePart> parts;
  for (const SegmentPiece& piece : pieces.subspan(from_host)) {
    if (!Cut(place, piece, &parts)) return false;
  }
  uint64_t bytes = 0;
  for (const PagePart& part : parts) bytes += PageBytes(part);
  ASSIGN_OR_RETURN(const os::Mapping memory, os::Mapping::Anonymous(bytes));
  std::vector<FileRange> ranges;
  std::byte* at = memory.data();
  for (PagePart& part : parts) {
    part.pages.out = {at, PageBytes(part)};
    at += part.pages.out.size();
    ranges.push_back(part.pages);
  }
  const auto reads = std::make_shared<Reads>(ranges.size());
  const uint64_t number =
      ReadRanges(std::move(ranges), Priority::kDemand,
                 [reads](size_t, const absl::Status& status) { reads->Ended(status); });
  auto note_waiting = [this](int32_t more) {
    absl::MutexLock lock(&mutex_);
    waiting_ += static_cast<uint32_t>(more);
  };
  note_waiting(1);
  const bool ended = AwaitReads(*reads, cancel, [&] { CancelRanges(number); });
  note_waiting(-1);
  if (!ended) {
    return absl::CancelledError("cancelled while waiting for weights");
  }
  // Whoever needs the segment is told by its load what is wrong with the disk.
  if (!reads->ok()) return false;
  for (const PagePart& part : parts) {
    std::memcpy(part.to, part.pages.out.data() + part.skip, part.bytes);
  }
  return true;
}

}  // namespace terrace::tier
