#include "kv/cache.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"
#include "os/mapping.h"
#include "storage/remote/remote_store.h"

namespace terrace::kv {
namespace {

constexpr uint32_t kUsesToWrite = 2;
// Writes that wait. A block that waits for its second-use write may be reclaimed meanwhile, so this
// bounds only the queue's own size.
constexpr size_t kMaxQueuedWrites = 8192;
// Reads in flight: what it takes to keep an NVMe disk busy with blocks of some hundred KiB.
constexpr int kLoaders = 8;
// Keys remembered as sent to the remote store; after that many the memory starts anew, which costs
// a second sending at worst.
constexpr size_t kMaxSent = size_t{1} << 18;
constexpr double kRateWeight = 0.3;
// Blocks looked for in the remote store at once: 64 Ki tokens.
constexpr size_t kMaxBeyond = 4096;

}  // namespace

// What the workers of one load from the remote store share; the last of them to finish reports.
struct Cache::Batch {
  RestoreAsk ask;
  std::vector<BlockRef> blocks;
  std::string why;
  int64_t start_us = 0;
  std::atomic<size_t> left{0};
  std::atomic<bool> failed{false};
  LoadDone done;
};

Cache::Cache(tier::TierManager* manager, storage::BlockStore* store, const Clock* clock)
    : manager_(manager), store_(store), clock_(clock) {
  if (store_ != nullptr) StartPools();
}

void Cache::StartPools() {
  if (writer_ != nullptr) return;
  writer_ = std::make_unique<os::WorkerPool>("kv-writer", 1);
  loaders_ = std::make_unique<os::WorkerPool>("kv-loader", kLoaders);
}

Cache::~Cache() {
  std::vector<std::shared_ptr<Restore>> restores;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (Restore* restore : restores_) restores.push_back(restore->shared_from_this());
  }
  for (const auto& restore : restores) restore->Cancel();
  absl::MutexLock lock(&mutex_);
  auto idle = [this] {
    mutex_.AssertHeld();
    return loads_ == 0;
  };
  mutex_.Await(absl::Condition(&idle));
}

void Cache::SetRemote(storage::RemoteStore* remote) {
  remote_ = remote;
  if (remote != nullptr) StartPools();
}

void Cache::SetHost(HostStore* host) {
  host_ = host;
  if (host != nullptr) StartPools();
}

void Cache::TouchLocked(Entry& entry, int64_t now_us) {
  entry.last_used_us = now_us;
  order_.splice(order_.end(), order_, entry.order);
}

void Cache::ConsiderWritingLocked(const BlockKey& key) {
  const bool to_disk = store_ != nullptr && !store_->Contains(key);
  const bool to_remote = remote_ != nullptr && !sent_.contains(key) && remote_->usable();
  if ((!to_disk && !to_remote) || sketch_.Estimate(key) < kUsesToWrite || writing_.contains(key) ||
      writing_.size() >= kMaxQueuedWrites) {
    return;
  }
  writing_.insert(key);
  writer_->Run([this, key] { WriteUsed(key); });
}

void Cache::WriteUsed(const BlockKey& key) {
  std::shared_ptr<Block> block;
  {
    absl::MutexLock lock(&mutex_);
    auto it = entries_.find(key);
    if (!stopping_ && it != entries_.end()) block = it->second.block;
  }
  if (block != nullptr) Write(*block);
  block.reset();  // its memory is free before anybody is told
  absl::MutexLock lock(&mutex_);
  writing_.erase(key);
}

// A block that cannot be written is recomputed when it is missed; the stores count and report.
void Cache::Write(const Block& block) {
  std::span<const std::byte> data(block.buffer.data(), block.buffer.bytes());
  os::Mapping copy;  // where the host can't read the device's; aligned as the disk wants it
  if (!manager_->unified()) {
    absl::StatusOr<os::Mapping> memory = os::Mapping::Anonymous(data.size());
    if (!memory.ok()) return;
    copy = *std::move(memory);
    const std::span<std::byte> bytes = copy.span().first(data.size());
    if (!manager_->CopyToHost(data.data(), bytes).ok()) return;
    data = bytes;
  }
  if (store_ != nullptr) store_->Write(block.key, data).IgnoreError();
  if (remote_ == nullptr || !remote_->Write(block.key, data).ok()) return;
  absl::MutexLock lock(&mutex_);
  if (sent_.size() >= kMaxSent) sent_.clear();
  sent_.insert(block.key);
}

