// terrace serve: the composition root of the server. Ports are bound before anything else is made,
// so that a taken port is told at once and a second server cannot touch the first one's memory or
// disk.
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/config_watch.h"
#include "cli/engine_watch.h"
#include "cli/member_group.h"
#include "cli/model_argument.h"
#include "cli/model_opener.h"
#include "cli/port_lines.h"
#include "cli/runtime.h"
#include "cli/serve_config.h"
#include "cli/signals.h"
#include "cli/supervisor.h"
#include "obs/log.h"
#include "obs/log_ring.h"
#include "obs/metrics.h"
#include "obs/trace.h"
#include "parallel/mpi.h"
#include "scheduler/scheduler.h"
#include "server/admin.h"
#include "server/api_handler.h"
#include "server/api_keys.h"
#include "server/engine_view.h"
#include "server/front.h"
#include "server/grpc_server.h"
#include "server/http_server.h"
#include "server/kserve.h"
#include "server/kserve_http.h"
#include "server/model_catalog.h"
#include "server/ollama.h"
#include "server/page_profile.h"
#include "server/tier_metrics.h"
#include "server/tls.h"
#include "server/version_router.h"
#include "weights/model_store.h"
#include "weights/object_source.h"

namespace terrace::cli {
namespace {

// The last requests that /admin/traces can show, and lines of the log that the console can.
constexpr size_t kTracesKept = 2000;
constexpr size_t kLinesKept = 500;
// After a hang: how long clients have to take the news, and when they are told to try again.
constexpr std::chrono::milliseconds kTellTime(300);
constexpr int64_t kMostTellUs = 500'000;
constexpr int kRestartSeconds = 2;

uint64_t RandomSeed() { return std::random_device()() | uint64_t{std::random_device()()} << 32; }

class Server {
 public:
  // `options` reads the configuration again when its file changes.
  Server(const Invocation* invocation, const ConfigOptions* options, server::Config config,
         Lineage lineage, SupervisorLink* link)
      : io_(*invocation->io),
        json_(invocation->json),
        options_(options),
        config_(std::move(config)),
        config_stamp_(ConfigWatch::StampOf(options->FileName(io_))),
        lineage_(std::move(lineage)),
        link_(link) {}

