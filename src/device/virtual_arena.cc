#include "device/virtual_arena.h"

#include <iterator>
#include <utility>

#include "base/status.h"

namespace terrace::device {
namespace {

// Addresses are plenty: so many times the memory that a new range finds room behind all others
// however those lie.
constexpr uint64_t kReach = 8;

}  // namespace

VirtualArena::VirtualArena(const DriverApi* api, uint64_t bytes, uint64_t page_bytes)
    : api_(api), page_bytes_(page_bytes), reach_(kReach * bytes), untaken_(bytes / page_bytes) {
  pages_.resize(reach_ / page_bytes_);
  holes_.Add({0, reach_});
}

absl::StatusOr<std::unique_ptr<VirtualArena>> VirtualArena::Create(const DriverApi* api,
                                                                   uint64_t bytes,
                                                                   uint64_t page_bytes) {
  std::unique_ptr<VirtualArena> arena(new VirtualArena(api, bytes, page_bytes));
  ASSIGN_OR_RETURN(arena->base_, api->ReserveAddresses(arena->reach_));
  return arena;
}

VirtualArena::~VirtualArena() {
  for (uint64_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].mapped) UnmapPage(i);
  }
  for (const uint64_t handle : spare_) api_->ReleasePage(handle);
  if (base_ != 0) api_->FreeAddresses(base_, reach_);
}

void VirtualArena::UnmapPage(uint64_t page) {
  api_->Unmap(AddressOf(page), page_bytes_);
  spare_.push_back(pages_[page].handle);
  pages_[page].mapped = false;
  idle_.erase(page);
}

VirtualArena::Place VirtualArena::PlaceAt(uint64_t offset, uint64_t bytes) const {
  Place place{.offset = offset};
  const uint64_t last = (offset + bytes - 1) / page_bytes_;
  for (uint64_t i = offset / page_bytes_; i <= last; ++i) {
    if (!pages_[i].mapped) ++place.unmapped;
    if (pages_[i].users == 0) ++place.unused;
  }
  return place;
}

// The hole that costs the fewest calls, if there are pages for it, else the one that needs the
// fewest pages.
std::optional<VirtualArena::Place> VirtualArena::FindPlace(uint64_t bytes) const {
  std::optional<Place> best;
  for (const auto& [begin, end] : holes_.ranges()) {
    if (end - begin < bytes) continue;
    const Place place = PlaceAt(begin, bytes);
    if (place.unused > available()) continue;
    if (!best.has_value() || place.unmapped < best->unmapped) best = place;
    if (best->unmapped == 0) break;
  }
  return best;
}

absl::StatusOr<std::optional<uint64_t>> VirtualArena::Allocate(uint64_t bytes) {
  if (bytes > reach_) return std::optional<uint64_t>();
  const std::optional<Place> place = FindPlace(bytes);
  if (!place.has_value()) return std::optional<uint64_t>();
  const uint64_t first = place->offset / page_bytes_;
  const uint64_t last = (place->offset + bytes - 1) / page_bytes_;
  // What lies idle here stays; what lies idle elsewhere comes here as far as it must.
  for (uint64_t i = first; i <= last; ++i) idle_.erase(i);
  while (spare_.size() + untaken_ < place->unmapped) UnmapPage(*std::prev(idle_.end()));
  if (absl::Status mapped = MapRange(first, last); !mapped.ok()) {
    for (uint64_t i = first; i <= last; ++i) {
      if (pages_[i].mapped && pages_[i].users == 0) idle_.insert(i);
    }
    return mapped;
  }
  for (uint64_t i = first; i <= last; ++i) ++pages_[i].users;
  holes_.Remove({place->offset, place->offset + bytes});
  used_[place->offset] = bytes;
  allocated_ += bytes;
  return std::optional<uint64_t>(base_ + place->offset);
}

absl::StatusOr<uint64_t> VirtualArena::TakePage() {
  if (spare_.empty() && untaken_ > 0) {
    absl::StatusOr<uint64_t> made = api_->CreatePage(page_bytes_);
    if (made.ok()) {
      --untaken_;
      return made;
    }
    // Somebody else has taken what was free at the start. What lies idle is still ours.
    if (idle_.empty()) return made;
    UnmapPage(*std::prev(idle_.end()));
  }
  const uint64_t handle = spare_.back();
  spare_.pop_back();
  return handle;
}

// Maps what is not mapped of pages [first, last], and allows access run by run.
absl::Status VirtualArena::MapRange(uint64_t first, uint64_t last) {
  std::vector<uint64_t> mapped;
  absl::Status status;
  for (uint64_t i = first; i <= last && status.ok();) {
    if (pages_[i].mapped) {
      ++i;
      continue;
    }
    const uint64_t begin = i;
    for (; i <= last && !pages_[i].mapped && status.ok(); ++i) {
      const absl::StatusOr<uint64_t> handle = TakePage();
      status = handle.ok() ? api_->MapPage(AddressOf(i), page_bytes_, *handle) : handle.status();
      if (handle.ok() && !status.ok()) spare_.push_back(*handle);
      if (!status.ok()) break;
      pages_[i].handle = *handle;
      pages_[i].mapped = true;
      mapped.push_back(i);
      ++mappings_;
    }
    if (status.ok()) status = api_->AllowAccess(AddressOf(begin), (i - begin) * page_bytes_);
  }
  if (status.ok()) return status;
  for (const uint64_t page : mapped) UnmapPage(page);
  return status;
}

bool VirtualArena::Free(uint64_t address) {
  const auto found = used_.find(address - base_);
  if (found == used_.end()) return false;
  const auto [offset, bytes] = *found;
  used_.erase(found);
  allocated_ -= bytes;
  holes_.Add({offset, offset + bytes});
  for (uint64_t i = offset / page_bytes_; i <= (offset + bytes - 1) / page_bytes_; ++i) {
    if (--pages_[i].users == 0) idle_.insert(i);
  }
  return true;
}

bool VirtualArena::Holds(uint64_t address, uint64_t bytes) const {
  if (address < base_) return false;
  const uint64_t offset = address - base_;
  auto after = used_.upper_bound(offset);
  if (after == used_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return offset - begin <= size && bytes <= size - (offset - begin);
}

}  // namespace terrace::device