void Cache::MoveDown(std::span<const BlockRef> blocks) {
  if (store_ == nullptr) return;
  absl::MutexLock lock(&mutex_);
  for (const BlockRef& block : blocks) {
    if (store_->Contains(block->key) || writing_.size() >= kMaxQueuedWrites ||
        !writing_.insert(block->key).second) {
      continue;
    }
    ++moving_;
    ++counters_.moved;
    writer_->Run([this, held = block]() mutable {
      bool stopping = false;
      {
        absl::MutexLock task_lock(&mutex_);
        stopping = stopping_;
      }
      if (!stopping) Write(*held);
      const BlockKey key = held->key;
      held.reset();  // its memory is free before anybody is told
      absl::MutexLock task_lock(&mutex_);
      writing_.erase(key);
      --moving_;
    });
  }
}

bool Cache::moving() const {
  absl::MutexLock lock(&mutex_);
  return moving_ > 0;
}

Cache::Found Cache::Find(const BlockKey& root, std::span<const int32_t> tokens, bool again) {
  Found found;
  std::vector<BlockKey> keys;
  BlockKey key = root;
  for (size_t first = 0; first + kBlockTokens <= tokens.size(); first += kBlockTokens) {
    key = ChildKey(key, tokens.subspan(first, kBlockTokens));
    keys.push_back(key);
  }
  const int64_t now_us = clock_->NowUs();
  absl::MutexLock lock(&mutex_);
  if (!again) {
    for (const BlockKey& wanted : keys) sketch_.Add(wanted);
  }
  size_t at = 0;
  for (; at < keys.size(); ++at) {
    auto it = entries_.find(keys[at]);
    if (it == entries_.end()) break;
    found.device.push_back(it->second.block);
  }
  // Parents are touched after their children, so that children are older and go first.
  for (size_t i = at; i-- > 0;) {
    Entry& entry = entries_[keys[i]];
    TouchLocked(entry, now_us);
  }
  for (size_t i = 0; i < at; ++i) ConsiderWritingLocked(keys[i]);
  for (; host_ != nullptr && at < keys.size() && host_->Contains(keys[at]); ++at) {
    found.host.push_back(keys[at]);
  }
  for (; store_ != nullptr && at < keys.size() && store_->Contains(keys[at]); ++at) {
    found.stored.push_back(keys[at]);
  }
  if (!again) counters_.device_hits += found.device.size();
  if (remote_ != nullptr && remote_->usable()) {
    const size_t end = std::min(keys.size(), at + kMaxBeyond);
    found.beyond.assign(keys.begin() + static_cast<ptrdiff_t>(at),
                        keys.begin() + static_cast<ptrdiff_t>(end));
  }
  if (!again) counters_.misses += keys.size() - at;
  return found;
}

LoadChoice Cache::WeighAt(double rate, uint64_t bytes, double compute_s) const {
  if (rate <= 0 || compute_s <= 0) return {true, "loaded: no rates measured yet"};
  const double load_s = static_cast<double>(loading_bytes_ + bytes) / rate;
  const bool load = load_s < compute_s;
  return {load, fmt::format("{}: loading takes {:.1f} ms, computing {:.1f} ms",
                            load ? "loaded" : "recomputed", load_s * 1e3, compute_s * 1e3)};
}

LoadChoice Cache::Weigh(size_t blocks, uint64_t block_bytes, double compute_s) const {
  const tier::TierManager::DiskLoad disk = manager_->disk_load();
  absl::MutexLock lock(&mutex_);
  const double rate =
      counters_.disk_bytes_per_s > 0 ? counters_.disk_bytes_per_s : disk.bytes_per_s;
  // What waits for the disk besides other KV, which is counted already.
  const uint64_t queued = disk.queued_bytes - std::min(disk.queued_bytes, loading_bytes_);
  return WeighAt(rate, queued + blocks * block_bytes, compute_s * static_cast<double>(blocks));
}

LoadChoice Cache::WeighHost(size_t blocks, uint64_t block_bytes, double compute_s) const {
  absl::MutexLock lock(&mutex_);
  LoadChoice choice = WeighAt(counters_.host_bytes_per_s, blocks * block_bytes,
                              compute_s * static_cast<double>(blocks));
  choice.why = "host memory " + choice.why;
  return choice;
}

