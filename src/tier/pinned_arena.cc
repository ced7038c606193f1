#include "tier/pinned_arena.h"

#include <algorithm>
#include <optional>

#include "base/status.h"
#include "base/units.h"

namespace terrace::tier {
namespace {

constexpr uint64_t kAlignment = 4096;

}  // namespace

PinnedArena::PinnedArena(device::Device* device, uint64_t chunk_bytes)
    : device_(device), chunk_bytes_(AlignUp(std::max<uint64_t>(chunk_bytes, 1), kAlignment)) {}

PinnedArena::~PinnedArena() = default;

absl::StatusOr<PinnedArena::Piece> PinnedArena::Allocate(uint64_t bytes) {
  const uint64_t rounded = AlignUp(std::max<uint64_t>(bytes, 1), kAlignment);
  Piece piece;
  absl::MutexLock lock(&mutex_);
  for (Chunk& chunk : chunks_) {
    const std::optional<uint64_t> offset = chunk.ranges.Allocate(rounded);
    if (!offset.has_value()) continue;
    piece.arena_ = this;
    piece.chunk_ = &chunk;
    piece.data_ = chunk.memory.data() + *offset;
    return piece;
  }
  const uint64_t taken = std::max(chunk_bytes_, rounded);
  ASSIGN_OR_RETURN(os::Mapping memory, os::Mapping::Anonymous(taken));
  Chunk& chunk = chunks_.emplace_back(taken);
  chunk.memory = std::move(memory);
  chunk.pin = device::PinnedRange(device_, chunk.memory.span());
  piece.arena_ = this;
  piece.chunk_ = &chunk;
  piece.data_ = chunk.memory.data() + *chunk.ranges.Allocate(rounded);
  return piece;
}

void PinnedArena::GiveBack(Chunk* chunk, std::byte* data) {
  absl::MutexLock lock(&mutex_);
  chunk->ranges.Free(static_cast<uint64_t>(data - chunk->memory.data()));
  if (chunk->ranges.allocated() > 0) return;
  // One that is empty stays, so that what comes and goes does not pin each time.
  const bool only = std::none_of(chunks_.begin(), chunks_.end(), [&](const Chunk& other) {
    return &other != chunk && other.ranges.allocated() == 0;
  });
  if (only && chunk->bytes == chunk_bytes_) return;
  chunks_.remove_if([&](const Chunk& other) { return &other == chunk; });
}

uint64_t PinnedArena::held_bytes() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const Chunk& chunk : chunks_) bytes += chunk.bytes;
  return bytes;
}

bool PinnedArena::pinned() const {
  absl::MutexLock lock(&mutex_);
  return std::all_of(chunks_.begin(), chunks_.end(),
                     [](const Chunk& chunk) { return chunk.pin.pinned(); });
}

}  // namespace terrace::tier