  absl::Status Run() {
    Signals signals;
    Fd drained(eventfd(0, EFD_CLOEXEC));
    if (!signals.ok() || drained.get() < 0) return ErrnoStatus(errno, "watching for signals");
    RETURN_IF_ERROR(AddModelsOfStore(&config_));
    RETURN_IF_ERROR(OpenLogs());
    PrepareProcess(config_, link_->supervised(), log_.get());
    RETURN_IF_ERROR(Bind());
    RETURN_IF_ERROR(Start());
    StartWatching();
    if (lineage_.last.empty()) PrintPorts();
    NotifyManager("READY=1");
    if (WaitForEnd(&signals, drained.get()) == 0) return absl::OkStatus();

    StopWatching();
    NotifyManager("STOPPING=1");
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
  absl::Status OpenLogs() {
    LogOptions options;
    ASSIGN_OR_RETURN(options.level, ParseLogLevel(config_.log.level));
    ASSIGN_OR_RETURN(options.format, ParseLogFormat(config_.log.format));
    options.path = config_.log.file;
    ASSIGN_OR_RETURN(std::unique_ptr<Logger> log, OpenLog(options, clock_));
    log_ = std::make_unique<LogRing>(std::move(log), &clock_, kLinesKept);
    access_log_ = std::make_unique<NullLogger>();
    if (config_.log.access.empty()) return absl::OkStatus();
    options.level = LogLevel::kInfo;
    options.path = config_.log.access;
    ASSIGN_OR_RETURN(access_log_, OpenLog(options, clock_));
    return absl::OkStatus();
  }

  absl::Status Bind() {
    server::HttpOptions options;
    auto add = [&](const std::string& host, int32_t port, server::Door door) {
      if (port < 0) return;
      endpoints_.push_back(fmt::format("{} {} {}", host, port, static_cast<int>(door)));
      const auto inherited = lineage_.listening.find(endpoints_.back());
      options.endpoints.push_back(
          {.host = host,
           .port = static_cast<uint16_t>(port),
           .door = door,
           .listening = inherited == lineage_.listening.end() ? -1 : inherited->second});
      doors_.push_back(door);
    };
    add(config_.server.host, config_.server.port, server::Door::kApi);
    add(config_.server.host, config_.server.metrics_port, server::Door::kMetrics);
    add(config_.server.admin_host, config_.server.admin_port, server::Door::kAdmin);
    options.max_body_bytes = config_.server.max_body_bytes;
    options.allowed_origins = SplitList(config_.server.cors_origins);
    options.id_seed = RandomSeed();
    if (config_.tls.certificate.empty() != config_.tls.key.empty()) {
      return absl::InvalidArgumentError("tls.certificate and tls.key go together; set both");
    }
    if (!config_.tls.certificate.empty()) {
      ASSIGN_OR_RETURN(tls_, server::TlsFiles::Open(config_.tls.certificate, config_.tls.key,
                                                    &clock_, log_.get()));
    }
    ASSIGN_OR_RETURN(
        http_, server::HttpServer::Bind(
                   std::move(options), {.clock = &clock_,
                                        .access_log = access_log_.get(),
                                        .runtime_log = log_.get(),
                                        .metrics = &metrics_,
                                        .traces = &traces_,
                                        .on_done =
                                            [this](const server::AccessRecord& record, int status) {
                                              if (router_ != nullptr)
                                                router_->Report(record.model, status);
                                            },
                                        .tls = tls_.get()}));
    if (config_.server.grpc_port >= 0) RETURN_IF_ERROR(BindGrpc());
    HandOver();
    return absl::OkStatus();
  }

  // What a server runs without, said once.
  void TellNotes() {
    if (!runtime_->device_note().empty()) {
      log_->Warning("The device has not all operators", {{"what", runtime_->device_note()}});
    }
    if (!runtime_->kv_note().empty()) {
      log_->Warning("KV is not kept on disk", {{"why", runtime_->kv_note()}});
    }
  }

  absl::Status BindGrpc() {
    // Of any free port it is the one that clients know from before.
    const auto port = static_cast<uint16_t>(config_.server.grpc_port);
    ASSIGN_OR_RETURN(grpc_,
                     server::GrpcServer::Bind({.host = config_.server.host,
                                               .port = port == 0 ? lineage_.grpc_port : port,
                                               .max_message_bytes = config_.server.max_body_bytes,
                                               .certificate = config_.tls.certificate,
                                               .private_key = config_.tls.key}));
    return absl::OkStatus();
  }

  // Gives the open sockets to the supervisor, and lets go of those that are no longer asked for.
  void HandOver() {
    std::map<std::string, int> sockets;
    const std::vector<int> listeners = http_->listeners();
    for (size_t i = 0; i < listeners.size(); ++i) sockets[endpoints_[i]] = listeners[i];
    for (const auto& [name, socket] : lineage_.listening) {
      if (!sockets.contains(name)) close(socket);
    }
    link_->Listening(sockets, grpc_ != nullptr ? grpc_->port() : 0);
  }

  absl::Status Start() {
    ASSIGN_OR_RETURN(runtime_, Runtime::Create(config_));
    runtime_->SetNotice([this](const std::string& subject, const std::string& message) {
      log_->Warning(message, {{"about", subject}});
    });
    TellLineage();
    const device::DeviceInfo& device = runtime_->device().info();
    log_->Info("device ready", {{"device", device.name},
                                {"chip", device.description},
                                {"kernels", runtime_->backend().name()},
                                {"threads", runtime_->team().size()},
                                {"budget", FormatBytes(runtime_->device_budget_bytes())}});
    scheduler::SchedulerOptions scheduling = Scheduling(config_);
    scheduling.cache = &runtime_->kv_cache();
    scheduling.seed = RandomSeed();
    TellNotes();
    scheduler_ = scheduler::Scheduler::Create(scheduling, &runtime_->engine(), &clock_, &metrics_);
    view_ = std::make_unique<server::EngineView>(
        server::EngineViewDeps{.clock = &clock_,
                               .queue = [this] { return scheduler_->State(); },
                               .tiers = [this] { return runtime_->manager().Snapshot(); }});
    opener_ = std::make_unique<ModelOpener>(runtime_.get());
    catalog_ = std::make_unique<server::ModelCatalog>(
        Entries(std::make_shared<const server::Config>(config_)), scheduler_.get(), &clock_,
        log_.get(), Actions());
    router_ = std::make_unique<server::VersionRouter>(
        [this](std::string_view model) { return IsWarm(model); }, log_.get(), &metrics_);
    router_->Set(Trials(config_));
    server::ApiOptions options;
    options.id_seed = RandomSeed();
    handler_ = std::make_unique<server::ApiHandler>(
        options,
        server::ApiDeps{
            .models = catalog_.get(),
            .scheduler = scheduler_.get(),
            .clock = &clock_,
            .metrics = &metrics_,
            .runtime_log = log_.get(),
            .route = [this](const server::HttpRequest& request,
                            const std::string& name) { return router_->Route(request, name); },
            .on_scrape =
                [this] {
                  absl::MutexLock lock(&scrape_mutex_);
                  UpdateGroupMetrics(runtime_->group(), &metrics_);
                  // What hangs may be a disk.
                  if (server::UpdateTierMetrics(view_.get(), &metrics_)) UpdateDiskMetrics();
                  server::UpdateSensorMetrics(sensors_->Latest(), &metrics_);
                }});
    RETURN_IF_ERROR(StartFront());
    catalog_->OpenAll();
    runtime_->StartScrubbing(config_.storage.scrub_us);
    return absl::OkStatus();
  }

  // Why this is not the first server, if it is not.
  void TellLineage() {
    if (!lineage_.last.empty()) {
      log_->Warning(
          "started again after the server before this one ended",
          {{"why", lineage_.last}, {"crashes", lineage_.crashes}, {"hangs", lineage_.hangs}});
    }
    metrics_.Count(MetricId::kRestarts, {"crash"}, lineage_.crashes);
    metrics_.Count(MetricId::kRestarts, {"hang"}, lineage_.hangs);
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
    const tier::ScrubState scrubbed = runtime_->scrubbed();
    metrics_.CounterFor(MetricId::kScrubbedBytes).RaiseTo(static_cast<double>(scrubbed.bytes));
    metrics_.CounterFor(MetricId::kScrubDamage).RaiseTo(static_cast<double>(scrubbed.damaged));
    const uint64_t cap = budget != nullptr ? config_.storage.disk_bytes : KvDiskBytes(config_);
    if (cap > 0) metrics_.Set(MetricId::kBudgetBytes, {"disk"}, static_cast<double>(cap));
  }

  // The protocols beside OpenAI's, and the door before all of them.
  absl::Status StartFront() {
    kserve_ = std::make_unique<server::kserve::Service>(
        server::kserve::ServiceDeps{.api = handler_.get(),
                                    .models = catalog_.get(),
                                    .control = catalog_.get(),
                                    .clock = &clock_,
                                    .ready = [this] { return handler_->ready(); }});
    kserve_http_ = std::make_unique<server::kserve::HttpApi>(kserve_.get());
    ollama_ = std::make_unique<server::OllamaApi>(
        server::OllamaDeps{.api = handler_.get(),
                           .models = catalog_.get(),
                           .control = catalog_.get(),
                           .clock = &clock_,
                           .tiers = [this] { return view_->Tiers(); }});
    sensors_ = std::make_unique<server::Sensors>(
        server::SensorDeps{.clock = &clock_, .device = &runtime_->device(), .view = view_.get()});
    keys_ = std::make_unique<server::KeyRing>(KeysFile(config_), &clock_, log_.get());
    server::FrontOptions options;
    ASSIGN_OR_RETURN(options.allow, server::CidrList::Parse(config_.server.allow));
    ASSIGN_OR_RETURN(options.admin_allow, server::CidrList::Parse(config_.server.admin_allow));
    ASSIGN_OR_RETURN(options.metrics_allow, server::CidrList::Parse(config_.server.metrics_allow));
    options.keys_needed = KeysNeeded();
    admin_ = std::make_unique<server::Admin>(
        server::AdminDeps{.openai = handler_.get(),
                          .models = catalog_.get(),
                          .control = catalog_.get(),
                          .versions = router_.get(),
                          .clock = &clock_,
                          .traces = &traces_,
                          .log = log_.get(),
                          .device = runtime_->device().info().name,
                          .tiers = [this] { return view_->Tiers(); },
                          .queue = [this] { return view_->Queue(); },
                          .reload = [this] { return Reload(); },
                          .sensors = [this] { return sensors_->Latest(); },
                          .pages =
                              [this](const std::string& model, size_t cells) {
                                return server::PageProfileJson(
                                    runtime_->manager(), runtime_->page_trace(), model, cells);
                              }});
    front_ = std::make_unique<server::Front>(std::move(options),
                                             server::FrontDeps{.openai = handler_.get(),
                                                               .kserve = kserve_http_.get(),
                                                               .ollama = ollama_.get(),
                                                               .admin = admin_.get(),
                                                               .keys = keys_.get(),
                                                               .runtime_log = log_.get()});
    http_->Start(front_.get());
    if (grpc_ != nullptr) {
      grpc_->Start(
          {.service = kserve_.get(),
           .admit = [this](server::HttpRequest* request,
                           bool needs_admin) { return front_->Admit(needs_admin, request); },
           .clock = &clock_,
           .access_log = access_log_.get(),
           .metrics = &metrics_});
    }
    return absl::OkStatus();
  }

  bool IsWarm(std::string_view name) {
    const tier::TierSnapshot tiers = view_->Tiers();
    for (const tier::ModelState& model : tiers.models) {
      // All but what a long prompt may have pushed out for a moment.
      if (model.name == name) return model.resident_bytes >= model.bytes - model.bytes / 20;
    }
    return false;
  }

  // Reads the configuration again and applies its models. Whatever is wrong with it, what runs goes
  // on as before.
  absl::Status Reload() {
    absl::MutexLock lock(&reload_mutex_);
    absl::Status status = ReloadLocked();
    metrics_.Count(MetricId::kConfigReloads, {status.ok() ? "ok" : "error"});
    if (!status.ok()) {
      log_->Error("the changed configuration is not used", {{"why", Message(status)}});
    }
    return status;
  }

  absl::Status ReloadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_) {
    ASSIGN_OR_RETURN(server::LoadedConfig loaded, options_->Load(io_));
    auto config = std::make_shared<const server::Config>(std::move(loaded.config));
    if (config->models.empty()) {
      return absl::InvalidArgumentError("the configuration has no models any more");
    }
    for (const server::ModelConfig& model : config->models) {
      absl::StatusOr<std::string> path = FindModel(*config, model.name);
      std::error_code error;
      if (path.ok() && !weights::IsObject(*path) && !std::filesystem::exists(*path, error)) {
        path = absl::NotFoundError(fmt::format("there is no file {}", *path));
      }
      if (!path.ok()) return WithContext(path.status(), "model " + model.name);
    }
    for (const server::ConfigKey& key : server::ConfigKeys()) {
      if (key.get(*config) == key.get(config_)) continue;
      log_->Warning("a changed key takes effect at the next start",
                    {{"key", key.name}, {"now", key.get(config_)}, {"then", key.get(*config)}});
    }
    router_->Set(Trials(*config));
    scheduler_->SetTenants(Tenants(*config));
    for (const std::string& change : catalog_->Update(Entries(config))) {
      log_->Info("the configuration changed a model", {{"change", change}});
    }
    return absl::OkStatus();
  }

