#include "cli/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "cli/config_options.h"
#include "cli/device_choice.h"
#include "cli/member_group.h"
#include "cli/model_argument.h"
#include "device/cpu/cpu_info.h"
#include "engine/member.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"
#include "parallel/mpi.h"
#include "weights/model_weights.h"
#include "weights/object_source.h"

namespace terrace::cli {
namespace {

std::string KvFolder(const server::Config& config) {
  const std::string& path = config.storage.disk_path;
  return (path.empty() ? server::DefaultDataFolder() : path) + "/kv";
}

// How much more it matters that a model of this class is there when it is asked for.
double SlaWeight(const std::string& sla) {
  if (sla == "realtime") return 4.0;
  return sla == "batch" ? 0.25 : 1.0;
}

absl::StatusOr<uint64_t> ChooseBudget(const server::Config& config, const device::Device& device) {
  const device::MemoryInfo memory = device.GetMemoryInfo();
  if (!config.memory.device_budget_bytes) {
    // A device of its own is all ours; host memory also holds this process's other needs and those
    // of everything else on the machine.
    if (!device.info().unified_memory) return memory.free_bytes;
    return memory.free_bytes -
           std::max(memory.free_bytes / 4, std::min(memory.free_bytes, kGiB / 2));
  }
  // What kernels took for themselves is not to be had.
  const uint64_t most = device.info().unified_memory ? memory.total_bytes : memory.free_bytes;
  if (*config.memory.device_budget_bytes > most) {
    return absl::InvalidArgumentError(fmt::format(
        "memory.device_budget is {}, but the {} device has only {}",
        FormatBytes(*config.memory.device_budget_bytes), device.info().kind, FormatBytes(most)));
  }
  return *config.memory.device_budget_bytes;
}

}  // namespace

uint64_t KvDiskBytes(const server::Config& config) {
  if (config.storage.disk_bytes == 0) return config.kv.disk_bytes;
  return std::min(config.kv.disk_bytes, config.storage.disk_bytes / 4);
}

engine::EngineModelOptions KvOptions(const server::Config& config,
                                     const server::ModelConfig& model) {
  engine::EngineModelOptions options;
  const std::string& dtype = model.kv_dtype.empty() ? config.kv.dtype : model.kv_dtype;
  options.kv_dtype = dtype == "i8" ? ops::KvDType::kI8 : ops::KvDType::kF16;
  return options;
}

absl::StatusOr<std::unique_ptr<ops::Backend>> CreateBackend(const server::Config& config,
                                                            ThreadTeam* team) {
  const std::string& variant = config.device.variant;
  if (variant == "ref") return ops::CreateRefBackend(team);
  absl::StatusOr<std::unique_ptr<ops::Backend>> backend = ops::CreateCpuBackend(
      variant.empty() ? "auto" : variant, team, {.deterministic = config.device.deterministic});
  if (!backend.ok()) return WithContext(backend.status(), "device.variant");
  return backend;
}

ModelTerms TermsOf(const server::ModelConfig& model) {
  return {model.sla, model.sha256, model.tensor_parallel, model.expert_parallel};
}

Runtime::Runtime() = default;
Runtime::~Runtime() = default;

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(const server::Config& config) {
  ASSIGN_OR_RETURN(const int32_t size, GroupSize(config));
  std::unique_ptr<Runtime> runtime;
  if (size == 1) {
    ASSIGN_OR_RETURN(runtime, CreateAlone(config, 1, nullptr));
  } else {
    const bool processes = parallel::MpiProcesses() > 1;
    auto news = std::make_shared<engine::GroupNews>();
    ASSIGN_OR_RETURN(runtime,
                     CreateAlone(ConfigOfMember(config, 0, size), processes ? 1 : size, news));
    ASSIGN_OR_RETURN(runtime->group_,
                     MemberGroup::Create(config, size, runtime->device(), news,
                                         [raw = runtime.get()](const std::string& message) {
                                           raw->Tell("group", message);
                                         }));
    runtime->group_news_ = std::move(news);
    runtime->engine_->set_leader(&runtime->group_->leader());
  }
  RETURN_IF_ERROR(runtime->CreateKvCache(config));
  runtime->history_ = std::make_unique<HistoryKeeper>(DataFolder(config) + "/history.db",
                                                      runtime->manager_.get(), &runtime->clock_);
  return runtime;
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::CreateMember(const server::Config& config,
                                                               int32_t sharers) {
  return CreateAlone(config, sharers, nullptr);
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::CreateAlone(
    const server::Config& config, int32_t sharers, std::shared_ptr<engine::GroupNews> news) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  runtime->SetStorage(config);
  runtime->team_ =
      std::make_unique<ThreadTeam>(config.device.threads > 0 ? config.device.threads : CpuCount());
  ASSIGN_OR_RETURN(
      ChosenDevice chosen,
      ChooseDevice(config, &runtime->clock_, runtime->team_.get(),
                   [raw = runtime.get()](const std::string& what) { raw->Tell("device", what); }));
  runtime->device_ = std::move(chosen.device);
  runtime->backend_ = std::move(chosen.backend);
  runtime->device_note_ = std::move(chosen.note);
  ASSIGN_OR_RETURN(runtime->budget_bytes_, ChooseBudget(config, *runtime->device_));
  if (runtime->device_->info().unified_memory) {
    runtime->budget_bytes_ /= static_cast<uint64_t>(sharers);
  }

  tier::TierManagerOptions options;
  options.device_budget_bytes = runtime->budget_bytes_;
  options.swap_threshold = config.memory.swap_threshold;
  options.read_depth = static_cast<uint32_t>(config.storage.read_depth);
  options.staging_bytes = config.memory.staging_bytes;
  options.host_budget_bytes = config.memory.host_budget_bytes;
  options.eviction_policy = config.memory.eviction_policy;
  options.strict_check = config.memory.strict_check;
  options.decode_slowdown = config.scheduler.decode_slowdown;
  options.link_shares = {config.scheduler.link_shares};
  if (config.memory.expert_upload_bytes > 0) {
    options.expert_upload_bytes = config.memory.expert_upload_bytes;
  }
  if (news != nullptr) {
    options.freed = [news](const std::byte* address) { news->Freed(address); };
  }
  ASSIGN_OR_RETURN(runtime->manager_,
                   tier::TierManager::Create(options, runtime->device_.get(), &runtime->clock_));
  runtime->engine_ = std::make_unique<engine::Engine>(runtime->backend_.get(),
                                                      runtime->manager_.get(), &runtime->clock_);
  if (config.memory.trace_pages) {
    runtime->page_trace_ = std::make_unique<tier::PageTrace>();
    runtime->engine_->set_page_trace(runtime->page_trace_.get());
  }
  return runtime;
}

void Runtime::SetStorage(const server::Config& config) {
  image_folder_ = ImageFolder(config);
  object_folder_ = DataFolder(config) + "/objects";
  environment_ = ObjectEnvironment(config, [](std::string_view variable) -> std::string {
    const char* value = std::getenv(std::string(variable).c_str());
    return value == nullptr ? "" : value;
  });
  object_patience_us_ = config.storage.object_patience_us;
  if (config.storage.disk_bytes == 0) return;
  disk_budget_ = std::make_unique<storage::DiskBudget>(
      std::vector<std::string>{image_folder_, object_folder_, StoreFolder(config)},
      config.storage.disk_bytes - KvDiskBytes(config));
}

absl::Status Runtime::CreateKvCache(const server::Config& config) {
  if (config.kv.disk_bytes > 0) {
    storage::BlockStoreOptions options;
    options.folder = KvFolder(config);
    options.cap_bytes = KvDiskBytes(config);
    options.notice = [this](const std::string& message) { Tell("kv", message); };
    absl::StatusOr<std::unique_ptr<storage::BlockStore>> disk =
        storage::BlockStore::Open(options, &clock_);
    // Without it conversations are computed again; that is no reason not to serve.
    if (disk.ok()) {
      kv_disk_ = *std::move(disk);
    } else {
      kv_note_ = Message(disk.status());
    }
  }
  if (!config.kv.remote.empty()) {
    absl::StatusOr<storage::RemoteStoreOptions> options = storage::ParseRemoteUrl(config.kv.remote);
    if (!options.ok()) return WithContext(options.status(), "kv.remote");
    if (!config.kv.remote_password_file.empty()) {
      std::ifstream in(config.kv.remote_password_file);
      if (!std::getline(in, options->password) || options->password.empty()) {
        return absl::InvalidArgumentError(
            fmt::format("kv.remote_password_file: no password could be read from {}",
                        config.kv.remote_password_file));
      }
    }
    kv_remote_ = std::make_unique<storage::RemoteStore>(*options, &clock_);
  }
  kv_cache_ = std::make_unique<kv::Cache>(manager_.get(), kv_disk_.get(), &clock_);
  kv_cache_->SetRemote(kv_remote_.get());
  if (config.kv.host_bytes > 0 && !manager_->unified()) {
    kv_host_ = std::make_unique<kv::HostStore>(manager_.get(), config.kv.host_bytes);
    kv_cache_->SetHost(kv_host_.get());
  }
  manager_->SetIdleMemory(kv_cache_.get());
  return absl::OkStatus();
}

void Runtime::StartScrubbing(int64_t round_us) {
  if (round_us <= 0) return;
  tier::ScrubOptions options;
  options.round_us = round_us;
  options.notice = [this](const std::string& model, const std::string& message) {
    Tell(model, message);
  };
  scrubber_ = std::make_unique<tier::Scrubber>(manager_.get(), std::move(options));
  scrubber_->Start();
}

tier::ScrubState Runtime::scrubbed() const {
  return scrubber_ == nullptr ? tier::ScrubState() : scrubber_->State();
}

void Runtime::SetNotice(Notice notice) {
  absl::MutexLock lock(&notice_mutex_);
  notice_ = std::move(notice);
  if (!notice_) return;
  for (const auto& [subject, message] : std::exchange(untold_, {})) notice_(subject, message);
}

void Runtime::Tell(const std::string& subject, const std::string& message) {
  absl::MutexLock lock(&notice_mutex_);
  if (notice_) return notice_(subject, message);
  constexpr size_t kMostUntold = 32;
  if (untold_.size() < kMostUntold) untold_.emplace_back(subject, message);
}

weights::OpenOptions Runtime::OpenOptionsOf(const std::string& name, const std::string& path) {
  weights::OpenOptions open;
  open.name = name;
  open.source_path = path;
  open.image_folder = image_folder_;
  open.write_image = write_images_;
  open.object_folder = object_folder_;
  open.object_patience_us = object_patience_us_;
  open.clock = &clock_;
  open.environment = environment_;
  open.disk = disk_budget_.get();
  open.notice = [this, name](const std::string& message) { Tell(name, message); };
  return open;
}

absl::StatusOr<std::shared_ptr<engine::EngineModel>> Runtime::OpenModel(
    const std::string& name, const std::string& path, int32_t max_context, int64_t hot_keep_us,
    engine::EngineModelOptions more, const ModelTerms& terms) {
  weights::OpenOptions open = OpenOptionsOf(name, path);
  open.hot_keep_us = hot_keep_us;
  open.sla_weight = SlaWeight(terms.sla);
  open.sha256 = terms.sha256;
  open.history = history_->Load(name);
  more.name = name;
  more.max_context = max_context;
  if (terms.tensor_parallel > 1 || terms.expert_parallel > 1) {
    return OpenDivided(open, std::move(more), terms);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<weights::ModelWeights> weights,
                   weights::ModelWeights::Open(open, backend_.get(), manager_.get()));
  return engine::EngineModel::Create(std::move(more), std::move(weights));
}

absl::StatusOr<std::shared_ptr<engine::EngineModel>> Runtime::OpenDivided(
    const weights::OpenOptions& open, engine::EngineModelOptions more, const ModelTerms& terms) {
  const int32_t size = std::max(terms.tensor_parallel, terms.expert_parallel);
  if (group_ == nullptr || group()->size() != size) {
    return absl::FailedPreconditionError(
        fmt::format("model '{}' is divided among {} devices, which are made at the start of the "
                    "server: it has to be started again",
                    open.name, size));
  }
  if (weights::IsObject(open.source_path)) {
    return absl::InvalidArgumentError(fmt::format(
        "model '{}' is divided among devices: pull it first, it cannot be served from its URL",
        open.name));
  }
  engine::GroupModel model;
  model.name = open.name;
  model.path = open.source_path;
  model.max_context = more.max_context;
  model.kv_dtype = more.kv_dtype;
  model.tensor = terms.tensor_parallel > 1;
  model.experts = terms.expert_parallel > 1;
  engine::Leader& leader = group_->leader();
  return leader.Open(
      std::move(model),
      [&](const engine::GroupModel& told) -> absl::StatusOr<std::shared_ptr<engine::EngineModel>> {
        weights::OpenOptions mine = open;
        mine.part = engine::PartOfMember({0, size, told.tensor, told.experts});
        more.seat.group = leader.group();
        more.seat.id = told.id;
        more.seat.keeper = std::shared_ptr<const void>(
            static_cast<const void*>(this),
            [news = group_news_, id = told.id](const void*) { news->Closed(id); });
        ASSIGN_OR_RETURN(std::unique_ptr<weights::ModelWeights> weights,
                         weights::ModelWeights::Open(mine, backend_.get(), manager_.get()));
        return engine::EngineModel::Create(std::move(more), std::move(weights));
      });
}

absl::StatusOr<std::shared_ptr<engine::EngineModel>> Runtime::OpenShare(
    const engine::GroupModel& model, parallel::Communicator* group) {
  weights::OpenOptions open = OpenOptionsOf(model.name, model.path);
  open.part = engine::PartOfMember({group->rank(), group->size(), model.tensor, model.experts});
  ASSIGN_OR_RETURN(std::unique_ptr<weights::ModelWeights> weights,
                   weights::ModelWeights::Open(open, backend_.get(), manager_.get()));
  engine::EngineModelOptions more;
  more.name = model.name;
  more.max_context = model.max_context;
  more.kv_dtype = model.kv_dtype;
  more.seat.group = group;
  more.seat.id = model.id;
  return engine::EngineModel::Create(std::move(more), std::move(weights));
}

absl::StatusOr<std::shared_ptr<engine::EngineModel>> Runtime::OpenPart(
    const std::string& name, const std::string& path, engine::EngineModelOptions more,
    const ModelTerms& terms, int32_t rank, int32_t size) {
  weights::OpenOptions open = OpenOptionsOf(name, path);
  open.part =
      engine::PartOfMember({rank, size, terms.tensor_parallel > 1, terms.expert_parallel > 1});
  ASSIGN_OR_RETURN(std::unique_ptr<weights::ModelWeights> weights,
                   weights::ModelWeights::Open(open, backend_.get(), manager_.get()));
  more.name = name;
  return engine::EngineModel::Create(std::move(more), std::move(weights));
}

const parallel::Communicator* Runtime::group() const {
  return group_ == nullptr ? nullptr : group_->leader().group();
}

absl::StatusOr<std::shared_ptr<const engine::Adapter>> Runtime::OpenAdapter(
    const std::string& name, const std::string& path, int64_t hot_keep_us,
    const engine::EngineModel& base, const ModelTerms& terms) {
  return engine::Adapter::Create({.name = name,
                                  .source_path = path,
                                  .hot_keep_us = hot_keep_us,
                                  .sla_weight = SlaWeight(terms.sla)},
                                 base, backend_.get(), manager_.get());
}

}  // namespace terrace::cli
