// The admin port: the console's files, and below /admin what it shows and does. Everything that it
// shows is also there for scripts. Thread-safe.
//
//   GET  /admin/state               models, tiers, ledger, links, queue, tenants, sensors, process
//   GET  /admin/logs?after=N        the last lines of the server's log
//   GET  /admin/traces[?trace=ID]   the last requests as Perfetto JSON
//   POST /admin/models/NAME/load    and unload, evict
//   POST /admin/reload              reads the configuration again
#ifndef TERRACE_SERVER_ADMIN_H_
#define TERRACE_SERVER_ADMIN_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "scheduler/scheduler.h"
#include "server/exchange.h"
#include "server/model_control.h"
#include "server/model_source.h"
#include "server/sensors.h"
#include "server/version_router.h"
#include "tier/tier_manager.h"

namespace terrace {
class Clock;
class LogRing;
class TraceBuffer;
}  // namespace terrace

namespace terrace::server {

struct AdminDeps {
  HttpHandler* openai = nullptr;  // for the console's chat and for /metrics
  ModelSource* models = nullptr;
  ModelControl* control = nullptr;
  VersionRouter* versions = nullptr;  // on trial
  const Clock* clock = nullptr;
  const TraceBuffer* traces = nullptr;
  const LogRing* log = nullptr;
  std::string device;  // its name
  std::function<tier::TierSnapshot()> tiers;
  std::function<scheduler::SchedulerState()> queue;
  std::function<absl::Status()> reload;
  std::function<SensorReading()> sensors;
  // Which pages of a model are read (server/page_profile.h); may be empty.
  std::function<absl::StatusOr<std::string>(const std::string& model, size_t cells)> pages;
};

class Admin final : public HttpHandler {
 public:
  // All of `deps` must outlive it.
  explicit Admin(AdminDeps deps);

  void Handle(std::shared_ptr<Exchange> exchange) override;

 private:
  using ExchangePtr = std::shared_ptr<Exchange>;

  std::string StateJson() const;
  void Logs(const ExchangePtr& exchange) const;
  void Pages(const ExchangePtr& exchange) const;
  void Act(const ExchangePtr& exchange, std::string_view rest);
  static void File(const ExchangePtr& exchange);

  const AdminDeps deps_;
  const int64_t started_us_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_ADMIN_H_