  void StartWatching() {
    if (const std::string file = options_->FileName(io_); !file.empty()) {
      config_watch_ =
          std::make_unique<ConfigWatch>(file, config_stamp_, [this] { (void)Reload(); });
    }
    engine_watch_ = std::make_unique<EngineWatch>(
        config_.watchdog.timeout_us,
        EngineWatchDeps{&clock_, link_, view_.get(), scheduler_.get(), [this] { EndHung(); }});
  }

  void StopWatching() {
    link_->Stopping();
    config_watch_.reset();
    engine_watch_.reset();
  }

  // Ends the process, with what its clients wait for answered: nothing else gives the memory and
  // the threads of a hung engine back.
  void EndHung() {
    log_->Error("the engine hangs: it makes no progress and gives no sign of life; ending",
                {{"timeout_s", static_cast<double>(config_.watchdog.timeout_us) * 1e-6}});
    handler_->BeginDrain();
    http_->FailAll({.status = 503,
                    .code = "engine_restart",
                    .message = "The engine hung and is being restarted; try again in a moment.",
                    .retry_after_s = kRestartSeconds});
    http_->Drain(kMostTellUs);  // until all that was asked over HTTP is answered
    std::this_thread::sleep_for(kTellTime);
    std::_Exit(kHungStatus);
  }

