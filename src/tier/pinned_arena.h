// Host memory that a device copies from and to at its link's full speed: taken and pinned in large
// pieces, as pinning costs a call of the driver, and given out in small ones. Thread-safe.
#ifndef TERRACE_TIER_PINNED_ARENA_H_
#define TERRACE_TIER_PINNED_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "device/device.h"
#include "device/pinned_range.h"
#include "device/range_allocator.h"
#include "os/mapping.h"

namespace terrace::tier {

class PinnedArena {
  struct Chunk;

 public:
  // Memory of the arena's, given back when this goes. Move-only; must not outlive the arena.
  class Piece {
   public:
    Piece() = default;
    Piece(Piece&& other) noexcept { *this = std::move(other); }
    Piece& operator=(Piece&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(chunk_, other.chunk_);
      std::swap(data_, other.data_);
      return *this;
    }
    ~Piece() {
      if (arena_ != nullptr) arena_->GiveBack(chunk_, data_);
    }
    std::byte* data() const { return data_; }

   private:
    friend class PinnedArena;
    PinnedArena* arena_ = nullptr;
    Chunk* chunk_ = nullptr;
    std::byte* data_ = nullptr;
  };

  // Takes `chunk_bytes` at once, or more for a piece that is larger. `device` must outlive this.
  PinnedArena(device::Device* device, uint64_t chunk_bytes);
  ~PinnedArena();

  // At an address that is a multiple of 4 KiB. The system's error if there is no memory.
  absl::StatusOr<Piece> Allocate(uint64_t bytes);
  // Held of the system, given out or not.
  uint64_t held_bytes() const;
  // Whether all that is held is pinned, which not every device does.
  bool pinned() const;

 private:
  struct Chunk {
    explicit Chunk(uint64_t size) : bytes(size), ranges(size) {}
    const uint64_t bytes;
    os::Mapping memory;
    device::PinnedRange pin;  // goes before the memory
    device::RangeAllocator ranges;
  };
  void GiveBack(Chunk* chunk, std::byte* data);

  device::Device* const device_;
  const uint64_t chunk_bytes_;
  mutable absl::Mutex mutex_;
  std::list<Chunk> chunks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_PINNED_ARENA_H_