double Cache::disk_rate() const {
  absl::MutexLock lock(&mutex_);
  return counters_.disk_bytes_per_s;
}

void Cache::LoadStored(RestoreAsk ask, LoadBegun begun, LoadDone done) {
  const int64_t start_us = clock_->NowUs();
  const uint64_t bytes = ask.keys.size() * ask.block_bytes;
  {
    absl::MutexLock lock(&mutex_);
    ++loads_;
    loading_bytes_ += bytes;
  }
  Restore::Parts parts;
  parts.manager = manager_;
  parts.store = store_;
  parts.workers = loaders_.get();
  parts.publish = [this](const BlockKey& key, tier::DeviceBuffer* buffer) {
    return PublishIfNew(key, buffer);
  };
  // Shared with the reads, whose callbacks outlive this call.
  auto restore = std::make_shared<Restore>(std::move(parts), std::move(ask),
                                           [this, start_us, bytes, done](Restore& ended) {
                                             RestoreEnded(ended, start_us, done);
                                             absl::MutexLock lock(&mutex_);
                                             restores_.erase(&ended);
                                             LoadOverLocked(bytes);
                                           });
  loaders_->Run([this, restore, bytes, begun = std::move(begun), done] {
    bool stopping = false;
    {
      absl::MutexLock lock(&mutex_);
      stopping = stopping_;
      if (!stopping) restores_.insert(restore.get());
    }
    if (!stopping && restore->Begin() > 0) {
      begun(restore);
      return;
    }
    done({});
    absl::MutexLock lock(&mutex_);
    if (restore->file_gone()) ++counters_.lost;
    restores_.erase(restore.get());
    LoadOverLocked(bytes);
  });
}

void Cache::RestoreEnded(Restore& restore, int64_t start_us, const LoadDone& done) {
  Loaded loaded;
  loaded.blocks = restore.blocks();
  const size_t good = loaded.blocks.size();
  const int64_t took_us = std::max<int64_t>(clock_->NowUs() - start_us, 1);
  if (good > 0) {
    const auto bytes = static_cast<double>(good * loaded.blocks[0]->buffer.bytes());
    const double now = bytes * 1e6 / static_cast<double>(took_us);
    loaded.why = fmt::format("{} tokens came in {:.1f} ms", good * kBlockTokens,
                             static_cast<double>(took_us) * 1e-3);
    absl::MutexLock lock(&mutex_);
    counters_.disk_hits += good;
    double& rate = counters_.disk_bytes_per_s;
    if (good == restore.size()) {
      rate = rate == 0 ? now : rate * (1 - kRateWeight) + now * kRateWeight;
    }
  }
  if (good < restore.size() || restore.file_gone()) {
    absl::MutexLock lock(&mutex_);
    ++counters_.lost;
  }
  done(std::move(loaded));
}

void Cache::LoadOverLocked(uint64_t bytes) {
  loading_bytes_ -= bytes;
  --loads_;
}

void Cache::LoadRemote(RestoreAsk ask, double compute_s, LoadDone done) {
  auto batch = std::make_shared<Batch>();
  batch->ask = std::move(ask);
  batch->done = std::move(done);
  {
    absl::MutexLock lock(&mutex_);
    ++loads_;
  }
  loaders_->Run([this, compute_s, batch = std::move(batch)]() mutable {
    std::vector<BlockKey>& keys = batch->ask.keys;
    const size_t present = remote_->CountPresent(keys);
    keys.resize(present);
    if (present > 0) {
      absl::MutexLock lock(&mutex_);
      const LoadChoice choice =
          WeighAt(counters_.remote_bytes_per_s, present * batch->ask.block_bytes,
                  compute_s * static_cast<double>(present));
      batch->why = "remote " + choice.why;
      if (!choice.load) keys.clear();
    }
    StartBatch(std::move(batch));
  });
}

