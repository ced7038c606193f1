#include "kv/cache.h"

#include <atomic>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"

namespace terrace::kv {
namespace {

constexpr uint32_t kUsesToWrite = 2;
// A block that waits for the writer keeps its memory; more than this many do not wait.
constexpr size_t kMaxQueuedWrites = 256;
// Reads in flight: what it takes to keep an NVMe disk busy with blocks of some hundred KiB.
constexpr int kLoaders = 4;

}  // namespace

Cache::Cache(tier::TierManager* manager, storage::BlockStore* store, const Clock* clock)
    : manager_(manager), store_(store), clock_(clock) {
  if (store_ == nullptr) return;
  writer_ = std::make_unique<os::WorkerPool>("kv-writer", 1);
  loaders_ = std::make_unique<os::WorkerPool>("kv-loader", kLoaders);
}

Cache::~Cache() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

void Cache::TouchLocked(Entry& entry, int64_t now_us) {
  entry.last_used_us = now_us;
  order_.splice(order_.end(), order_, entry.order);
}

void Cache::ConsiderWritingLocked(const BlockKey& key) {
  if (store_ == nullptr || sketch_.Estimate(key) < kUsesToWrite || writing_.contains(key) ||
      writing_.size() >= kMaxQueuedWrites || store_->Contains(key)) {
    return;
  }
  writing_.insert(key);
  writer_->Run([this, block = entries_[key].block] { Write(block); });
}

void Cache::Write(const std::shared_ptr<Block>& block) {
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    stopping = stopping_;
  }
  // A block that cannot be written is recomputed when it is missed; the store counts and reports.
  if (!stopping) {
    store_->Write(block->key, {block->buffer.data(), block->buffer.bytes()}).IgnoreError();
  }
  absl::MutexLock lock(&mutex_);
  writing_.erase(block->key);
}

Cache::Found Cache::Find(const BlockKey& root, std::span<const int32_t> tokens) {
  Found found;
  std::vector<BlockKey> keys;
  BlockKey key = root;
  for (size_t first = 0; first + kBlockTokens <= tokens.size(); first += kBlockTokens) {
    key = ChildKey(key, tokens.subspan(first, kBlockTokens));
    keys.push_back(key);
  }
  const int64_t now_us = clock_->NowUs();
  absl::MutexLock lock(&mutex_);
  for (const BlockKey& wanted : keys) sketch_.Add(wanted);
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
  for (; store_ != nullptr && at < keys.size() && store_->Contains(keys[at]); ++at) {
    found.stored.push_back(keys[at]);
  }
  counters_.device_hits += found.device.size();
  counters_.misses += keys.size() - at;
  return found;
}

BlockRef Cache::LoadOne(const BlockKey& key, const tier::Owner& owner, uint64_t block_bytes) {
  absl::StatusOr<tier::DeviceBuffer> buffer = manager_->Allocate(owner, block_bytes);
  if (!buffer.ok()) return nullptr;
  if (!store_->Read(key, {buffer->data(), block_bytes}).ok()) return nullptr;
  {
    absl::MutexLock lock(&mutex_);
    ++counters_.disk_hits;
  }
  return Publish(key, *std::move(buffer));
}

void Cache::Load(std::vector<BlockKey> keys, const tier::Owner& owner, uint64_t block_bytes,
                 LoadDone done) {
  // What the workers of one load share; the last of them to finish reports.
  struct Batch {
    std::vector<BlockKey> keys;
    std::vector<BlockRef> blocks;
    std::atomic<size_t> left;
    std::atomic<bool> failed{false};
    LoadDone done;
  };
  auto batch = std::make_shared<Batch>();
  batch->keys = std::move(keys);
  batch->blocks.resize(batch->keys.size());
  batch->left = batch->keys.size();
  batch->done = std::move(done);
  if (batch->keys.empty() || loaders_ == nullptr) {
    batch->done({});
    return;
  }
  for (size_t i = 0; i < batch->keys.size(); ++i) {
    loaders_->Run([this, batch, i, owner, block_bytes] {
      // After a failure nothing behind it is of use; what was begun before it still counts.
      if (!batch->failed) batch->blocks[i] = LoadOne(batch->keys[i], owner, block_bytes);
      if (batch->blocks[i] == nullptr) batch->failed = true;
      if (batch->left.fetch_sub(1) != 1) return;
      size_t good = 0;
      while (good < batch->blocks.size() && batch->blocks[good] != nullptr) ++good;
      batch->blocks.resize(good);
      batch->done(std::move(batch->blocks));
    });
  }
}

BlockRef Cache::Publish(const BlockKey& key, tier::DeviceBuffer buffer) {
  const int64_t now_us = clock_->NowUs();
  absl::MutexLock lock(&mutex_);
  auto it = entries_.find(key);
  if (it != entries_.end()) {
    TouchLocked(it->second, now_us);
    return it->second.block;
  }
  auto block = std::make_shared<Block>();
  block->key = key;
  block->buffer = std::move(buffer);
  order_.push_back(key);
  Entry entry;
  entry.block = block;
  entry.last_used_us = now_us;
  entry.order = std::prev(order_.end());
  entries_.emplace(key, std::move(entry));
  return block;
}

uint64_t Cache::Reclaim(uint64_t bytes, int64_t used_before_us) {
  std::vector<std::shared_ptr<Block>> dropped;  // given back after the lock
  uint64_t freed = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = order_.begin(); it != order_.end() && freed < bytes;) {
      auto entry = entries_.find(*it);
      if (entry->second.last_used_us >= used_before_us) break;
      if (entry->second.block.use_count() > 1) {
        ++it;
        continue;
      }
      freed += entry->second.block->buffer.bytes();
      dropped.push_back(std::move(entry->second.block));
      entries_.erase(entry);
      it = order_.erase(it);
      ++counters_.evictions;
    }
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
  Reclaim(std::numeric_limits<uint64_t>::max(), std::numeric_limits<int64_t>::max());
}

void Cache::Flush() {
  absl::MutexLock lock(&mutex_);
  auto idle = [this] {
    mutex_.AssertHeld();
    return stopping_ || writing_.empty();
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
    return absl::InternalError(fmt::format("{} cached blocks, but {} in order", entries_.size(),
                                           order_.size()));
  }
  for (const auto& [key, entry] : entries_) {
    if (!(entry.block->key == key) || !entry.block->buffer || *entry.order != key) {
      return absl::InternalError("a cached block stands under a foreign key or has no memory");
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::kv
