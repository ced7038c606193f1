#include "kv/restore.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/time.h"
#include "base/status.h"
#include "base/units.h"

namespace terrace::kv {
namespace {

// No slice is smaller, and none is cut off a rest that is not larger than this.
constexpr uint64_t kLeastSliceBytes = 64 * kKiB;
constexpr size_t kMostSlices = 32;
// Workers that bring memory in. One alone may be slower than the disk.
constexpr int kFeeders = 2;
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
  const uint64_t layers = ask_.block_bytes / layer;
  double share = std::clamp(ask_.first_share, 0.0, 1.0);
  for (uint64_t done = 0; ends_.size() + 1 < kMostSlices; share = 0.5) {
    const uint64_t left = layers - done;
    if (left < 2 || left * layer < 2 * kLeastSliceBytes) break;
    const uint64_t least = (kLeastSliceBytes + layer - 1) / layer;
    const auto wanted = static_cast<uint64_t>(std::ceil(static_cast<double>(left) * share));
    done += std::clamp(wanted, least, left - least);
    const uint64_t end = AlignUp(done * layer, tier::kBlockAlignment);
    if (end >= ask_.block_bytes) break;
    ends_.push_back(end);
  }
  ends_.push_back(ask_.block_bytes);
}

bool Restore::Open(Item& item, const BlockKey& key) {
  absl::StatusOr<std::unique_ptr<os::DirectFile>> file = parts_.store->Open(key, ask_.block_bytes);
  gone_ = !file.ok();
  if (gone_) return false;
  absl::StatusOr<tier::DeviceBuffer> buffer =
      parts_.manager->Allocate(ask_.owner, ask_.block_bytes);
  if (!buffer.ok()) return false;
  if (separate_) {
    absl::StatusOr<os::Mapping> host = os::Mapping::Anonymous(ask_.block_bytes);
    if (!host.ok()) return false;
    item.host = *std::move(host);
  }
  item.key = key;
  item.file = *std::move(file);
  item.buffer = *std::move(buffer);
  item.device = item.buffer.data();
  item.data = separate_ ? item.host.data() : item.device;
  return true;
}

size_t Restore::Begin() {
  CutSlices();
  const size_t most = ask_.keys.size();
  absl::StatusOr<os::Mapping> headers = os::Mapping::Anonymous(most * kHeaderBytes);
  if (!headers.ok()) return 0;
  headers_ = *std::move(headers);
  items_ = std::vector<Item>(most);
  {
    absl::MutexLock lock(&mutex_);
    missing_.assign(ends_.size(), most);
    good_ = most;
    left_ = most + 1;
  }
  for (size_t i = 0; i < most && Open(items_[i], ask_.keys[i]); ++i) {
    int more = 0;
    {
      absl::MutexLock lock(&mutex_);
      opened_ = i + 1;
      more = feeders_ < kFeeders ? 1 : 0;
      feeders_ += more;
    }
    if (more > 0) parts_.workers->Run([self = shared_from_this()] { self->Feed(); });
  }
  absl::MutexLock lock(&mutex_);
  count_ = opened_;
  for (size_t& missing : missing_) missing -= most - count_;
  good_ = std::min(good_, count_);
  left_ -= most - count_;
  all_open_ = true;
  return count_;
}

void Restore::Feed() {
  for (;;) {
    size_t index = 0;
    {
      absl::MutexLock lock(&mutex_);
      auto ready = [this] {
        mutex_.AssertHeld();
        return fed_ < opened_ || all_open_;
      };
      mutex_.Await(absl::Condition(&ready));
      if (fed_ == opened_) break;
      index = fed_++;
    }
    os::Populate({items_[index].data, ask_.block_bytes});
    AskFirst(index);
  }
  {
    absl::MutexLock lock(&mutex_);
    if (--feeders_ > 0) return;
  }
  AskRest();
  absl::MutexLock lock(&mutex_);
  PartOverLocked();
}

void Restore::AskFirst(size_t index) {
  const Item& item = items_[index];
  Ask({{item.file.get(), kHeaderBytes, {item.data, ends_[0]}},
       {item.file.get(), 0, headers_.span().subspan(index * kHeaderBytes, kHeaderBytes)}},
      [self = shared_from_this(), index](size_t range, const absl::Status& status) {
        self->OnRead(index, range == 0 ? 0 : kHeader, status);
      });
}

void Restore::AskRest() {
  std::vector<tier::FileRange> ranges;
  ranges.reserve(count_ * (ends_.size() - 1));
  for (size_t slice = 1; slice < ends_.size(); ++slice) {
    const uint64_t begin = ends_[slice - 1];
    for (size_t i = 0; i < count_; ++i) {
      ranges.push_back({items_[i].file.get(),
                        kHeaderBytes + begin,
                        {items_[i].data + begin, ends_[slice] - begin}});
    }
  }
  Ask(std::move(ranges), [self = shared_from_this()](size_t range, const absl::Status& status) {
    self->OnRead(range % self->count_, 1 + range / self->count_, status);
  });
}

void Restore::Ask(std::vector<tier::FileRange> ranges, tier::TierManager::RangeDone done) {
  if (ranges.empty()) return;
  const uint64_t number =
      parts_.manager->ReadRanges(std::move(ranges), tier::Priority::kNextLayer, std::move(done));
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    numbers_.push_back(number);
    cancelled = cancelled_;
  }
  if (cancelled) parts_.manager->CancelRanges(number);
}

void Restore::PartOverLocked() {
  if (--left_ > 0) return;
  parts_.workers->Run([self = shared_from_this()] { self->End(); });
}

void Restore::Cancel() {
  std::vector<uint64_t> numbers;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    numbers = numbers_;
  }
  for (uint64_t number : numbers) parts_.manager->CancelRanges(number);
}

void Restore::OnRead(size_t index, size_t slice, const absl::Status& status) {
  Item& item = items_[index];
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) {
    item.failed = true;
    spoiled_ = true;
    changed_.SignalAll();
  }
  if (slice == kHeader) {
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
    if (again && !cancelled) good = ReadAgain(item);
    EndItem(index, good, again);
    return;
  }
}

bool Restore::CopyToDevice(const Item& item, uint64_t offset, uint64_t bytes) {
  if (!separate_) return true;
  return parts_.manager->CopyToDevice({item.data + offset, bytes}, item.device + offset).ok();
}

bool Restore::ReadAgain(Item& item) {
  absl::StatusOr<tier::DeviceBuffer> buffer =
      parts_.manager->Allocate(ask_.owner, ask_.block_bytes);
  if (!buffer.ok()) return false;
  const std::span<std::byte> data(separate_ ? item.data : buffer->data(), ask_.block_bytes);
  if (!parts_.store->Read(item.key, data).ok()) return false;
  if (separate_ && !parts_.manager->CopyToDevice(data, buffer->data()).ok()) return false;
  item.spoilt = std::exchange(item.buffer, *std::move(buffer));
  return true;
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
    if (spoiled_ || good_ < count_) {
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