void Cache::StartBatch(std::shared_ptr<Batch> batch) {
  const size_t count = batch->ask.keys.size();
  batch->blocks.resize(count);
  batch->left = count;
  batch->start_us = clock_->NowUs();
  {
    absl::MutexLock lock(&mutex_);
    loading_bytes_ += count * batch->ask.block_bytes;
  }
  if (count == 0) {
    FinishBatch(*batch);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    loaders_->Run([this, batch, i] {
      // After a failure nothing behind it is of use; what was begun before it still counts.
      if (!batch->failed) LoadInto(*batch, i);
      if (batch->blocks[i] == nullptr) batch->failed = true;
      if (batch->left.fetch_sub(1) == 1) FinishBatch(*batch);
    });
  }
}

void Cache::LoadInto(Batch& batch, size_t index) {
  const BlockKey& key = batch.ask.keys[index];
  absl::StatusOr<tier::DeviceBuffer> buffer =
      manager_->Allocate(batch.ask.owner, batch.ask.block_bytes);
  if (!buffer.ok()) return;
  std::span<std::byte> out(buffer->data(), batch.ask.block_bytes);
  os::Mapping copy;
  if (!manager_->unified()) {
    absl::StatusOr<os::Mapping> memory = os::Mapping::Anonymous(out.size());
    if (!memory.ok()) return;
    copy = *std::move(memory);
    out = copy.span().first(out.size());
  }
  absl::Status status = remote_->Read(key, out);
  if (status.ok() && copy) status = manager_->CopyToDevice(out, buffer->data());
  {
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) {
      ++counters_.lost;
      return;
    }
    ++counters_.remote_hits;
  }
  batch.blocks[index] = Publish(key, *std::move(buffer));
}

void Cache::FinishBatch(Batch& batch) {
  size_t good = 0;
  while (good < batch.blocks.size() && batch.blocks[good] != nullptr) ++good;
  const uint64_t asked = batch.blocks.size() * batch.ask.block_bytes;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t took_us = clock_->NowUs() - batch.start_us;
    if (good > 0 && good == batch.blocks.size() && took_us > 0) {
      double& rate = counters_.remote_bytes_per_s;
      const double now = static_cast<double>(asked) * 1e6 / static_cast<double>(took_us);
      rate = rate == 0 ? now : rate * (1 - kRateWeight) + now * kRateWeight;
    }
  }
  Loaded loaded;
  loaded.tier = "remote";
  batch.blocks.resize(good);
  loaded.blocks = std::move(batch.blocks);
  loaded.why = std::move(batch.why);
  batch.done(std::move(loaded));
  absl::MutexLock lock(&mutex_);
  LoadOverLocked(asked);
}

void Cache::LoadHost(RestoreAsk ask, LoadDone done) {
  const uint64_t bytes = ask.keys.size() * ask.block_bytes;
  {
    absl::MutexLock lock(&mutex_);
    ++loads_;
    loading_bytes_ += bytes;
  }
  loaders_->Run([this, bytes, ask = std::move(ask), done = std::move(done)] {
    done(CopyBack(ask));
    absl::MutexLock lock(&mutex_);
    LoadOverLocked(bytes);
  });
}

Cache::Loaded Cache::CopyBack(const RestoreAsk& ask) {
  Loaded loaded;
  loaded.tier = "host";
  const int64_t start_us = clock_->NowUs();
  for (const BlockKey& key : ask.keys) {
    absl::StatusOr<tier::DeviceBuffer> buffer = manager_->Allocate(ask.owner, ask.block_bytes);
    if (!buffer.ok() || !host_->Read(key, buffer->data(), ask.block_bytes).ok()) break;
    loaded.blocks.push_back(Publish(key, *std::move(buffer)));
  }
  const size_t good = loaded.blocks.size();
  const int64_t took_us = std::max<int64_t>(clock_->NowUs() - start_us, 1);
  if (good == 0) return loaded;
  loaded.why = fmt::format("{} tokens came from host memory in {:.1f} ms", good * kBlockTokens,
                           static_cast<double>(took_us) * 1e-3);
  const double now =
      static_cast<double>(good * ask.block_bytes) * 1e6 / static_cast<double>(took_us);
  absl::MutexLock lock(&mutex_);
  counters_.host_hits += good;
  double& rate = counters_.host_bytes_per_s;
  rate = rate == 0 ? now : rate * (1 - kRateWeight) + now * kRateWeight;
  return loaded;
}

BlockRef Cache::Publish(const BlockKey& key, tier::DeviceBuffer buffer) {
  return PublishIfNew(key, &buffer);
}

