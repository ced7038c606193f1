// The device that a configuration asks for, and the operators that run on it: the one place that
// knows all kinds.
#ifndef TERRACE_CLI_DEVICE_CHOICE_H_
#define TERRACE_CLI_DEVICE_CHOICE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "device/cpu/thread_team.h"
#include "device/device.h"
#include "ops/backend.h"
#include "server/config.h"

namespace terrace::cli {

struct ChosenDevice {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<ops::Backend> backend;  // uses `device`, `team` and nothing else
  std::string note;                       // which operators the chip leaves to the host, if any
};

// Hears, on any thread and once each, what does not work as well as it could; may be null.
using DeviceNotice = std::function<void(const std::string&)>;

// Errors name device.kind. `clock` and `team` must outlive what is made.
absl::StatusOr<ChosenDevice> ChooseDevice(const server::Config& config, const Clock* clock,
                                          ThreadTeam* team, DeviceNotice tell);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_DEVICE_CHOICE_H_