  // Beyond this machine nobody is served without a key, unless the operator says so.
  server::KeysNeeded KeysNeeded() const {
    if (config_.auth.required == "always") return server::KeysNeeded::kAlways;
    if (config_.auth.required == "never") return server::KeysNeeded::kNever;
    const bool loopback =
        config_.server.host == "localhost" || server::IsLoopbackAddress(config_.server.host);
    const bool admin_loopback = config_.server.admin_port < 0 ||
                                config_.server.admin_host == "localhost" ||
                                server::IsLoopbackAddress(config_.server.admin_host);
    if (loopback && admin_loopback) return server::KeysNeeded::kAuto;
    if (keys_->empty()) {
      log_->Warning(
          "the server listens beyond this machine and there are no API keys, so that every request "
          "is refused: make one with `terrace key add`",
          {{"keys", KeysFile(config_)}});
    }
    return server::KeysNeeded::kAlways;
  }

  // What the catalog does with weights.
  server::CatalogActions Actions() {
    server::CatalogActions actions;
    actions.bring = [this](engine::EngineModel& model) {
      const weights::ModelWeights& weights = model.weights();
      runtime_->manager().Prefetch(weights.tier_id(), 0,
                                   static_cast<uint32_t>(weights.segments().size()),
                                   tier::Priority::kPredicted);
    };
    actions.evict = [this](engine::EngineModel& model) {
      runtime_->manager().EvictModel(model.weights().tier_id());
    };
    actions.evict_adapter = [this](const engine::Adapter& adapter) {
      runtime_->manager().EvictModel(adapter.weights().tier_id());
    };
    return actions;
  }

