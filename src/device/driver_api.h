// What makers' drivers have in common, as one table of calls: a folder for each maker maps it to
// the entry points of its library. DriverDevice (device/driver_device.h) makes a Device of it.
// Addresses are the driver's own, handles whatever it gives out. Thread-safe; every call but Enter
// needs an Enter on the same thread before it.
#ifndef TERRACE_DEVICE_DRIVER_API_H_
#define TERRACE_DEVICE_DRIVER_API_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/device.h"

namespace terrace::device {

class DriverApi {
 public:
  struct Room {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };

  virtual ~DriverApi() = default;

  // Says which device the calling thread means.
  virtual absl::Status Enter() const = 0;

  virtual absl::StatusOr<Room> GetRoom() const = 0;
  // ResourceExhausted if the driver has not that much.
  virtual absl::StatusOr<uint64_t> Allocate(uint64_t bytes) const = 0;
  virtual void Free(uint64_t address) const = 0;

  // Memory apart from addresses, where the driver has that: pages of PageBytes() (0: it has not),
  // which become usable at reserved addresses once mapped there and allowed. All addresses and
  // sizes are multiples of PageBytes(). Unmapping and releasing cannot fail.
  virtual absl::StatusOr<uint64_t> PageBytes() const { return 0; }
  virtual absl::StatusOr<uint64_t> ReserveAddresses(uint64_t) const { return NoPages(); }
  virtual void FreeAddresses(uint64_t, uint64_t) const {}
  // ResourceExhausted if the driver has no page left.
  virtual absl::StatusOr<uint64_t> CreatePage(uint64_t) const { return NoPages(); }
  virtual void ReleasePage(uint64_t) const {}
  virtual absl::Status MapPage(uint64_t, uint64_t, uint64_t) const { return NoPages(); }
  virtual absl::Status AllowAccess(uint64_t, uint64_t) const { return NoPages(); }
  virtual void Unmap(uint64_t, uint64_t) const {}

  // As Device has it. False if the driver cannot.
  virtual bool Pin(std::span<std::byte>) const { return false; }
  virtual void Unpin(std::span<std::byte>) const {}

  // Queues a copy. Host memory need not be pinned.
  virtual absl::Status Copy(CopyDirection direction, std::byte* to, const std::byte* from,
                            uint64_t bytes, void* stream) const = 0;

  virtual absl::StatusOr<void*> CreateStream() const = 0;
  virtual void DestroyStream(void* stream) const = 0;
  virtual absl::Status SynchronizeStream(void* stream) const = 0;
  // Later work of `stream` runs after what `event` was recorded for.
  virtual absl::Status WaitEvent(void* stream, void* event) const = 0;

  virtual absl::StatusOr<void*> CreateEvent() const = 0;
  virtual void DestroyEvent(void* event) const = 0;
  virtual absl::Status RecordEvent(void* event, void* stream) const = 0;
  virtual absl::StatusOr<bool> QueryEvent(void* event) const = 0;
  virtual absl::Status SynchronizeEvent(void* event) const = 0;

  // Machine code; only asked for where there is a compiler. GetFunction: InvalidArgument if the
  // module has no such function. `parameters` point to the values, in order.
  virtual absl::StatusOr<void*> LoadModule(const std::string&) const {
    return absl::UnimplementedError("the driver loads no kernels");
  }
  virtual void UnloadModule(void*) const {}
  virtual absl::StatusOr<void*> GetFunction(void*, const std::string&) const {
    return absl::UnimplementedError("the driver loads no kernels");
  }
  virtual absl::Status Launch(void*, const LaunchShape&, void**, void*) const {
    return absl::UnimplementedError("the driver loads no kernels");
  }

  // Launches as one, where the driver has that. What is launched on `stream` between BeginCapture
  // and EndCapture does not run, but goes into a graph, whose arguments stay as they were.
  // EndCapture ends the capture even where it fails.
  virtual bool HasGraphs() const { return false; }
  virtual absl::Status BeginCapture(void*) const { return NoGraphs(); }
  virtual absl::StatusOr<void*> EndCapture(void*) const { return NoGraphs(); }
  virtual absl::Status LaunchGraph(void*, void*) const { return NoGraphs(); }
  virtual void DestroyGraph(void*) const {}

 private:
  static absl::Status NoGraphs() { return absl::UnimplementedError("the driver has no graphs"); }
  static absl::Status NoPages() { return absl::UnimplementedError("the driver maps no pages"); }
};

// Turns the common kernel dialect into machine code for the chip at hand. Thread-safe.
class DriverCompiler {
 public:
  virtual ~DriverCompiler() = default;
  // Everything beside source and macros that the machine code depends on.
  virtual std::string Identity() const = 0;
  // InvalidArgument with the compiler's words if it does not compile.
  virtual absl::StatusOr<std::string> Compile(const std::string& source,
                                              const std::string& defines) const = 0;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_API_H_
