#include "device/cpu/cpu_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "device/host_stream.h"
#include "os/mapping.h"

namespace terrace::device {
namespace {

class PlainCopies final : public CopyModel {
 public:
  absl::Status Check(CopyDirection, const std::byte*, const std::byte*, uint64_t) override {
    return absl::OkStatus();
  }
  int64_t Begin(CopyDirection, uint64_t) override { return 0; }
  absl::Status Finish(CopyDirection direction, std::byte* to, const std::byte* from,
                      uint64_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);
    std::atomic<uint64_t>& counter = direction == CopyDirection::kHostToDevice ? counters.to_device
                                     : direction == CopyDirection::kDeviceToHost
                                         ? counters.to_host
                                         : counters.on_device;
    counter.fetch_add(bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  int64_t NowUs() const override { return 0; }

  CopyCounters counters;
};

uint64_t MachineMemory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<uint64_t>(pages) * os::kPageBytes : 0;
}

// Memory and the pieces it consists of for the kernel: one, unless pages were moved into it. Of
// spare memory, the pieces that still hold pages.
struct Allocation {
  os::Mapping mapping;
  std::vector<MemoryRange> pieces;

  uint64_t PieceBytes() const {
    uint64_t bytes = 0;
    for (const MemoryRange& piece : pieces) bytes += piece.bytes;
    return bytes;
  }
};

// Moves pages of spare memory into a new mapping without touching their contents: reading weights
// over them costs no clearing. Pages that are moved leave the pieces of `spares`.
class PageMover {
 public:
  PageMover(std::vector<Allocation>* spares, const os::Mapping& to) : spares_(*spares), to_(to) {}

  // Returns the pieces that the mapping then consists of.
  std::vector<MemoryRange> Move() {
    // Whole huge pages first, which stay whole; then ordinary pages for what is left.
    const bool moved = MoveUnits(os::kHugePageBytes) && MoveUnits(os::kPageBytes);
    if (!moved || filled_ < to_.bytes()) {
      pieces_.push_back({to_.data() + filled_, to_.bytes() - filled_});
    }
    return std::move(pieces_);
  }

 private:
  // Each piece is an entry of the process's map, of which the kernel allows some 65,000.
  static constexpr size_t kMostPieces = 256;

  // Moves what is aligned to `unit` and fits; false if the kernel cannot.
  bool MoveUnits(uint64_t unit) {
    for (Allocation& spare : spares_) {
      for (size_t i = 0; i < spare.pieces.size(); ++i) {
        const MemoryRange piece = spare.pieces[i];
        const auto address = reinterpret_cast<uintptr_t>(piece.data);
        const uint64_t skip = AlignUp(address, unit) - address;
        const uint64_t room = (to_.bytes() - filled_) & ~(unit - 1);
        if (room == 0 || pieces_.size() >= kMostPieces) return true;
        if (skip >= piece.bytes) continue;
        uint64_t bytes = (piece.bytes - skip) & ~(unit - 1);
        // A huge page is not broken up for a few ordinary ones.
        if (unit < os::kHugePageBytes && bytes >= os::kHugePageBytes) continue;
        bytes = std::min(bytes, room);
        if (bytes == 0) continue;
        if (!MoveRange(piece.data + skip, bytes)) return false;
        Cut(&spare.pieces, i, skip, bytes);
      }
    }
    return true;
  }

  bool MoveRange(std::byte* from, uint64_t bytes) {
    std::byte* target = to_.data() + filled_;
    // The source stays mapped, empty, so that no other thread's mapping can take its place before
    // it is unmapped as a whole.
    void* moved =
        ::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, target);
    if (moved == MAP_FAILED) {
      // Kernels before 5.7, or too many pieces. The target may be gone by now: mapped again, it is
      // fresh memory as if nothing had been tried; if it is still there, this changes nothing.
      ::mmap(target, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
      return false;
    }
    pieces_.push_back({target, bytes});
    filled_ += bytes;
    return true;
  }

  // Takes [skip, skip + bytes) out of pieces[i]; what follows it becomes a piece of its own.
  static void Cut(std::vector<MemoryRange>* pieces, size_t i, uint64_t skip, uint64_t bytes) {
    const MemoryRange piece = (*pieces)[i];
    const MemoryRange rest{piece.data + skip + bytes, piece.bytes - skip - bytes};
    (*pieces)[i].bytes = skip;
    if (rest.bytes > 0) pieces->push_back(rest);
  }

