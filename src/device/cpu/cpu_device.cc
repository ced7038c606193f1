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

// Memory and the pieces it consists of for the kernel: one, unless pages were moved into it.
struct Allocation {
  os::Mapping mapping;
  std::vector<MemoryRange> pieces;
};

// Moves the huge pages of `from` into `to`, as far as they go, without touching their contents, and
// returns the pieces that `to` then consists of. What is not moved stays with its mapping.
std::vector<MemoryRange> MovePages(const std::vector<Allocation>& from, const os::Mapping& to) {
  // Each piece is an entry of the process's map, of which the kernel allows some 65,000.
  constexpr size_t kMostPieces = 32;
  constexpr uint64_t kHuge = os::kHugePageBytes;
  std::vector<MemoryRange> pieces;
  uint64_t filled = 0;
  for (const Allocation& allocation : from) {
    for (const MemoryRange& piece : allocation.pieces) {
      const auto address = reinterpret_cast<uintptr_t>(piece.data);
      const uint64_t start = AlignUp(address, kHuge);
      const uint64_t end = (address + piece.bytes) & ~(kHuge - 1);
      const uint64_t room = (to.bytes() - filled) & ~(kHuge - 1);
      if (pieces.size() >= kMostPieces || room == 0) break;
      if (start >= end) continue;
      const uint64_t bytes = std::min(end - start, room);
      std::byte* target = to.data() + filled;
      // The source stays mapped, empty, so that no other thread's mapping can take its place before
      // it is unmapped as a whole.
      void* moved = ::mremap(reinterpret_cast<void*>(start), bytes, bytes,
                             MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, target);
      if (moved == MAP_FAILED) {
        // Kernels before 5.7, or too many pieces. The target may be gone by now: mapped again, it
        // is fresh memory as if nothing had been tried; if it is still there, this changes nothing.
        ::mmap(target, bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        pieces.push_back({to.data() + filled, to.bytes() - filled});
        return pieces;
      }
      pieces.push_back({target, bytes});
      filled += bytes;
    }
  }
  if (filled < to.bytes()) pieces.push_back({to.data() + filled, to.bytes() - filled});
  return pieces;
}

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

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override { return Exchange({}, bytes); }

  void Free(std::byte* data, uint64_t) override {
    std::optional<Allocation> gone;  // unmapped after the lock is released: that may take long
    absl::MutexLock lock(&mutex_);
    gone = TakeLocked(data);
  }

  absl::StatusOr<std::byte*> Exchange(std::span<const MemoryRange> freed, uint64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    std::vector<Allocation> gone;
    for (const MemoryRange& range : freed) {
      std::optional<Allocation> allocation = TakeLocked(range.data);
      if (allocation.has_value()) gone.push_back(*std::move(allocation));
    }
    if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
    const uint64_t rounded = AlignUp(std::min(bytes, info_.memory_bytes + 1), os::kPageBytes);
    if (bytes > info_.memory_bytes || rounded > info_.memory_bytes - allocated_) {
      return absl::ResourceExhaustedError(fmt::format("cpu: {} asked for, {} of {} are allocated",
                                                      FormatBytes(bytes), FormatBytes(allocated_),
                                                      FormatBytes(info_.memory_bytes)));
    }
    os::MappingOptions options;
    options.huge_pages = huge_pages_;
    Allocation fresh;
    ASSIGN_OR_RETURN(fresh.mapping, os::Mapping::Anonymous(rounded, options));
    if (huge_pages_) fresh.pieces = MovePages(gone, fresh.mapping);
    allocated_ += rounded;
    std::byte* data = fresh.mapping.data();
    allocations_.emplace(data, std::move(fresh));
    return data;
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
  absl::flat_hash_map<std::byte*, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::chrono::steady_clock::time_point> last_wall_ ABSL_GUARDED_BY(mutex_);
  double last_busy_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace terrace::device
