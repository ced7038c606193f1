#include "server/sensors.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "device/device.h"
#include "obs/metrics.h"
#include "os/machine_sensors.h"
#include "os/process_memory.h"
#include "os/thread_usage.h"

namespace terrace::server {
namespace {

// A reading counts this much beside those before it: single ones jump.
constexpr double kWeight = 0.3;

}  // namespace

Sensors::Sensors(SensorDeps deps) : deps_(std::move(deps)), thread_([this] { Run(); }) {}

Sensors::~Sensors() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

SensorReading Sensors::Latest() const {
  absl::MutexLock lock(&mutex_);
  return latest_;
}

uint64_t Sensors::readings() const {
  absl::MutexLock lock(&mutex_);
  return readings_;
}

void Sensors::Run() {
  os::NameThisThread("sensors");
  for (;;) {
    SensorReading reading = Read();
    absl::MutexLock lock(&mutex_);
    latest_ = std::move(reading);
    ++readings_;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Microseconds(kPeriodUs))) {
      return;
    }
  }
}

double Sensors::Rate(const std::string& name, double total, double seconds) {
  const auto [before, first] = totals_.emplace(name, total);
  double& rate = rates_[name];
  // A total that has started over says nothing this time.
  if (!first && seconds > 0 && total >= before->second) {
    rate += kWeight * ((total - before->second) / seconds - rate);
  }
  before->second = total;
  return rate;
}

SensorReading Sensors::Read() {
  SensorReading out{.time_us = deps_.clock->NowUs()};
  const double seconds = last_us_ == 0 ? 0 : static_cast<double>(out.time_us - last_us_) * 1e-6;
  last_us_ = out.time_us;

  const std::shared_ptr<const EngineReading> engine = deps_.view->Read();
  const tier::TierSnapshot& tiers = engine->tiers;
  out.device_used_bytes = tiers.device_used_bytes;
  out.device_budget_bytes = tiers.device_budget_bytes;
  double to_device = 0, from_disk = 0;
  for (const tier::LinkState& link : tiers.links) {
    const auto bytes = static_cast<double>(link.bytes);
    if (link.name.ends_with("to-device")) to_device += bytes;
    if (link.name.starts_with("disk")) from_disk += bytes;
  }
  out.to_device_bytes_per_s = Rate("to-device", to_device, seconds);
  out.from_disk_bytes_per_s = Rate("from-disk", from_disk, seconds);

  if (const auto memory = os::ReadProcessMemory(); memory.ok()) {
    out.host_resident_bytes = memory->rss_bytes;
  }
  out.host_available_bytes = os::ReadAvailableMemory();
  if (const auto telemetry = deps_.device->ReadTelemetry(); telemetry.ok()) {
    if (telemetry->utilisation) {
      double& smooth = rates_["utilisation"];
      out.utilisation = smooth += kWeight * (*telemetry->utilisation - smooth);
    }
    out.temperature_c = telemetry->temperature_c;
    out.power_w = telemetry->power_w;
  }
  // The processor is the device, and says it elsewhere.
  if (deps_.device->info().unified_memory) {
    if (!out.temperature_c) out.temperature_c = os::ReadTemperature();
    if (const auto energy = os::ReadEnergy(); energy && !out.power_w) {
      out.power_w = Rate("energy", static_cast<double>(*energy), seconds) * 1e-6;
    }
  }

  const scheduler::SchedulerState& queue = engine->queue;
  for (const scheduler::ModelQueueState& model : queue.models) {
    out.waiting += model.waiting;
    out.running += model.running;
  }
  out.oldest_wait_us = queue.oldest_wait_us;
  return out;
}

std::string SensorJson(const SensorReading& reading) {
  namespace json = boost::json;
  auto value = [](const auto& each) { return each ? json::value(*each) : json::value(nullptr); };
  const json::object out = {{"time_us", reading.time_us},
                            {"device_used_bytes", reading.device_used_bytes},
                            {"device_budget_bytes", reading.device_budget_bytes},
                            {"host_resident_bytes", reading.host_resident_bytes},
                            {"host_available_bytes", value(reading.host_available_bytes)},
                            {"utilisation", value(reading.utilisation)},
                            {"temperature_c", value(reading.temperature_c)},
                            {"power_w", value(reading.power_w)},
                            {"to_device_bytes_per_s", reading.to_device_bytes_per_s},
                            {"from_disk_bytes_per_s", reading.from_disk_bytes_per_s},
                            {"waiting", reading.waiting},
                            {"running", reading.running},
                            {"oldest_wait_us", reading.oldest_wait_us}};
  return json::serialize(out);
}

void UpdateSensorMetrics(const SensorReading& reading, Metrics* metrics) {
  metrics->Set(MetricId::kHostMemory, {"resident"},
               static_cast<double>(reading.host_resident_bytes));
  if (reading.host_available_bytes) {
    metrics->Set(MetricId::kHostMemory, {"available"},
                 static_cast<double>(*reading.host_available_bytes));
  }
  if (reading.utilisation) metrics->Set(MetricId::kUtilisation, {}, *reading.utilisation);
  if (reading.temperature_c) metrics->Set(MetricId::kTemperature, {}, *reading.temperature_c);
  if (reading.power_w) metrics->Set(MetricId::kPower, {}, *reading.power_w);
  metrics->Set(MetricId::kLinkRate, {"to-device"}, reading.to_device_bytes_per_s);
  metrics->Set(MetricId::kLinkRate, {"from-disk"}, reading.from_disk_bytes_per_s);
  metrics->Set(MetricId::kOldestWait, {}, static_cast<double>(reading.oldest_wait_us) * 1e-6);
}

}  // namespace terrace::server