  std::vector<Allocation>& spares_;
  const os::Mapping& to_;
  std::vector<MemoryRange> pieces_;
  uint64_t filled_ = 0;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : huge_pages_(options.huge_pages) {
    info_.name = "cpu";
    info_.kind = "cpu";
    info_.description = fmt::format("{} processors", ::sysconf(_SC_NPROCESSORS_ONLN));
    info_.unified_memory = true;
    info_.host_addressable = true;
    info_.memory_bytes = options.memory_bytes > 0 ? options.memory_bytes : MachineMemory();
    info_.alignment = os::kPageBytes;
    info_.granularity = os::kPageBytes;
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override {
    std::vector<Allocation> gone;
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<os::Mapping> mapping = MapLocked(bytes);
    if (!mapping.ok()) return mapping.status();
    Allocation fresh;
    fresh.mapping = *std::move(mapping);
    fresh.pieces = {{fresh.mapping.data(), fresh.mapping.bytes()}};
    return TakeInLocked(std::move(fresh), &gone);
  }

  void Free(std::byte* data, uint64_t) override {
    std::optional<Allocation> gone;  // unmapped after the lock is released: that may take long
    absl::MutexLock lock(&mutex_);
    gone = TakeLocked(data);
  }

  void Trim() override {
    std::vector<Allocation> gone;
    absl::MutexLock lock(&mutex_);
    gone = std::exchange(spares_, {});
    high_water_bytes_ = allocated_;
  }

  absl::StatusOr<std::byte*> Exchange(std::span<const MemoryRange> freed, uint64_t bytes) override {
    std::vector<Allocation> gone;
    absl::MutexLock lock(&mutex_);
    for (const MemoryRange& range : freed) {
      std::optional<Allocation> allocation = TakeLocked(range.data);
      if (allocation.has_value()) spares_.push_back(*std::move(allocation));
    }
    absl::StatusOr<os::Mapping> mapping = MapLocked(bytes);
    if (!mapping.ok()) return mapping.status();
    Allocation fresh;
    fresh.mapping = *std::move(mapping);
    if (huge_pages_) {
      fresh.pieces = PageMover(&spares_, fresh.mapping).Move();
    } else {
      gone = std::exchange(spares_, {});
    }
    return TakeInLocked(std::move(fresh), &gone);
  }

  MemoryInfo GetMemoryInfo() const override {
    absl::MutexLock lock(&mutex_);
    return {info_.memory_bytes, info_.memory_bytes - allocated_, allocated_};
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::unique_ptr<Stream>(std::make_unique<HostStream>(&copies_, false));
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>());
  }
  absl::StatusOr<std::unique_ptr<Kernel>> CreateKernel(const KernelSource& source) override {
    if (source.host == nullptr) {
      return absl::UnimplementedError(
          fmt::format("cpu: kernel {} has no host function", source.name));
    }
    return std::unique_ptr<Kernel>(std::make_unique<HostKernel>(source));
  }

  absl::StatusOr<Telemetry> ReadTelemetry() override {
    Telemetry telemetry;
    telemetry.copied_to_device_bytes = copies_.counters.to_device;
    telemetry.copied_to_host_bytes = copies_.counters.to_host;
    telemetry.copied_on_device_bytes = copies_.counters.on_device;
    const auto wall = std::chrono::steady_clock::now();
    const double busy = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;  // of this process
    absl::MutexLock lock(&mutex_);
    if (last_wall_.has_value()) {
      const double seconds = std::chrono::duration<double>(wall - *last_wall_).count();
      const double processors = static_cast<double>(std::max(1l, ::sysconf(_SC_NPROCESSORS_ONLN)));
      if (seconds > 0) {
        telemetry.utilisation = std::clamp((busy - last_busy_) / (seconds * processors), 0.0, 1.0);
      }
    }
    last_wall_ = wall;
    last_busy_ = busy;
    return telemetry;
  }

 private:
  absl::StatusOr<os::Mapping> MapLocked(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
    const uint64_t rounded = AlignUp(std::min(bytes, info_.memory_bytes + 1), os::kPageBytes);
    if (bytes > info_.memory_bytes || rounded > info_.memory_bytes - allocated_) {
      return absl::ResourceExhaustedError(fmt::format("cpu: {} asked for, {} of {} are allocated",
                                                      FormatBytes(bytes), FormatBytes(allocated_),
                                                      FormatBytes(info_.memory_bytes)));
    }
    os::MappingOptions options;
    options.huge_pages = huge_pages_;
    return os::Mapping::Anonymous(rounded, options);
  }

  // Counts a new allocation, and lets go of spare pages until the process holds no more than it has
  // held allocated before: spares never add to its peak. What goes as a whole is put into `gone`.
  std::byte* TakeInLocked(Allocation fresh, std::vector<Allocation>* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    allocated_ += fresh.mapping.bytes();
    std::byte* data = fresh.mapping.data();
    allocations_.emplace(data, std::move(fresh));
    high_water_bytes_ = std::max(high_water_bytes_, allocated_);
    uint64_t spare_bytes = 0;
    for (const Allocation& spare : spares_) spare_bytes += spare.PieceBytes();
    uint64_t excess = spare_bytes - std::min(spare_bytes, high_water_bytes_ - allocated_);
    for (size_t i = 0; i < spares_.size();) {
      Allocation& spare = spares_[i];
      while (excess > 0 && !spare.pieces.empty()) {
        MemoryRange& piece = spare.pieces.back();
        const uint64_t bytes = std::min(piece.bytes, excess);
        piece.bytes -= bytes;
        excess -= bytes;
        if (bytes > 0) ::madvise(piece.data + piece.bytes, bytes, MADV_DONTNEED);
        if (piece.bytes == 0) spare.pieces.pop_back();
      }
      if (spare.PieceBytes() > 0) {
        ++i;
        continue;
      }
      gone->push_back(std::move(spare));
      spares_.erase(spares_.begin() + static_cast<ptrdiff_t>(i));
    }
    return data;
  }

  std::optional<Allocation> TakeLocked(std::byte* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto found = allocations_.find(data);
    if (found == allocations_.end()) return std::nullopt;
    Allocation allocation = std::move(found->second);
    allocated_ -= allocation.mapping.bytes();
    allocations_.erase(found);
    return allocation;
  }

  DeviceInfo info_;
  const bool huge_pages_;
  PlainCopies copies_;
  mutable absl::Mutex mutex_;
  uint64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t high_water_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // most allocated since the last Trim
  // Freed in an Exchange and not needed by it: pages for the next one.
  std::vector<Allocation> spares_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::byte*, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::chrono::steady_clock::time_point> last_wall_ ABSL_GUARDED_BY(mutex_);
  double last_busy_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace terrace::device
