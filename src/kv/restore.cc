#include "kv/restore.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/units.h"

namespace terrace::kv {
namespace {

// As much of each block at a time: large enough that the disk gives all it has, small enough that
// the layers of the last slice are few.
constexpr uint64_t kSliceBytes = 256 * kKiB;
constexpr size_t kMostSlices = 32;
// The last slices are small: only their layers are left to compute when all has been read.
constexpr uint64_t kLastSliceBytes = 64 * kKiB;
// A waiting step looks at its cancel flag this often.
constexpr absl::Duration kCancelPoll = absl::Milliseconds(5);
constexpr uint64_t kHeaderBytes = storage::BlockStore::kDataOffset;

}  // namespace

Restore::Restore(Parts parts, RestoreAsk ask, std::function<void(Restore&)> ended)
    : parts_(std::move(parts)),
      ask_(std::move(ask)),
      ended_(std::move(ended)),
      separate_(!parts_.manager->unified()) {}

// Slices end where layers end, rounded up to what direct I/O takes.
void Restore::CutSlices() {
  const uint64_t layer = std::max<uint64_t>(ask_.layer_bytes, 1);
  const uint64_t least = std::max(kSliceBytes, ask_.block_bytes / kMostSlices);
  const uint64_t layers = (least + layer - 1) / layer;
  for (uint64_t end = layers * layer; end < ask_.block_bytes; end += layers * layer) {
    const uint64_t cut = AlignUp(end, tier::kBlockAlignment);
    if (cut + kSliceBytes / 2 > ask_.block_bytes) break;  // no slice for a small rest
    ends_.push_back(cut);
  }
  for (uint64_t left = layers / 2; left > 0 && ends_.size() + 1 < kMostSlices; left /= 2) {
    const uint64_t last = ends_.empty() ? 0 : ends_.back();
    const uint64_t rest = (ask_.block_bytes - std::min(ask_.block_bytes, last)) / layer;
    if (rest <= left) continue;
    if (left * layer < kLastSliceBytes) break;
    ends_.push_back(AlignUp((ask_.block_bytes / layer - left) * layer, tier::kBlockAlignment));
  }
  ends_.push_back(ask_.block_bytes);
}

std::vector<tier::FileRange> Restore::Ranges() {
  std::vector<tier::FileRange> ranges;
  ranges.reserve(items_.size() * (ends_.size() + 1));
  uint64_t begin = 0;
  for (uint64_t end : ends_) {
    for (const Item& item : items_) {
      ranges.push_back({item.file.get(), kHeaderBytes + begin, {item.data + begin, end - begin}});
    }
    begin = end;
    if (ranges.size() > items_.size()) continue;
    for (size_t i = 0; i < items_.size(); ++i) {
      ranges.push_back(
          {items_[i].file.get(), 0, headers_.span().subspan(i * kHeaderBytes, kHeaderBytes)});
    }
  }
  return ranges;
}

size_t Restore::Begin() {
  CutSlices();
  for (const BlockKey& key : ask_.keys) {
    absl::StatusOr<std::unique_ptr<os::DirectFile>> file =
        parts_.store->Open(key, ask_.block_bytes);
    gone_ = !file.ok();
    if (gone_) break;
    absl::StatusOr<tier::DeviceBuffer> buffer =
        parts_.manager->Allocate(ask_.owner, ask_.block_bytes);
    if (!buffer.ok()) break;
    Item item;
    item.key = key;
    item.file = *std::move(file);
    item.buffer = *std::move(buffer);
    item.device = item.data = item.buffer.data();
    if (separate_) {
      absl::StatusOr<os::Mapping> host = os::Mapping::Anonymous(ask_.block_bytes);
      if (!host.ok()) break;
      item.host = *std::move(host);
      item.data = item.host.data();
    }
    items_.push_back(std::move(item));
  }
  if (items_.empty()) return 0;
  absl::StatusOr<os::Mapping> headers = os::Mapping::Anonymous(items_.size() * kHeaderBytes);
  if (!headers.ok()) return 0;
  headers_ = *std::move(headers);
  {
    absl::MutexLock lock(&mutex_);
    missing_.assign(ends_.size(), items_.size());
    good_ = items_.size();
    left_ = items_.size() + 1;
  }
  parts_.workers->Run([self = shared_from_this()] { self->Populate(); });
  const uint64_t number =
      parts_.manager->ReadRanges(Ranges(), tier::Priority::kNextLayer,
                                 [self = shared_from_this()](size_t range, absl::Status status) {
                                   self->OnRead(range, status);
                                 });
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    number_ = number;
    cancelled = cancelled_;
  }
  if (cancelled) parts_.manager->CancelRanges(number);
  return items_.size();
}

// Brings in pages from the last block on, until it meets the reads, which bring them in one by one
// from the first: so two threads clear memory while the disk is busy. A part of the restore: while
// it lasts no block is given away, whose pages it would bring back.
void Restore::Populate() {
  for (size_t i = items_.size(); i-- > 0;) {
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_ || (items_[i].arrived & 1) != 0) break;
    }
    os::Populate({items_[i].data, ask_.block_bytes});
  }
  absl::MutexLock lock(&mutex_);
  PartOverLocked();
}

void Restore::PartOverLocked() {
  if (--left_ > 0) return;
  parts_.workers->Run([self = shared_from_this()] { self->End(); });
}

void Restore::Cancel() {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    number = number_;
  }
  if (number != 0) parts_.manager->CancelRanges(number);
}

