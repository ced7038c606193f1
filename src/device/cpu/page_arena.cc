#include "device/cpu/page_arena.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::device {
namespace {

// Behind what is taken, where AddressSanitizer tells of reads and writes.
constexpr uint64_t kGuardBytes = 64 * kKiB;

// The whole huge pages in `range`.
Range WholeHugePages(Range range) {
  const Range whole{AlignUp(range.begin, os::kHugePageBytes),
                    range.end & ~(os::kHugePageBytes - 1)};
  return whole.begin < whole.end ? whole : Range{};
}

}  // namespace

absl::StatusOr<PageArena> PageArena::Reserve(uint64_t bytes, bool huge_pages, size_t most_cuts) {
  os::MappingOptions options;
  options.huge_pages = huge_pages;
  ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Anonymous(bytes, options));
  PageArena arena(std::move(mapping));
  arena.may_move_ = huge_pages;
  arena.most_cuts_ = most_cuts;
  return arena;
}

PageArena::PageArena(os::Mapping mapping) : mapping_(std::move(mapping)) {
  free_.Add({0, mapping_.bytes()});
}

Range PageArena::RangeOf(const std::byte* data, uint64_t bytes) const {
  const auto begin = static_cast<uint64_t>(data - mapping_.data());
  return {begin, begin + bytes};
}

Range PageArena::Choose(uint64_t bytes, Contents contents) const {
  auto kept_inside = [&](Range range) {
    uint64_t sum = 0;
    for (const Range& part : kept_.Inside(range)) sum += part.size();
    return sum;
  };
  // The range that has the most pages already where those are of use; then the tightest; then the
  // one away from what was given back last: from there the hole grows, since neighbours were taken
  // one after the other and go one after the other.
  std::tuple<uint64_t, uint64_t, uint64_t> best_cost;
  Range best;
  for (const auto& [begin, end] : free_.ranges()) {
    if (end - begin < bytes) continue;
    for (const Range range : {Range{begin, begin + bytes}, Range{end - bytes, end}}) {
      if (end == mapping_.bytes() && range.begin != begin) continue;  // addresses not used so far
      const uint64_t missing =
          contents == Contents::kAnything ? bytes - kept_inside(range) : uint64_t{0};
      const uint64_t distance =
          range.begin > last_kept_ ? range.begin - last_kept_ : last_kept_ - range.begin;
      const std::tuple cost{missing, end - begin, std::numeric_limits<uint64_t>::max() - distance};
      if (best.size() == 0 || cost < best_cost) {
        best_cost = cost;
        best = range;
      }
      // Nothing fits better: pieces of one size come and go.
      if (missing == 0 && end - begin == bytes) return best;
    }
  }
  return best;
}

Range PageArena::ChooseHinted(uint64_t bytes, const PlaceHint& hint) const {
  if (hint.at != nullptr) {
    const Range range = RangeOf(hint.at, bytes);
    if (IsFree(range)) return range;
  }
  if (!hint.apart) return {};
  Range widest;
  for (const auto& [begin, end] : free_.ranges()) {
    const Range whole = WholeHugePages({begin, end});
    if (whole.size() > widest.size()) widest = whole;
  }
  return widest.size() < bytes ? Range{} : Range{widest.begin, widest.begin + bytes};
}

absl::StatusOr<std::byte*> PageArena::Take(uint64_t bytes, Contents contents,
                                           const PlaceHint& hint) {
  Range range;
  if (contents == Contents::kAnything && may_move_) range = ChooseHinted(bytes, hint);
  if (range.size() == 0) range = Choose(bytes, contents);
  if (range.size() == 0) {
    return absl::ResourceExhaustedError(fmt::format("no free range of {} among {} in {} pieces",
                                                    FormatBytes(bytes), FormatBytes(free_.size()),
                                                    free_.ranges().size()));
  }
  free_.Remove(range);
  std::byte* data = mapping_.data() + range.begin;
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  // Not all that is free: the sanitizer's own memory is an eighth of what is poisoned, and there
  // are many times more addresses here than memory. What was given back is poisoned in any case.
  for (const Range& beyond : free_.Inside({range.end, range.end + kGuardBytes})) {
    ASAN_POISON_MEMORY_REGION(mapping_.data() + beyond.begin, beyond.size());
  }
  if (contents == Contents::kZero) {
    for (const Range& dirty : kept_.Inside(range)) Clear(dirty);
  } else {
    MoveKeptTo(range);
  }
  kept_.Remove(range);
  return data;
}

