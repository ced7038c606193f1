#include "device/sim/sim_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "device/host_stream.h"
#include "device/range_allocator.h"
#include "device/range_set.h"
#include "os/mapping.h"

namespace terrace::device {
namespace {

// The device's memory: a mapping and what of it is given out.
class Arena {
 public:
  explicit Arena(os::Mapping mapping) : mapping_(std::move(mapping)), ranges_(mapping_.bytes()) {}

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes, const std::string& device) {
    const std::optional<uint64_t> offset = ranges_.Allocate(bytes);
    if (offset.has_value()) {
      kept_.Remove({*offset, *offset + bytes});
      return mapping_.data() + *offset;
    }
    return absl::ResourceExhaustedError(
        fmt::format("{}: {} asked for, {} of {} are allocated, the largest free range has {}",
                    device, FormatBytes(bytes), FormatBytes(ranges_.allocated()),
                    FormatBytes(mapping_.bytes()), FormatBytes(ranges_.LargestFree())));
  }

  void Free(std::byte* data) {
    const auto offset = static_cast<uint64_t>(data - mapping_.data());
    const uint64_t bytes = ranges_.Free(offset);
    // Pages really leave, so that a resident-set reading of a test means something.
    if (bytes > 0) (void)mapping_.Discard(offset, bytes);
  }

  // Frees, but leaves the pages for who allocates next, until Trim.
  void Keep(std::byte* data) {
    const auto offset = static_cast<uint64_t>(data - mapping_.data());
    const uint64_t bytes = ranges_.Free(offset);
    if (bytes > 0) kept_.Add({offset, offset + bytes});
  }
  void Trim() {
    for (const auto& [begin, end] : kept_.ranges()) (void)mapping_.Discard(begin, end - begin);
    kept_ = RangeSet();
  }

  // True if [data, data + bytes) lies in one allocation.
  bool Holds(const std::byte* data, uint64_t bytes) const {
    if (data < mapping_.data() || data >= mapping_.data() + mapping_.bytes()) return false;
    return ranges_.Holds(static_cast<uint64_t>(data - mapping_.data()), bytes);
  }

  bool Overlaps(const std::byte* data, uint64_t bytes) const {
    return data < mapping_.data() + mapping_.bytes() && data + bytes > mapping_.data();
  }

  uint64_t allocated() const { return ranges_.allocated(); }

 private:
  os::Mapping mapping_;
  RangeAllocator ranges_;
  RangeSet kept_;  // free, with pages
};

class SimDeviceImpl final : public SimDevice, public CopyModel {
 public:
  SimDeviceImpl(const SimDeviceOptions& options, os::Mapping mapping, const Clock* clock)
      : options_(options), clock_(clock), arena_(std::move(mapping)) {
    info_.name = options_.name;
    info_.kind = "sim";
    info_.description = "stand-in accelerator";
    info_.host_addressable = true;
    info_.memory_bytes = options_.memory_bytes;
    info_.alignment = os::kPageBytes;
    info_.granularity = os::kPageBytes;
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override {
    if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
    const uint64_t capped = std::min(bytes, info_.memory_bytes + 1);
    absl::MutexLock lock(&mutex_);
    return arena_.Allocate(AlignUp(capped, os::kPageBytes), info_.name);
  }
  void Free(std::byte* data, uint64_t) override {
    if (data == nullptr) return;
    absl::MutexLock lock(&mutex_);
    arena_.Free(data);
  }
  // A chip's memory needs no clearing anew; the host's pages, which stand in for it, would.
  absl::StatusOr<std::byte*> Exchange(std::span<const MemoryRange> freed, uint64_t bytes,
                                      const PlaceHint& /*hint*/) override {
    {
      absl::MutexLock lock(&mutex_);
      for (const MemoryRange& range : freed) {
        if (range.data != nullptr) arena_.Keep(range.data);
      }
    }
    return Allocate(bytes);
  }
  void Trim() override {
    absl::MutexLock lock(&mutex_);
    arena_.Trim();
  }
  MemoryInfo GetMemoryInfo() const override {
    absl::MutexLock lock(&mutex_);
    return {info_.memory_bytes, info_.memory_bytes - arena_.allocated(), arena_.allocated()};
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    auto stream = std::make_unique<HostStream>(this, options_.stepped);
    if (!options_.stepped) return std::unique_ptr<Stream>(std::move(stream));
    absl::MutexLock lock(&mutex_);
    // Stepped streams belong to the device, which steps them; the caller holds a handle.
    streams_.push_back(std::move(stream));
    return std::unique_ptr<Stream>(std::make_unique<Handle>(streams_.back().get()));
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>());
  }
  absl::StatusOr<std::unique_ptr<Kernel>> CreateKernel(const KernelSource& source) override {
    if (source.host == nullptr) {
      return absl::UnimplementedError(
          fmt::format("{}: kernel {} has no host function", info_.name, source.name));
    }
    return std::unique_ptr<Kernel>(std::make_unique<HostKernel>(source));
  }
  absl::StatusOr<Telemetry> ReadTelemetry() override {
    Telemetry telemetry;
    telemetry.copied_to_device_bytes = counters_.to_device;
    telemetry.copied_to_host_bytes = counters_.to_host;
    telemetry.copied_on_device_bytes = counters_.on_device;
    return telemetry;
  }

