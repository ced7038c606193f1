// terrace serve: the composition root of the server. Ports are bound before anything else is made,
// so that a taken port is told at once and a second server cannot touch the first one's memory or
// disk.
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "scheduler/scheduler.h"
#include "server/api_handler.h"
#include "server/http_server.h"
#include "server/model_catalog.h"
#include "server/tier_metrics.h"
#include "weights/model_store.h"

namespace terrace::cli {
namespace {

// A file descriptor that is closed at the end.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Takes SIGINT, SIGTERM and SIGHUP as data instead of interruptions, for this thread and those it
// starts; gives them back when destroyed.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    fd_ = signalfd(-1, &set_, SFD_CLOEXEC);
  }
  ~Signals() {
    if (fd_ >= 0) close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits for a signal, or until `other` can be read (then 0).
  int Wait(int other) {
    while (true) {
      pollfd polled[] = {{fd_, POLLIN, 0}, {other, POLLIN, 0}};
      if (poll(polled, 2, -1) < 0) continue;
      if ((polled[1].revents & POLLIN) != 0) return 0;
      signalfd_siginfo info;
      if ((polled[0].revents & POLLIN) != 0 && read(fd_, &info, sizeof info) == sizeof info) {
        return static_cast<int>(info.ssi_signo);
      }
    }
  }
  bool ok() const { return fd_ >= 0; }

 private:
  sigset_t set_;
  sigset_t before_;
  int fd_ = -1;
};

uint64_t RandomSeed() { return std::random_device()() | uint64_t{std::random_device()()} << 32; }

// Many connections need many descriptors; the hard limit is what the administrator allows.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Server {
 public:
  Server(const Invocation* invocation, server::Config config)
      : io_(*invocation->io), json_(invocation->json), config_(std::move(config)) {}

  absl::Status Run() {
    Signals signals;
    Fd drained(eventfd(0, EFD_CLOEXEC));
    if (!signals.ok() || drained.get() < 0) return ErrnoStatus(errno, "watching for signals");
    RETURN_IF_ERROR(AddModelsOfStore());
    RETURN_IF_ERROR(OpenLogs());
    RaiseFileLimit();
    RETURN_IF_ERROR(Bind());
    RETURN_IF_ERROR(Start());
    PrintPorts();
    if (WaitForEnd(&signals, drained.get()) == 0) return absl::OkStatus();

    log_->Info("draining: no new requests are taken",
               {{"timeout_s", config_.server.drain_timeout_us / 1'000'000}});
    std::thread drain([this, &drained] {
      Drain();
      const uint64_t one = 1;
      if (write(drained.get(), &one, sizeof one) < 0) std::abort();  // an eventfd takes it
    });
    if (WaitForEnd(&signals, drained.get()) != 0) {
      // Files on disk are complete or removed at the next start, so there is nothing to wait for.
      log_->Warning("ended at once by a second signal");
      std::_Exit(0);
    }
    drain.join();
    log_->Info("ended");
    return absl::OkStatus();
  }

 private:
  // Without models in the configuration, those of the store are served under their own names.
  absl::Status AddModelsOfStore() {
    if (!config_.models.empty()) return absl::OkStatus();
    const weights::ModelStore store(StoreFolder(config_));
    ASSIGN_OR_RETURN(std::vector<weights::StoredModel> stored, store.List());
    for (const weights::StoredModel& entry : stored) {
      server::ModelConfig model;
      model.name = entry.name;
      model.source = entry.name;
      if (server::CheckModelName(model.name).ok()) config_.models.push_back(std::move(model));
    }
    if (!config_.models.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format(
        "there is no model to serve: give --model NAME=FILE, list models in terrace.yaml, or "
        "`terrace pull` some into {}",
        store.folder()));
  }

  absl::Status OpenLogs() {
    LogOptions options;
    ASSIGN_OR_RETURN(options.level, ParseLogLevel(config_.log.level));
    ASSIGN_OR_RETURN(options.format, ParseLogFormat(config_.log.format));
    options.path = config_.log.file;
    ASSIGN_OR_RETURN(log_, OpenLog(options, clock_));
    access_log_ = std::make_unique<NullLogger>();
    if (config_.log.access.empty()) return absl::OkStatus();
    options.level = LogLevel::kInfo;
    options.path = config_.log.access;
    ASSIGN_OR_RETURN(access_log_, OpenLog(options, clock_));
    return absl::OkStatus();
  }