// Ranges are asked for as Ranges() lists them: first slices, headers, other slices.
void Restore::OnRead(size_t range, const absl::Status& status) {
  const size_t index = range % items_.size();
  const size_t row = range / items_.size();
  Item& item = items_[index];
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    item.failed = true;
    spoiled_ = true;
    changed_.SignalAll();
  }
  const size_t slice = row == 0 ? 0 : row - 1;
  if (row == 1) {
    item.header = true;
  } else {
    item.arrived |= uint32_t{1} << slice;
    if (!separate_ && --missing_[slice] == 0) changed_.SignalAll();
  }
  if (item.hashing || NextSliceLocked(item) < 0) return;
  item.hashing = true;
  parts_.workers->Run([self = shared_from_this(), index] { self->Hash(index); });
}

// Slices are hashed in their order; with all of them hashed, the header is looked at.
int Restore::NextSliceLocked(const Item& item) const {
  if (item.ended) return -1;
  if (item.hashed < ends_.size()) {
    return (item.arrived >> item.hashed & 1) != 0 ? static_cast<int>(item.hashed) : -1;
  }
  return item.header ? static_cast<int>(item.hashed) : -1;
}

void Restore::Hash(size_t index) {
  Item& item = items_[index];
  for (;;) {
    bool failed = false, cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      if (NextSliceLocked(item) < 0) {
        item.hashing = false;
        return;
      }
      failed = item.failed;
      cancelled = cancelled_;
    }
    if (item.hashed < ends_.size()) {
      const uint64_t begin = item.hashed == 0 ? 0 : ends_[item.hashed - 1];
      const uint64_t bytes = ends_[item.hashed] - begin;
      if (!failed) item.hash.Add(item.data + begin, bytes);
      const bool copied = failed || CopyToDevice(item, begin, bytes);
      absl::MutexLock lock(&mutex_);
      if (!copied) item.failed = spoiled_ = true;
      if (separate_ && --missing_[item.hashed] == 0) changed_.SignalAll();
      ++item.hashed;
      continue;
    }
    const std::span<const std::byte> header =
        headers_.span().subspan(index * kHeaderBytes, kHeaderBytes);
    bool good = !failed &&
                parts_.store->CheckRead(item.key, header, ask_.block_bytes, item.hash.Value()).ok();
    const bool again = !good;
    if (again && !cancelled) {
      good = parts_.store->Read(item.key, {item.data, ask_.block_bytes}).ok() &&
             CopyToDevice(item, 0, ask_.block_bytes);
    }
    EndItem(index, good, again);
    return;
  }
}

bool Restore::CopyToDevice(const Item& item, uint64_t offset, uint64_t bytes) {
  if (!separate_) return true;
  return parts_.manager->CopyToDevice({item.data + offset, bytes}, item.device + offset).ok();
}

void Restore::EndItem(size_t index, bool good, bool again) {
  Item& item = items_[index];
  item.file.reset();
  item.host = os::Mapping();
  absl::MutexLock lock(&mutex_);
  item.ended = true;
  item.hashing = false;
  if (!good) good_ = std::min(good_, index);
  if (again) spoiled_ = true;
  if (again) changed_.SignalAll();
  PartOverLocked();
}

void Restore::End() {
  size_t good = 0;
  {
    absl::MutexLock lock(&mutex_);
    good = good_;
  }
  std::vector<BlockRef> blocks;
  for (size_t i = 0; i < good; ++i) {
    blocks.push_back(parts_.publish(items_[i].key, &items_[i].buffer));
  }
  {
    absl::MutexLock lock(&mutex_);
    blocks_ = std::move(blocks);
    over_ = true;
    changed_.SignalAll();
  }
  ended_(*this);
}

absl::Status Restore::AwaitLocked(const std::function<bool()>& there,
                                  const tier::CancelFlag* cancel) {
  for (;;) {
    if (spoiled_ || good_ < items_.size()) {
      return absl::UnavailableError("stored KV could not be read");
    }
    if (there()) return absl::OkStatus();
    if (cancel != nullptr && cancel->cancelled.load(std::memory_order_relaxed)) {
      return absl::CancelledError("cancelled while waiting for stored KV");
    }
    changed_.WaitWithTimeout(&mutex_, kCancelPoll);
  }
}

absl::Status Restore::AwaitLayer(int32_t layer, const tier::CancelFlag* cancel) {
  const uint64_t end =
      std::min(static_cast<uint64_t>(layer + 1) * ask_.layer_bytes, ask_.block_bytes);
  const auto slice =
      static_cast<size_t>(std::lower_bound(ends_.begin(), ends_.end(), end) - ends_.begin());
  absl::MutexLock lock(&mutex_);
  return AwaitLocked(
      [&] {
        mutex_.AssertHeld();
        return std::all_of(missing_.begin(), missing_.begin() + static_cast<ptrdiff_t>(slice) + 1,
                           [](size_t missing) { return missing == 0; });
      },
      cancel);
}

absl::Status Restore::AwaitAll(const tier::CancelFlag* cancel) {
  absl::MutexLock lock(&mutex_);
  return AwaitLocked(
      [this] {
        mutex_.AssertHeld();
        return over_;
      },
      cancel);
}

std::vector<BlockRef> Restore::blocks() const {
  absl::MutexLock lock(&mutex_);
  return blocks_;
}

}  // namespace terrace::kv
