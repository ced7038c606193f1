#include "device/cpu/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "device/cpu/page_arena.h"
#include "device/host_stream.h"
#include "os/mapping.h"

namespace terrace::device {
namespace {

class PlainCopies final : public CopyModel {
 public:
  absl::Status Check(CopyDirection, const std::byte*, const std::byte*, uint64_t) override {
    return absl::OkStatus();
  }
  int64_t Begin(CopyDirection, uint64_t, int64_t) override { return 0; }
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
    absl::MutexLock lock(&mutex_);
    return TakeLocked(bytes, PageArena::Contents::kZero, {});
  }

  void Free(std::byte* data, uint64_t) override {
    absl::MutexLock lock(&mutex_);
    const uint64_t bytes = ForgetLocked(data);
    if (bytes > 0) arena_.Free(data, bytes);
  }

  void FreeForExchange(std::byte* data, uint64_t) override {
    absl::MutexLock lock(&mutex_);
    const uint64_t bytes = ForgetLocked(data);
    if (bytes > 0) arena_.Keep(data, bytes);
  }

  void Trim() override {
    absl::MutexLock lock(&mutex_);
    arena_.DiscardKept(0);
    high_water_bytes_ = allocated_;
  }

  absl::StatusOr<std::byte*> Exchange(std::span<const MemoryRange> freed, uint64_t bytes,
                                      const PlaceHint& hint) override {
    absl::MutexLock lock(&mutex_);
    for (const MemoryRange& range : freed) {
      const uint64_t held = ForgetLocked(range.data);
      if (held > 0) arena_.Keep(range.data, held);
    }
    return TakeLocked(bytes, PageArena::Contents::kAnything, hint);
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
  absl::StatusOr<std::byte*> TakeLocked(uint64_t bytes, PageArena::Contents contents,
                                        const PlaceHint& hint)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
    const uint64_t rounded = AlignUp(std::min(bytes, info_.memory_bytes + 1), os::kPageBytes);
    if (bytes > info_.memory_bytes || rounded > info_.memory_bytes - allocated_) {
      return absl::ResourceExhaustedError(fmt::format("cpu: {} asked for, {} of {} are allocated",
                                                      FormatBytes(bytes), FormatBytes(allocated_),
                                                      FormatBytes(info_.memory_bytes)));
    }
    RETURN_IF_ERROR(ReserveLocked());
    ASSIGN_OR_RETURN(std::byte * data, arena_.Take(rounded, contents, hint));
    allocated_ += rounded;
    allocations_.emplace(data, rounded);
    high_water_bytes_ = std::max(high_water_bytes_, allocated_);
    // Kept pages never add to the most that was ever allocated.
    arena_.DiscardKept(high_water_bytes_ - allocated_);
    return data;
  }

  // Many more addresses than memory: models that come and go each keep to their own.
  absl::Status ReserveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (reserved_) return absl::OkStatus();
    const uint64_t bytes = AlignUp(info_.memory_bytes, os::kHugePageBytes);
    absl::StatusOr<PageArena> arena = PageArena::Reserve(8 * bytes, huge_pages_);
    if (!arena.ok()) arena = PageArena::Reserve(2 * bytes, huge_pages_);
    if (!arena.ok()) arena = PageArena::Reserve(bytes, huge_pages_);
    if (!arena.ok()) return arena.status();
    arena_ = *std::move(arena);
    reserved_ = true;
    return absl::OkStatus();
  }

  // Returns the bytes that were allocated at `data`; 0 if there are none.
  uint64_t ForgetLocked(std::byte* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto found = allocations_.find(data);
    if (found == allocations_.end()) return 0;
    const uint64_t bytes = found->second;
    allocated_ -= bytes;
    allocations_.erase(found);
    return bytes;
  }

  DeviceInfo info_;
  const bool huge_pages_;
  PlainCopies copies_;
  mutable absl::Mutex mutex_;
  uint64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t high_water_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // most allocated since the last Trim
  bool reserved_ ABSL_GUARDED_BY(mutex_) = false;
  PageArena arena_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::byte*, uint64_t> allocations_ ABSL_GUARDED_BY(mutex_);  // to bytes
  std::optional<std::chrono::steady_clock::time_point> last_wall_ ABSL_GUARDED_BY(mutex_);
  double last_busy_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace terrace::device
