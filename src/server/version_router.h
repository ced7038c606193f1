// Which model answers a request: versions on trial (NAME@VERSION with a share of NAME's traffic)
// and their roll-back when they fail, and equivalents that a request's contract allows.
// Thread-safe.
#ifndef TERRACE_SERVER_VERSION_ROUTER_H_
#define TERRACE_SERVER_VERSION_ROUTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/exchange.h"

namespace terrace {
class Logger;
class Metrics;
}  // namespace terrace

namespace terrace::server {

// A version on trial.
struct Trial {
  std::string model;     // NAME@VERSION
  double traffic = 0;    // share of NAME's requests
  double errors = 0.05;  // share of failures at which it ends
};

class VersionRouter {
 public:
  // Failures are counted over the last kWindow requests of a version, and judged once there have
  // been kLeast.
  static constexpr int kWindow = 200;
  static constexpr int kLeast = 20;

  // `is_warm` says whether a model's weights are in device memory; `log` and `metrics` must outlive
  // the router.
  VersionRouter(std::function<bool(std::string_view)> is_warm, Logger* log, Metrics* metrics)
      : is_warm_(std::move(is_warm)), log_(log), metrics_(metrics) {}

  // Replaces the trials. One that was rolled back stays so while its settings are the same.
  void Set(const std::vector<Trial>& trials);

  // The model that answers `request`, which asks for `name`.
  std::string Route(const HttpRequest& request, const std::string& name);

  // How a request ended that `model` answered. Failures are answers of 500 and above, but for
  // overload (503), which is not the version's fault.
  void Report(std::string_view model, int status);

  // The trials there are: as they were set, and whether one was rolled back.
  std::vector<std::pair<Trial, bool>> Trials();

 private:
  struct State {
    Trial trial;
    double credit = 0;  // grows by `traffic` a request; one is taken at 1
    bool rolled_back = false;
    std::vector<bool> window;  // true: failed
    size_t next = 0;
  };

  const std::function<bool(std::string_view)> is_warm_;
  Logger* const log_;
  Metrics* const metrics_;
  absl::Mutex mutex_;
  std::map<std::string, State, std::less<>> trials_ ABSL_GUARDED_BY(mutex_);  // by NAME
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_VERSION_ROUTER_H_
