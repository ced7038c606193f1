// The VEM contract: what Terrace needs of a chip, in five nouns: device, memory, stream, event,
// kernel. One folder below this one implements it for each chip family; one conformance suite
// (tests/conformance) runs on all of them.
//
// Device is thread-safe. A Stream may be used from several threads, but the order of its operations
// is then theirs to settle. Streams, events and kernels must not outlive their device; memory must
// be freed on the device that gave it. Operations of one stream run in order; different streams are
// ordered by events only.
#ifndef TERRACE_DEVICE_DEVICE_H_
#define TERRACE_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::device {

struct DeviceInfo {
  std::string name;             // "cpu", "sim:0"
  std::string kind;             // the folder: "cpu", "sim", "opencl" ...
  std::string description;      // the chip's own name
  bool unified_memory = false;  // host and device addresses are the same bytes; no copy is needed
  // Kernels and the host may read and write device memory through its address. True for unified
  // devices and for `sim`; copies between host and device are still needed unless unified.
  bool host_addressable = false;
  uint64_t memory_bytes = 0;  // that can be allocated at most
  uint64_t alignment = 0;     // of every allocation's address, bytes
  uint64_t granularity = 0;   // an allocation takes a multiple of this, bytes
  // Of devices with a run-time compiler: whether a work-item is a thread with wide registers (a
  // CPU), so that kernels use few items and vector types, and how many items a work-group may have.
  bool vector_items = false;
  uint32_t max_group_items = 0;
  // Of these: whether kernels may use the dialect's tile product (src/ops/opencl/kernels/), which
  // the chip computes in circuits of its own.
  bool tile_product = false;
};

struct MemoryRange {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

struct MemoryInfo {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t allocated_bytes = 0;  // through this Device
};

// What the chip says of itself; absent where it says nothing.
struct Telemetry {
  std::optional<double> utilisation;  // 0 to 1, since the last reading
  std::optional<double> temperature_c;
  std::optional<double> power_w;
  std::optional<uint32_t> link_width;   // PCIe lanes
  uint64_t copied_to_device_bytes = 0;  // since start
  uint64_t copied_to_host_bytes = 0;
  uint64_t copied_on_device_bytes = 0;
};

enum class CopyDirection : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// One argument of a kernel. The order is that of the kernel's parameters, of which some kinds take
// several (src/ops/opencl/kernels/ has the dialect).
struct KernelArgument {
  enum class Kind : uint8_t {
    kMemory,  // an address in device memory
    kSpace,   // all of the device's memory, for kernels that read addresses from tables
    kValue,   // a number of 4 or 8 bytes
  };
  Kind kind = Kind::kValue;
  uint8_t bytes = 0;            // of `value`
  std::byte* memory = nullptr;  // kMemory
  std::byte value[8] = {};      // kValue

  static KernelArgument Memory(const void* address) {
    KernelArgument argument;
    argument.kind = Kind::kMemory;
    argument.memory = static_cast<std::byte*>(const_cast<void*>(address));
    return argument;
  }
  static KernelArgument Space() {
    KernelArgument argument;
    argument.kind = Kind::kSpace;
    return argument;
  }
  template <typename T>
    requires(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8))
  static KernelArgument Value(T number) {
    KernelArgument argument;
    argument.bytes = sizeof(T);
    std::memcpy(argument.value, &number, sizeof(T));
    return argument;
  }
};

// How often a kernel runs: work-groups of `items` that can meet at barriers.
struct LaunchShape {
  std::array<uint32_t, 3> groups = {1, 1, 1};
  std::array<uint32_t, 3> items = {1, 1, 1};  // of a group
};

// A function that runs on the device in stream order. `host` serves devices that compute on the
// CPU's cores (it is called once, whatever the shape); `source` (the common kernel dialect) those
// with a run-time compiler, which find `name` in it and define the macros of `defines`, a list as
// "A=1 B=2".
struct KernelSource {
  std::string name;
  std::function<absl::Status(std::span<const KernelArgument> arguments)> host;
  std::string source;
  std::string defines = {};
};

