// A Device over a maker's driver (device/driver_api.h): memory, streams and events of the driver,
// and kernels of the common dialect where it comes with a compiler. Shared by the folders of such
// chips, which find the driver's library and describe the chip.
#ifndef TERRACE_DEVICE_DRIVER_DEVICE_H_
#define TERRACE_DEVICE_DRIVER_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/driver_api.h"
#include "device/driver_collectives.h"
#include "device/driver_matrices.h"

namespace terrace::device {

// What a chip says of itself through its maker's library for that. Thread-safe.
class Sensors {
 public:
  virtual ~Sensors() = default;
  // What cannot be read is absent.
  virtual Telemetry Read() const = 0;
};

struct DriverDeviceOptions {
  // Name, kind, description and max_group_items; the rest is filled in.
  DeviceInfo info;
  // Memory to take; 0: what is free, but for `driver_bytes`.
  uint64_t memory_bytes = 0;
  // Left to the driver, for its own needs and for kernels' code.
  uint64_t driver_bytes = uint64_t{512} << 20;
  bool arena = true;  // as in DriverMemory
  // For compiled kernels; empty: they are compiled again by each process.
  std::string cache_folder;
  std::shared_ptr<const Sensors> sensors;  // null: the chip says nothing
  // Opens the maker's library for products of matrices; null: there is none.
  std::function<absl::StatusOr<MatrixCalls>()> matrices;
  // Launches that come again in the same order become graphs, where the driver has those.
  bool graphs = true;
  // Is told what does not work as well as it could, once each, on any thread; may be null.
  std::function<void(const std::string&)> tell;
  // Opens the maker's library for sums over chips; null: there is none.
  std::function<absl::StatusOr<CollectiveCalls>()> collectives;
};

class DriverDevice final : public Device {
 public:
  // ResourceExhausted if there is not as much memory. `compiler` may be null: then no kernel can be
  // made.
  static absl::StatusOr<std::unique_ptr<DriverDevice>> Create(
      DriverDeviceOptions options, std::unique_ptr<DriverApi> api,
      std::unique_ptr<DriverCompiler> compiler);
  ~DriverDevice() override;

  const DeviceInfo& info() const override;
  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override;
  void Free(std::byte* data, uint64_t bytes) override;
  bool Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;
  MemoryInfo GetMemoryInfo() const override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;
  absl::StatusOr<std::unique_ptr<Kernel>> CreateKernel(const KernelSource& source) override;
  absl::StatusOr<Telemetry> ReadTelemetry() override;

  const DriverApi& api() const;
  // The maker's library for sums over several of its chips; NotFound or another error without it.
  absl::StatusOr<std::unique_ptr<CollectiveLibrary>> OpenCollectives() const;
  // A stream of the driver's for who calls its libraries of operators, not behind a Stream.
  absl::StatusOr<void*> CreateDriverStream() const;

 private:
  struct State;
  explicit DriverDevice(std::unique_ptr<State> state);
  absl::Status TakeMemory();
  absl::StatusOr<void*> ModuleOf(const KernelSource& source);

  std::unique_ptr<State> const state_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_DEVICE_H_