  // The configuration is shared with the openings that come later.
  std::vector<server::CatalogEntry> Entries(std::shared_ptr<const server::Config> config) {
    std::vector<server::CatalogEntry> entries;
    for (const server::ModelConfig& model : config->models) {
      entries.push_back({model.name, EntrySettings(*config, model),
                         [this, config, model] { return opener_->OpenEntry(*config, model); },
                         model.rerank});
    }
    return entries;
  }

  static std::vector<server::Trial> Trials(const server::Config& config) {
    std::vector<server::Trial> trials;
    for (const server::ModelConfig& model : config.models) {
      if (model.traffic > 0) trials.push_back({model.name, model.traffic, model.rollback_errors});
    }
    return trials;
  }

  void PrintPorts() {
    PortLines lines{.host = config_.server.host,
                    .admin_host = config_.server.admin_host,
                    .secure = tls_ != nullptr};
    const std::vector<uint16_t> ports = http_->ports();
    for (size_t i = 0; i < ports.size(); ++i) {
      if (doors_[i] == server::Door::kApi) lines.port = ports[i];
      if (doors_[i] == server::Door::kMetrics) lines.metrics = ports[i];
      if (doors_[i] == server::Door::kAdmin) lines.admin = ports[i];
    }
    if (grpc_ != nullptr) lines.grpc = grpc_->port();
    *io_.out << (json_ ? lines.Json() : lines.Text()) << std::flush;
  }

  // The signal that ends the server, or 0 when it has drained. SIGHUP means that logs were rotated.
  int WaitForEnd(Signals* signals, int drained) {
    while (true) {
      const int signal = signals->Wait(drained);
      if (signal != SIGHUP) return signal;
      for (Logger* log : std::initializer_list<Logger*>{log_.get(), access_log_.get()}) {
        if (absl::Status status = log->Reopen(); !status.ok()) {
          log_->Error("a log could not be opened again", {{"error", Message(status)}});
        }
      }
    }
  }