  absl::Status Bind() {
    server::HttpOptions options;
    options.endpoints.push_back({.host = config_.server.host,
                                 .port = static_cast<uint16_t>(config_.server.port),
                                 .door = server::Door::kApi});
    if (config_.server.metrics_port >= 0) {
      options.endpoints.push_back({.host = config_.server.host,
                                   .port = static_cast<uint16_t>(config_.server.metrics_port),
                                   .door = server::Door::kMetrics});
    }
    options.max_body_bytes = config_.server.max_body_bytes;
    options.id_seed = RandomSeed();
    ASSIGN_OR_RETURN(http_,
                     server::HttpServer::Bind(std::move(options), {.clock = &clock_,
                                                                   .access_log = access_log_.get(),
                                                                   .runtime_log = log_.get(),
                                                                   .metrics = &metrics_}));
    return absl::OkStatus();
  }

  absl::Status Start() {
    ASSIGN_OR_RETURN(runtime_, Runtime::Create(config_));
    runtime_->SetNotice([this](const std::string& subject, const std::string& message) {
      log_->Warning(message, {{"about", subject}});
    });
    const device::DeviceInfo& device = runtime_->device().info();
    log_->Info("device ready", {{"device", device.name},
                                {"chip", device.description},
                                {"kernels", runtime_->backend().name()},
                                {"threads", runtime_->team().size()},
                                {"budget", FormatBytes(runtime_->device_budget_bytes())}});
    scheduler::SchedulerOptions scheduling;
    scheduling.max_queue = config_.scheduler.max_queue;
    scheduling.max_batch = config_.scheduler.max_batch;
    scheduling.step_tokens = config_.scheduler.step_tokens;
    scheduling.max_wait_us = config_.scheduler.max_wait_us;
    scheduling.stretch = config_.scheduler.stretch;
    scheduling.cache = &runtime_->kv_cache();
    scheduling.seed = RandomSeed();
    if (!runtime_->kv_note().empty()) {
      log_->Warning("KV is not kept on disk", {{"why", runtime_->kv_note()}});
    }
    scheduler_ = scheduler::Scheduler::Create(scheduling, &runtime_->engine(), &clock_, &metrics_);
    std::vector<server::CatalogEntry> entries;
    for (const server::ModelConfig& model : config_.models) {
      entries.push_back({model.name, [this, &model] { return Open(model); }});
    }
    catalog_ = std::make_unique<server::ModelCatalog>(std::move(entries), scheduler_.get(), &clock_,
                                                      log_.get());
    server::ApiOptions options;
    options.id_seed = RandomSeed();
    handler_ = std::make_unique<server::ApiHandler>(
        options, server::ApiDeps{.models = catalog_.get(),
                                 .scheduler = scheduler_.get(),
                                 .clock = &clock_,
                                 .metrics = &metrics_,
                                 .runtime_log = log_.get(),
                                 .on_scrape = [this] {
                                   absl::MutexLock lock(&scrape_mutex_);
                                   server::UpdateTierMetrics(runtime_->manager().Snapshot(),
                                                             &metrics_);
                                   UpdateDiskMetrics();
                                 }});
    http_->Start(handler_.get());
    catalog_->OpenAll();
    return absl::OkStatus();
  }

  void UpdateDiskMetrics() {
    const storage::DiskBudget* budget = runtime_->disk_budget();
    if (budget != nullptr) {
      metrics_.Set(MetricId::kMemoryBytes, {"disk", "weights"},
                   static_cast<double>(budget->used_bytes()));
    }
    if (const auto* disk = runtime_->kv_cache().store()) {
      metrics_.Set(MetricId::kMemoryBytes, {"disk", "kv"},
                   static_cast<double>(disk->State().bytes));
    }
    const uint64_t cap = budget != nullptr ? config_.storage.disk_bytes : KvDiskBytes(config_);
    if (cap > 0) metrics_.Set(MetricId::kBudgetBytes, {"disk"}, static_cast<double>(cap));
  }

  // A model may be asked for as itself and as a draft of others: all use the same weights.
  absl::StatusOr<std::shared_ptr<engine::EngineModel>> Open(const server::ModelConfig& model) {
    Opened* opened = nullptr;
    {
      absl::MutexLock lock(&opened_mutex_);
      opened = &opened_[model.name];
    }
    absl::MutexLock lock(&opened->mutex);
    std::shared_ptr<engine::EngineModel> shared = opened->model.lock();
    if (shared != nullptr) return shared;
    ASSIGN_OR_RETURN(shared, OpenNew(model));
    opened->model = shared;
    return shared;
  }

  absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenDraft(const std::string& name,
                                                                 const server::ModelConfig& of) {
    server::ModelConfig draft;
    draft.name = name;
    draft.hot_keep_us = of.hot_keep_us;
    for (const server::ModelConfig& model : config_.models) {
      if (model.name == name) draft = model;
    }
    if (draft.speculation.starts_with("draft:") || name == of.name) {
      return absl::InvalidArgumentError(
          fmt::format("the draft {} of {} may not have a draft itself", name, of.name));
    }
    return Open(draft);
  }

  absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenNew(const server::ModelConfig& model) {
    ASSIGN_OR_RETURN(std::string path, FindModel(config_, model.name));
    const int64_t hot_keep_us = model.hot_keep_us.value_or(config_.memory.hot_keep_us);
    engine::EngineModelOptions more = KvOptions(config_, model);
    using Kind = engine::SpeculationOptions::Kind;
    more.speculation.tokens = model.speculation_tokens;
    if (model.speculation == "ngram") more.speculation.kind = Kind::kNgram;
    if (model.speculation.starts_with("draft:")) {
      more.speculation.kind = Kind::kDraft;
      ASSIGN_OR_RETURN(more.speculation.draft, OpenDraft(model.speculation.substr(6), model));
    }
    return runtime_->OpenModel(model.name, path, model.max_context, hot_keep_us, std::move(more),
                               model.sla);
  }

  void PrintPorts() {
    const std::vector<uint16_t> ports = http_->ports();
    if (json_) {
      boost::json::object line = {{"host", config_.server.host}, {"port", ports[0]}};
      line["metrics_port"] = ports.size() > 1 ? boost::json::value(ports[1]) : nullptr;
      *io_.out << boost::json::serialize(line) << std::endl;
      return;
    }
    const std::string host = config_.server.host.find(':') == std::string::npos
                                 ? config_.server.host
                                 : fmt::format("[{}]", config_.server.host);
    *io_.out << fmt::format("API      http://{}:{}/v1\n", host, ports[0]);
    if (ports.size() > 1)
      *io_.out << fmt::format("metrics  http://{}:{}/metrics\n", host, ports[1]);
    *io_.out << std::flush;
  }

  // The signal that ends the server, or 0 when it has drained. SIGHUP means that logs were rotated.
  int WaitForEnd(Signals* signals, int drained) {
    while (true) {
      const int signal = signals->Wait(drained);
      if (signal != SIGHUP) return signal;
      for (Logger* log : {log_.get(), access_log_.get()}) {
        if (absl::Status status = log->Reopen(); !status.ok()) {
          log_->Error("a log could not be opened again", {{"error", Message(status)}});
        }
      }
    }
  }

  void Drain() {
    const int64_t end_us = clock_.NowUs() + config_.server.drain_timeout_us;
    handler_->BeginDrain();
    bool clean = http_->Drain(config_.server.drain_timeout_us);
    clean &= scheduler_->Drain(std::max<int64_t>(0, end_us - clock_.NowUs()));
    if (!clean) log_->Warning("requests were cut off at the end of server.drain_timeout");
    http_->Stop();
  }

  Io& io_;
  const bool json_;
  server::Config config_;
  RealClock clock_;
  Metrics metrics_;
  absl::Mutex scrape_mutex_;  // of on_scrape
  // In the order in which they stand on each other; http_ calls the handler until it is gone.
  std::unique_ptr<Logger> log_;
  std::unique_ptr<Logger> access_log_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  struct Opened {
    absl::Mutex mutex;  // held while it is being opened
    std::weak_ptr<engine::EngineModel> model ABSL_GUARDED_BY(mutex);
  };
  absl::Mutex opened_mutex_;
  std::map<std::string, Opened> opened_ ABSL_GUARDED_BY(opened_mutex_);  // entries stay
  std::unique_ptr<server::ModelCatalog> catalog_;
  std::unique_ptr<server::ApiHandler> handler_;
  std::unique_ptr<server::HttpServer> http_;
};

}  // namespace

void AddServeCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<ConfigOptions>();  // lives as long as the parser's callbacks
  Command command =
      root.Add("serve",
               "Serve models over HTTP until SIGTERM or SIGINT, which let running requests end; a "
               "second one does not. SIGHUP opens the logs again",
               [invocation, options] {
                 absl::StatusOr<server::LoadedConfig> loaded = options->Load(*invocation->io);
                 if (!loaded.ok()) return loaded.status();
                 return Server(invocation, std::move(loaded->config)).Run();
               });
  options->AddTo(command, {"server", "memory", "storage", "scheduler", "kv", "device", "log"});
  options->AddModels(command);
}

}  // namespace terrace::cli