  bool Step() override {
    std::vector<HostStream*> streams;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& stream : streams_) streams.push_back(stream.get());
    }
    bool ran = false;
    for (HostStream* stream : streams) ran = stream->Step() || ran;
    return ran;
  }

 private:
  class Handle final : public Stream {
   public:
    explicit Handle(HostStream* stream) : stream_(stream) {}
    absl::Status CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                           uint64_t bytes) override {
      return stream_->CopyAsync(direction, to, from, bytes);
    }
    absl::Status HostCallback(std::function<void(absl::Status)> callback) override {
      return stream_->HostCallback(std::move(callback));
    }
    absl::Status Launch(const Kernel& kernel, const LaunchShape& shape,
                        std::span<const KernelArgument> arguments) override {
      return stream_->Launch(kernel, shape, arguments);
    }
    absl::Status Record(Event* event) override { return stream_->Record(event); }
    absl::Status Wait(const Event& event) override { return stream_->Wait(event); }
    absl::Status Synchronize() override { return stream_->Synchronize(); }
    void ClearError() override { stream_->ClearError(); }

   private:
    HostStream* stream_;
  };

  const SimLink& link(CopyDirection direction) const {
    return direction == CopyDirection::kHostToDevice   ? options_.to_device
           : direction == CopyDirection::kDeviceToHost ? options_.to_host
                                                       : options_.on_device;
  }

  absl::Status Check(CopyDirection direction, const std::byte* to, const std::byte* from,
                     uint64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    const bool to_device = direction != CopyDirection::kDeviceToHost;
    const bool from_device = direction != CopyDirection::kHostToDevice;
    if (to_device ? !arena_.Holds(to, bytes) : arena_.Overlaps(to, bytes)) {
      return absl::InvalidArgumentError(
          fmt::format("{}: the copy's target is {} the device's allocations", info_.name,
                      to_device ? "outside" : "inside"));
    }
    if (from_device ? !arena_.Holds(from, bytes) : arena_.Overlaps(from, bytes)) {
      return absl::InvalidArgumentError(
          fmt::format("{}: the copy's source is {} the device's allocations", info_.name,
                      from_device ? "outside" : "inside"));
    }
    return absl::OkStatus();
  }

  // Copies of one direction share its link: each starts when the one before has left it.
  int64_t Begin(CopyDirection direction, uint64_t bytes, int64_t ready_us) override {
    const SimLink& shape = link(direction);
    if (shape.bytes_per_s <= 0 && shape.latency_us <= 0) return 0;
    absl::MutexLock lock(&mutex_);
    int64_t& free_at = free_at_us_[static_cast<size_t>(direction)];
    // A copy engine is never idle between queued copies: one asked for right after another ended
    // starts when that one left the link, not when our thread woke up.
    constexpr int64_t kWakeUpSlackUs = 200;
    int64_t start = ready_us - free_at <= shape.latency_us + kWakeUpSlackUs ? free_at : ready_us;
    if (shape.bytes_per_s > 0) {
      start +=
          static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * 1e6 / shape.bytes_per_s));
    }
    free_at = start;
    return start + shape.latency_us;
  }

  absl::Status Finish(CopyDirection direction, std::byte* to, const std::byte* from,
                      uint64_t bytes) override {
    if (options_.before_copy != nullptr) RETURN_IF_ERROR(options_.before_copy(direction));
    if (bytes > 0) std::memmove(to, from, bytes);
    if (options_.after_copy != nullptr) options_.after_copy(direction, {to, bytes});
    std::atomic<uint64_t>& counter = direction == CopyDirection::kHostToDevice ? counters_.to_device
                                     : direction == CopyDirection::kDeviceToHost
                                         ? counters_.to_host
                                         : counters_.on_device;
    counter.fetch_add(bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }

  int64_t NowUs() const override { return clock_->NowUs(); }

  DeviceInfo info_;
  const SimDeviceOptions options_;
  const Clock* const clock_;
  CopyCounters counters_;
  mutable absl::Mutex mutex_;
  Arena arena_ ABSL_GUARDED_BY(mutex_);
  int64_t free_at_us_[3] ABSL_GUARDED_BY(mutex_) = {0, 0, 0};
  std::vector<std::unique_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<SimDevice>> CreateSimDevice(const SimDeviceOptions& options,
                                                           const Clock* clock) {
  ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Anonymous(options.memory_bytes));
  SimDeviceOptions rounded = options;
  rounded.memory_bytes = mapping.bytes();
  return std::unique_ptr<SimDevice>(
      std::make_unique<SimDeviceImpl>(rounded, std::move(mapping), clock));
}

}  // namespace terrace::device