  void Drain() {
    const int64_t end_us = clock_.NowUs() + config_.server.drain_timeout_us;
    handler_->BeginDrain();
    // What is under way over gRPC ends first; meanwhile HTTP refuses in words.
    if (grpc_ != nullptr) grpc_->Stop(config_.server.drain_timeout_us);
    bool clean = http_->Drain(std::max<int64_t>(0, end_us - clock_.NowUs()));
    clean &= scheduler_->Drain(std::max<int64_t>(0, end_us - clock_.NowUs()));
    if (!clean) log_->Warning("requests were cut off at the end of server.drain_timeout");
    if (absl::Status saved = runtime_->history().Save(); !saved.ok()) {
      log_->Warning("when models were used is not kept", {{"why", Message(saved)}});
    }
    http_->Stop();
  }

  Io& io_;
  const bool json_;
  const ConfigOptions* const options_;
  server::Config config_;  // as at the start
  const std::string config_stamp_;
  absl::Mutex reload_mutex_;
  const Lineage lineage_;
  SupervisorLink* const link_;
  std::unique_ptr<ConfigWatch> config_watch_;
  std::unique_ptr<EngineWatch> engine_watch_;
  RealClock clock_;
  Metrics metrics_;
  TraceBuffer traces_{kTracesKept};
  absl::Mutex scrape_mutex_;  // of on_scrape
  // In the order in which they stand on each other; http_ calls the handler until it is gone.
  std::unique_ptr<LogRing> log_;
  std::unique_ptr<Logger> access_log_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  std::unique_ptr<server::EngineView> view_;
  std::unique_ptr<ModelOpener> opener_;
  std::unique_ptr<server::ModelCatalog> catalog_;
  std::unique_ptr<server::VersionRouter> router_;
  std::unique_ptr<server::ApiHandler> handler_;
  std::unique_ptr<server::kserve::Service> kserve_;
  std::unique_ptr<server::kserve::HttpApi> kserve_http_;
  std::unique_ptr<server::OllamaApi> ollama_;
  std::unique_ptr<server::KeyRing> keys_;
  std::unique_ptr<server::TlsFiles> tls_;
  std::unique_ptr<server::Sensors> sensors_;
  std::unique_ptr<server::Admin> admin_;
  std::unique_ptr<server::Front> front_;
  std::unique_ptr<server::GrpcServer> grpc_;
  std::unique_ptr<server::HttpServer> http_;
  // Of the HTTP server's ports, in order.
  std::vector<server::Door> doors_;
  std::vector<std::string> endpoints_;  // how they are asked for
};

absl::Status Serve(const Invocation* invocation, const ConfigOptions* options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options->Load(*invocation->io));
  if (IsFollowingProcess()) return FollowLeader(loaded.config, invocation->io);
  // What mpirun has started cannot join its group a second time.
  if (!loaded.config.server.supervise || parallel::MpiProcesses() > 1) {
    SupervisorLink alone(-1);
    return Server(invocation, options, std::move(loaded.config), {}, &alone).Run();
  }
  return Supervise([&](const Lineage& lineage, SupervisorLink* link) {
    if (!lineage.last.empty()) {
      // What the file says by now, as a reload would have had it; else what it said at first.
      absl::StatusOr<server::LoadedConfig> again = options->Load(*invocation->io);
      if (again.ok()) loaded = *std::move(again);
    }
    return Server(invocation, options, std::move(loaded.config), lineage, link).Run();
  });
}

}  // namespace

void AddServeCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<ConfigOptions>();  // lives as long as the parser's callbacks
  Command command =
      root.Add("serve",
               "Serve models over HTTP until SIGTERM or SIGINT, which let running requests end; a "
               "second one does not. SIGHUP opens the logs again",
               [invocation, options] { return Serve(invocation, options.get()); });
  options->AddTo(
      command, {"server", "auth", "tls", "memory", "storage", "scheduler", "kv", "device", "log"});
  options->AddModels(command);
}

}  // namespace terrace::cli