class Kernel {
 public:
  virtual ~Kernel() = default;
};

// A point in a stream's order. May be recorded again; Wait and Query refer to the last recording.
class Event {
 public:
  virtual ~Event() = default;
  // OK and true once everything before the recording has run; true if never recorded.
  virtual absl::StatusOr<bool> Query() const = 0;
  // Blocks until then; the stream's error if it failed before.
  virtual absl::Status Synchronize() const = 0;
};

// After an operation fails, later copies and kernels of the stream are skipped and every
// Synchronize returns the first error until ClearError(); callbacks still run, with that error.
class Stream {
 public:
  virtual ~Stream() = default;  // waits for what was asked
  // Both ranges must stay valid until the operation has run. InvalidArgument for a null range.
  virtual absl::Status CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                                 uint64_t bytes) = 0;
  // Runs `callback` on a thread of the device once everything before it has run, with the stream's
  // status so far. It must not block for long nor synchronise; it may ask for more operations.
  virtual absl::Status HostCallback(std::function<void(absl::Status)> callback) = 0;
  virtual absl::Status Launch(const Kernel& kernel, const LaunchShape& shape,
                              std::span<const KernelArgument> arguments) = 0;
  virtual absl::Status Record(Event* event) = 0;
  // Later operations of this stream run after what `event` stands for.
  virtual absl::Status Wait(const Event& event) = 0;
  virtual absl::Status Synchronize() = 0;
  virtual void ClearError() = 0;
};

// Where an allocation had best lie, for devices that can move memory to addresses: at `at` if that
// is free, else, with `apart`, away from others, where much else can follow it.
struct PlaceHint {
  const std::byte* at = nullptr;
  bool apart = false;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // ResourceExhausted (with the sizes) if the device cannot give that much.
  virtual absl::StatusOr<std::byte*> Allocate(uint64_t bytes) = 0;
  // `data` and `bytes` as allocated; null is allowed. The bytes are free for others on return.
  virtual void Free(std::byte* data, uint64_t bytes) = 0;
  // Frees `freed` and allocates `bytes` (contents undefined) in one step, so that a device may hand
  // memory over instead of giving it back and clearing it anew. `freed` is free even on failure.
  virtual absl::StatusOr<std::byte*> Exchange(std::span<const MemoryRange> freed, uint64_t bytes,
                                              const PlaceHint& /*hint*/) {
    for (const MemoryRange& range : freed) Free(range.data, range.bytes);
    return Allocate(bytes);
  }
  // As Free, but the memory may be kept, as it is, for the next Exchange.
  virtual void FreeForExchange(std::byte* data, uint64_t bytes) { Free(data, bytes); }
  // Gives back what was kept for the next Exchange.
  virtual void Trim() {}
  // Host memory from or to which much will be copied: where copies from memory that the system may
  // move are slower, keeps it in place until Unpin with the same range, which must come before the
  // memory goes. True if it is pinned; false is no error.
  virtual bool Pin(std::span<std::byte>) { return false; }
  virtual void Unpin(std::span<std::byte>) {}
  virtual MemoryInfo GetMemoryInfo() const = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Unimplemented if the device cannot run what `source` holds; InvalidArgument with the compiler's
  // words if it does not compile.
  virtual absl::StatusOr<std::unique_ptr<Kernel>> CreateKernel(const KernelSource& source) = 0;

  // How a kernel that takes KernelArgument::Space() finds `address`, when it reads this number from
  // a table in device memory.
  virtual uint64_t KernelAddress(const std::byte* address) const {
    return reinterpret_cast<uintptr_t>(address);
  }

  virtual absl::StatusOr<Telemetry> ReadTelemetry() = 0;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DEVICE_H_
