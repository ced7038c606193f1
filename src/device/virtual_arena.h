// Device memory as pages that are mapped at addresses where they are wanted: an allocation needs
// enough free pages, not free pages beside each other, so that what comes and goes in different
// sizes leaves no holes that are too small. Pages are taken from the driver when they are first
// needed and used again and again; those of freed ranges stay mapped until they are needed
// elsewhere, so that what comes back to the same addresses costs no call. Neighbours share the page
// at their border. Not thread-safe.
#ifndef TERRACE_DEVICE_VIRTUAL_ARENA_H_
#define TERRACE_DEVICE_VIRTUAL_ARENA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/driver_api.h"
#include "device/range_set.h"

namespace terrace::device {

class VirtualArena {
 public:
  // Of `bytes` (a multiple of `page_bytes`). Takes no page yet, so that the start costs one call
  // however much memory that is. The calling thread has entered
  // `api`, here and below; `api` must outlive the arena.
  static absl::StatusOr<std::unique_ptr<VirtualArena>> Create(const DriverApi* api, uint64_t bytes,
                                                              uint64_t page_bytes);
  ~VirtualArena();
  VirtualArena(const VirtualArena&) = delete;
  VirtualArena& operator=(const VirtualArena&) = delete;

  // The address of `bytes` (a multiple of the caller's alignment). Nothing if there are not enough
  // free pages; the driver's error if it cannot make or map them.
  absl::StatusOr<std::optional<uint64_t>> Allocate(uint64_t bytes);
  // False if nothing is allocated at `address`.
  bool Free(uint64_t address);
  // True if [address, address + bytes) lies in one allocation.
  bool Holds(uint64_t address, uint64_t bytes) const;

  uint64_t allocated() const { return allocated_; }
  // Of the largest allocation that would find pages wherever it lies.
  uint64_t free_bytes() const { return available() * page_bytes_; }
  uint64_t mapped_pages() const { return mappings_; }  // since the start: calls of the driver

 private:
  struct Page {
    uint32_t users = 0;  // allocations that reach into it
    bool mapped = false;
    uint64_t handle = 0;
  };
  struct Place {
    uint64_t offset = 0;
    uint64_t unmapped = 0;  // pages that have to be mapped
    uint64_t unused = 0;    // pages that nobody else uses
  };

  VirtualArena(const DriverApi* api, uint64_t bytes, uint64_t page_bytes);
  std::optional<Place> FindPlace(uint64_t bytes) const;
  Place PlaceAt(uint64_t offset, uint64_t bytes) const;
  uint64_t available() const { return spare_.size() + idle_.size() + untaken_; }
  // A page that is mapped nowhere.
  absl::StatusOr<uint64_t> TakePage();
  absl::Status MapRange(uint64_t first, uint64_t last);
  void UnmapPage(uint64_t page);
  uint64_t AddressOf(uint64_t page) const { return base_ + page * page_bytes_; }

  const DriverApi* const api_;
  const uint64_t page_bytes_;
  const uint64_t reach_;  // bytes of addresses
  uint64_t base_ = 0;
  std::vector<Page> pages_;            // by address
  uint64_t untaken_;                   // pages that the driver still has
  std::vector<uint64_t> spare_;        // handles that are mapped nowhere
  std::set<uint64_t> idle_;            // pages that are mapped and have no users
  RangeSet holes_;                     // offsets that are not allocated
  std::map<uint64_t, uint64_t> used_;  // offset to bytes
  uint64_t allocated_ = 0;
  uint64_t mappings_ = 0;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_VIRTUAL_ARENA_H_
