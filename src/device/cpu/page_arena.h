// The memory of the cpu device: one stretch of addresses, backed by huge pages where the kernel has
// them, from which ranges are taken. Ranges of any size share huge pages, so that a read from disk
// meets large pieces of physical memory wherever it lands: with ordinary pages the same disk gives
// a third less. What was given back may keep its pages for whoever writes over them next; where
// those lie elsewhere, whole huge pages move to the new addresses (128 MiB in 0.05 ms, where the
// kernel clears as many new ones in 15 ms at best).
#ifndef TERRACE_DEVICE_CPU_PAGE_ARENA_H_
#define TERRACE_DEVICE_CPU_PAGE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/range_set.h"
#include "os/mapping.h"

namespace terrace::device {

// Not thread-safe. All sizes are multiples of a page.
class PageArena {
 public:
  enum class Contents : uint8_t { kZero, kAnything };

  // A quarter of the pieces of mappings that Linux lets a process have unless told otherwise.
  static constexpr size_t kMostCuts = 16'384;

  PageArena() = default;
  // Reserves addresses, no memory. ResourceExhausted if there are not enough. Pages that move may
  // cut the mapping in so many places; after that they stay where they are.
  static absl::StatusOr<PageArena> Reserve(uint64_t bytes, bool huge_pages,
                                           size_t most_cuts = kMostCuts);

  // ResourceExhausted if no free range is large enough.
  // The hint counts for kAnything, as long as pages can be moved.
  absl::StatusOr<std::byte*> Take(uint64_t bytes, Contents contents, const PlaceHint& hint = {});
  // The pages leave the process.
  void Free(std::byte* data, uint64_t bytes);
  // The pages stay until something is taken over them, or Discard.
  void Keep(std::byte* data, uint64_t bytes);
  // Lets kept pages go until at most `bytes` are left.
  void DiscardKept(uint64_t bytes);

  uint64_t kept_bytes() const { return kept_.size(); }

 private:
  explicit PageArena(os::Mapping mapping);
  Range RangeOf(const std::byte* data, uint64_t bytes) const;
  void DiscardFree(Range range);
  void Discard(Range range);
  // Makes kept pages zero. A huge page that goes in part would be small pages from then on.
  void Clear(Range range);
  Range Choose(uint64_t bytes, Contents contents) const;
  // Empty if nothing is free as hinted.
  Range ChooseHinted(uint64_t bytes, const PlaceHint& hint) const;
  bool IsFree(Range range) const { return free_.Outside(range).empty(); }
  // Brings kept huge pages from elsewhere to where `range`, just taken, has none.
  void MoveKeptTo(Range range);
  bool Move(Range from, uint64_t to);
  // The huge pages that hold `part` where nobody uses the rest of them, else those within it.
  Range HugePagesAround(Range part) const;
  // The last run of whole huge pages that are kept; empty if there is none.
  Range LastKeptHugePages() const;

  os::Mapping mapping_;
  RangeSet free_;  // offsets in mapping_
  RangeSet kept_;  // those of them that hold pages
  uint64_t last_kept_ = 0;
  bool may_move_ = true;
  size_t most_cuts_ = kMostCuts;
  std::set<uint64_t> cuts_;  // where pages that moved may have cut the mapping into pieces
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_CPU_PAGE_ARENA_H_