void PageArena::Clear(Range range) {
  const Range whole = WholeHugePages(range);
  if (whole.size() > 0) Discard(whole);
  const uint64_t middle = whole.size() > 0 ? whole.begin : range.end;
  std::memset(mapping_.data() + range.begin, 0, middle - range.begin);
  if (whole.size() > 0) std::memset(mapping_.data() + whole.end, 0, range.end - whole.end);
}

void PageArena::MoveKeptTo(Range range) {
  if (!may_move_ || kept_.empty()) return;
  const std::vector<Range> missing = kept_.Outside(range);
  kept_.Remove(range);  // so that what is kept lies elsewhere
  for (const Range& part : missing) {
    Range to = HugePagesAround(part);
    while (to.size() > 0) {
      Range from = LastKeptHugePages();
      from.begin = std::max(from.begin, from.end - std::min(from.end, to.size()));
      if (from.size() == 0 || !Move(from, to.begin)) return;
      // What nobody took yet of the pages at the ends.
      for (const Range& rest : free_.Inside({to.begin, to.begin + from.size()})) kept_.Add(rest);
      to.begin += from.size();
    }
  }
}

Range PageArena::HugePagesAround(Range part) const {
  auto unused = [&](Range rest) {
    return rest.size() == 0 || (IsFree(rest) && kept_.Inside(rest).empty());
  };
  Range around{part.begin & ~(os::kHugePageBytes - 1), AlignUp(part.end, os::kHugePageBytes)};
  if (!unused({around.begin, part.begin})) around.begin += os::kHugePageBytes;
  if (!unused({part.end, around.end})) around.end -= os::kHugePageBytes;
  return around.begin < around.end ? around : Range{};
}

Range PageArena::LastKeptHugePages() const {
  const auto& ranges = kept_.ranges();
  for (auto last = ranges.rbegin(); last != ranges.rend(); ++last) {
    const Range whole = WholeHugePages({last->first, last->second});
    if (whole.size() > 0) return whole;
  }
  return {};
}

bool PageArena::Move(Range from, uint64_t to) {
  for (const uint64_t cut : {from.begin, from.end, to, to + from.size()}) cuts_.insert(cut);
  may_move_ = cuts_.size() <= most_cuts_ && mapping_.MovePages(from.begin, to, from.size()).ok();
  if (may_move_) kept_.Remove(from);
  return may_move_;
}

void PageArena::Free(std::byte* data, uint64_t bytes) {
  ASAN_POISON_MEMORY_REGION(data, bytes);
  const Range range = RangeOf(data, bytes);
  free_.Add(range);
  DiscardFree(range);
}

void PageArena::Keep(std::byte* data, uint64_t bytes) {
  ASAN_POISON_MEMORY_REGION(data, bytes);
  const Range range = RangeOf(data, bytes);
  free_.Add(range);
  kept_.Add(range);
  last_kept_ = range.begin;
}

void PageArena::DiscardKept(uint64_t bytes) {
  // Whole huge pages first: of one that goes in part the rest is small pages from then on, also for
  // who uses it.
  while (kept_.size() > bytes) {
    const Range whole = LastKeptHugePages();
    const uint64_t most = AlignUp(kept_.size() - bytes, os::kHugePageBytes);
    Range range{whole.end - std::min(whole.size(), most), whole.end};
    if (whole.size() == 0) {
      const auto& [begin, end] = *kept_.ranges().rbegin();
      range = {std::max(begin, end - std::min(end - begin, kept_.size() - bytes)), end};
    }
    kept_.Remove(range);
    DiscardFree(range);
  }
}

// The kernel brings huge pages in whole, so beside a range that goes may lie pages that nobody
// took.
void PageArena::DiscardFree(Range range) {
  const Range wide{range.begin & ~(os::kHugePageBytes - 1),
                   std::min(AlignUp(range.end, os::kHugePageBytes), mapping_.bytes())};
  for (const Range& hole : free_.Inside(wide)) {
    if (hole.end < range.begin || hole.begin > range.end) continue;
    for (const Range& gone : kept_.Outside(hole)) Discard(gone);
  }
}

void PageArena::Discard(Range range) {
  // Fails only for a range that is no whole number of pages.
  (void)mapping_.Discard(range.begin, range.size());
}

}  // namespace terrace::device