BlockRef Cache::PublishIfNew(const BlockKey& key, tier::DeviceBuffer* buffer) {
  const int64_t now_us = clock_->NowUs();
  absl::MutexLock lock(&mutex_);
  auto it = entries_.find(key);
  if (it != entries_.end()) {
    TouchLocked(it->second, now_us);
    return it->second.block;
  }
  auto block = std::make_shared<Block>();
  block->key = key;
  block->buffer = std::move(*buffer);
  order_.push_back(key);
  Entry entry;
  entry.block = block;
  entry.last_used_us = now_us;
  entry.order = std::prev(order_.end());
  entries_.emplace(key, std::move(entry));
  // The second use may find the block evicted, and computes it anew.
  ConsiderWritingLocked(key);
  return block;
}

void Cache::Touch(std::span<const BlockRef> blocks) {
  const int64_t now_us = clock_->NowUs();
  absl::MutexLock lock(&mutex_);
  // Parents after their children, so that children are older and go first.
  for (size_t i = blocks.size(); i-- > 0;) {
    auto it = entries_.find(blocks[i]->key);
    if (it != entries_.end() && it->second.block == blocks[i]) TouchLocked(it->second, now_us);
  }
}

uint64_t Cache::Reclaim(uint64_t bytes, int64_t used_before_us) {
  return Drop(bytes, used_before_us, nullptr, /*keep_on_host=*/true);
}

uint64_t Cache::ReclaimOf(const std::string& tenant, uint64_t bytes) {
  return Drop(bytes, std::numeric_limits<int64_t>::max(), &tenant, /*keep_on_host=*/true);
}

uint64_t Cache::Drop(uint64_t bytes, int64_t used_before_us, const std::string* tenant,
                     bool keep_on_host) {
  std::vector<std::shared_ptr<Block>> dropped;  // given back after the lock
  uint64_t freed = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = order_.begin(); it != order_.end() && freed < bytes;) {
      auto entry = entries_.find(*it);
      if (entry->second.last_used_us >= used_before_us) break;
      const Block& block = *entry->second.block;
      const bool foreign = tenant != nullptr && block.buffer.owner().tenant != *tenant;
      if (entry->second.block.use_count() > 1 || foreign) {
        ++it;
        continue;
      }
      freed += block.buffer.bytes();
      dropped.push_back(std::move(entry->second.block));
      entries_.erase(entry);
      it = order_.erase(it);
      ++counters_.evictions;
    }
  }
  if (host_ == nullptr || !keep_on_host) return freed;
  // Children went before their parents, and are the first to go there too. What finds no room there
  // is on the disk if it was used often enough, or else computed again.
  for (std::shared_ptr<Block>& block : dropped) {
    host_->Keep(*block, block->buffer.owner()).IgnoreError();
    block.reset();
  }
  return freed;
}

int64_t Cache::OldestIdleUs() const {
  absl::MutexLock lock(&mutex_);
  for (const BlockKey& key : order_) {
    const Entry& entry = entries_.find(key)->second;
    if (entry.block.use_count() == 1) return entry.last_used_us;
  }
  return std::numeric_limits<int64_t>::max();
}

void Cache::Clear() {
  Drop(std::numeric_limits<uint64_t>::max(), std::numeric_limits<int64_t>::max(), nullptr,
       /*keep_on_host=*/false);
}

void Cache::Flush() {
  absl::MutexLock lock(&mutex_);
  auto idle = [this] {
    mutex_.AssertHeld();
    return writing_.empty();
  };
  mutex_.Await(absl::Condition(&idle));
}

CacheState Cache::State() const {
  absl::MutexLock lock(&mutex_);
  CacheState state = counters_;
  state.blocks = entries_.size();
  for (const auto& [key, entry] : entries_) {
    state.bytes += entry.block->buffer.bytes();
    if (entry.block.use_count() == 1) state.idle_bytes += entry.block->buffer.bytes();
  }
  return state;
}

absl::Status Cache::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  if (entries_.size() != order_.size()) {
    return absl::InternalError(
        fmt::format("{} cached blocks, but {} in order", entries_.size(), order_.size()));
  }
  for (const auto& [key, entry] : entries_) {
    if (!(entry.block->key == key) || !entry.block->buffer || *entry.order != key) {
      return absl::InternalError("a cached block stands under a foreign key or has no memory");
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::kv
