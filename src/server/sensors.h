// The state of device, machine, links and queue in one snapshot of twelve figures, read ten times a
// second on a thread of its own: what `terrace top`, the admin port and /metrics show. Thread-safe.
#ifndef TERRACE_SERVER_SENSORS_H_
#define TERRACE_SERVER_SENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/engine_view.h"

namespace terrace {
class Clock;
class Metrics;
}  // namespace terrace
namespace terrace::device {
class Device;
}

namespace terrace::server {

// Absent: neither the device nor the machine tells.
struct SensorReading {
  int64_t time_us = 0;  // on the clock
  uint64_t device_used_bytes = 0;
  uint64_t device_budget_bytes = 0;
  uint64_t host_resident_bytes = 0;  // of this process
  std::optional<uint64_t> host_available_bytes;
  std::optional<double> utilisation;  // of the device, 0 to 1; of a few readings
  std::optional<double> temperature_c;
  std::optional<double> power_w;
  double to_device_bytes_per_s = 0;  // over the links that lead into device memory
  double from_disk_bytes_per_s = 0;
  int32_t waiting = 0;  // requests
  int32_t running = 0;
  int64_t oldest_wait_us = 0;
};

struct SensorDeps {
  const Clock* clock = nullptr;
  device::Device* device = nullptr;
  EngineView* view = nullptr;
};

class Sensors {
 public:
  static constexpr int64_t kPeriodUs = 100'000;

  explicit Sensors(SensorDeps deps);  // the deps must outlive it
  ~Sensors();
  Sensors(const Sensors&) = delete;
  Sensors& operator=(const Sensors&) = delete;

  SensorReading Latest() const;
  uint64_t readings() const;  // since start

 private:
  void Run();
  SensorReading Read();
  // Of a total that only rises, per second, smoothed over a few readings.
  double Rate(const std::string& name, double total, double seconds);

  const SensorDeps deps_;
  int64_t last_us_ = 0;  // these three belong to the thread
  std::map<std::string, double> totals_;
  std::map<std::string, double> rates_;
  mutable absl::Mutex mutex_;
  SensorReading latest_ ABSL_GUARDED_BY(mutex_);
  uint64_t readings_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// As JSON, null for what is absent.
std::string SensorJson(const SensorReading& reading);
// Into the gauges; what is absent is left out.
void UpdateSensorMetrics(const SensorReading& reading, Metrics* metrics);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_SENSORS_H_
