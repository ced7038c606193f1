#include "server/model_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "engine/adapter.h"
#include "engine/engine_model.h"
#include "obs/log.h"
#include "scheduler/scheduler.h"

namespace terrace::server {
namespace {

// Two, so that one model whose source is slow does not hold up the others.
constexpr int kOpeners = 2;
// A model that has just failed is not tried again for each of many requests.
constexpr int64_t kRetryUs = 100'000;

// Whether a model ranks by judging. A checkpoint says so in its name only.
bool Judges(const CatalogEntry& entry, const Metadata& metadata) {
  if (entry.rerank != "auto") return entry.rerank == "judge";
  for (std::string name : {entry.name, metadata.GetString("general.name", "").value_or("")}) {
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (name.find("rerank") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

ModelCatalog::ModelCatalog(std::vector<CatalogEntry> entries, scheduler::Scheduler* scheduler,
                           const Clock* clock, Logger* log, CatalogActions actions)
    : scheduler_(scheduler),
      clock_(clock),
      log_(log),
      actions_(std::move(actions)),
      pool_(kOpeners) {
  absl::MutexLock lock(&mutex_);
  for (CatalogEntry& entry : entries) {
    slots_.push_back(std::make_shared<Slot>());
    slots_.back()->entry = std::move(entry);
  }
}

ModelCatalog::~ModelCatalog() = default;

ModelCatalog::SlotPtr ModelCatalog::FindLocked(std::string_view name) {
  for (const SlotPtr& slot : slots_) {
    if (slot->entry.name == name) return slot;
  }
  return nullptr;
}

absl::Status ModelCatalog::UnknownLocked(std::string_view name) {
  std::vector<std::string> names;
  for (const SlotPtr& each : slots_) names.push_back(each->entry.name);
  const std::string nearest = NearestName(name, names);
  return absl::NotFoundError(
      fmt::format("There is no model \"{}\"; this server has: {}.{}", name, fmt::join(names, ", "),
                  nearest.empty() ? "" : fmt::format(" Did you mean \"{}\"?", nearest)));
}

void ModelCatalog::BeginLocked(const SlotPtr& slot) {
  slot->state = ModelStateKind::kOpening;
  if (!slot->closing) pool_.Post([this, slot] { OpenNow(slot); });
}

void ModelCatalog::OpenAll() {
  absl::MutexLock lock(&mutex_);
  for (const SlotPtr& slot : slots_) {
    if (slot->state == ModelStateKind::kClosed) BeginLocked(slot);
  }
}

std::shared_ptr<const ServedModel> ModelCatalog::TryGet(std::string_view name) {
  absl::MutexLock lock(&mutex_);
  const SlotPtr slot = FindLocked(name);
  return slot == nullptr ? nullptr : slot->model;
}

void ModelCatalog::Open(std::string_view name, OpenCallback done) {
  absl::StatusOr<std::shared_ptr<const ServedModel>> now;
  {
    absl::MutexLock lock(&mutex_);
    const SlotPtr slot = FindLocked(name);
    if (slot == nullptr) {
      now = UnknownLocked(name);
    } else if (slot->state == ModelStateKind::kReady) {
      now = slot->model;
    } else if (slot->state == ModelStateKind::kUnloaded) {
      now = absl::FailedPreconditionError(
          fmt::format("The model {} has been unloaded; load it again to use it.", name));
    } else if (slot->state == ModelStateKind::kFailed &&
               clock_->NowUs() - slot->failed_us < kRetryUs) {
      now = slot->reason;
    } else {
      slot->waiting.push_back(std::move(done));
      if (slot->state != ModelStateKind::kOpening) BeginLocked(slot);
      return;
    }
  }
  done(now);
}

void ModelCatalog::Load(std::string_view name, std::function<void(absl::Status)> done) {
  auto bring = [this, name = std::string(name), done = std::move(done)](const auto& opened) {
    SlotPtr slot;
    {
      absl::MutexLock lock(&mutex_);
      slot = FindLocked(name);
    }
    if (opened.ok() && slot != nullptr) Act(slot, actions_.bring);
    done(opened.status());
  };
  {
    absl::MutexLock lock(&mutex_);
    const SlotPtr slot = FindLocked(name);
    // Tried again at once, however short ago it failed: somebody asks for it by hand.
    if (slot != nullptr &&
        (slot->state == ModelStateKind::kUnloaded || slot->state == ModelStateKind::kFailed)) {
      slot->waiting.push_back(std::move(bring));
      BeginLocked(slot);
      return;
    }
  }
  Open(name, std::move(bring));
}

void ModelCatalog::Unload(std::string_view name, std::function<void(absl::Status)> done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const SlotPtr slot = FindLocked(name);
    if (slot == nullptr) {
      status = UnknownLocked(name);
    } else if (slot->state == ModelStateKind::kOpening) {
      status = absl::UnavailableError(
          fmt::format("The model {} is being opened; unload it in a moment.", name));
    } else if (slot->state == ModelStateKind::kReady) {
      slot->state = ModelStateKind::kUnloaded;
      return CloseLocked(slot, std::move(done));
    } else {
      slot->state = ModelStateKind::kUnloaded;
    }
  }
  done(status);
}

void ModelCatalog::CloseLocked(const SlotPtr& slot, std::function<void(absl::Status)> done) {
  slot->model.reset();
  slot->closing = true;
  closer_.Post([this, slot, done = std::move(done)] {
    CloseNow(slot);
    if (done) done(absl::OkStatus());
  });
}

void ModelCatalog::CloseNow(const SlotPtr& slot) {
  // NotFound only if it was never registered, which a ready slot was.
  if (absl::Status status = scheduler_->RemoveModel(slot->entry.name); !status.ok()) {
    log_->Error(Message(status), {{"model", slot->entry.name}});
  }
  std::shared_ptr<engine::EngineModel> engine;  // destroyed outside the lock
  std::shared_ptr<const engine::Adapter> adapter;
  SlotPtr next;
  {
    absl::MutexLock lock(&mutex_);
    // The name is free for the next opening only once nobody holds this model.
    auto unused = [&slot] { return slot->users == 0; };
    mutex_.Await(absl::Condition(&unused));
    engine.swap(slot->engine);
    adapter.swap(slot->adapter);
    slot->closing = false;
    // Asked for meanwhile, or replaced by an entry of the same name.
    next = slot->gone ? FindLocked(slot->entry.name) : slot;
    if (next != nullptr) next->closing = false;
  }
  adapter.reset();
  engine.reset();
  log_->Info("model closed", {{"model", slot->entry.name}});
  absl::MutexLock lock(&mutex_);
  if (next != nullptr && next->state == ModelStateKind::kOpening) {
    pool_.Post([this, next] { OpenNow(next); });
  }
}

void ModelCatalog::Act(const SlotPtr& slot,
                       const std::function<void(engine::EngineModel&)>& action) {
  engine::EngineModel* engine;
  {
    absl::MutexLock lock(&mutex_);
    engine = slot->engine.get();
    if (engine == nullptr || !action) return;
    ++slot->users;
  }
  action(*engine);
  absl::MutexLock lock(&mutex_);
  --slot->users;
}

absl::Status ModelCatalog::Evict(std::string_view name) {
  SlotPtr slot;
  bool is_adapter = false;
  {
    absl::MutexLock lock(&mutex_);
    slot = FindLocked(name);
    if (slot == nullptr) return UnknownLocked(name);
    is_adapter = slot->adapter != nullptr;
  }
  if (!is_adapter) {
    Act(slot, actions_.evict);
  } else if (actions_.evict_adapter) {
    Act(slot, [&](engine::EngineModel&) { actions_.evict_adapter(*slot->adapter); });
  }
  return absl::OkStatus();
}

std::vector<std::string> ModelCatalog::Update(std::vector<CatalogEntry> entries) {
  std::vector<std::string> changes;
  absl::MutexLock lock(&mutex_);
  std::vector<SlotPtr> before = std::move(slots_);
  slots_.clear();
  for (CatalogEntry& entry : entries) {
    auto found = std::find_if(before.begin(), before.end(), [&](const SlotPtr& slot) {
      return slot != nullptr && slot->entry.name == entry.name;
    });
    if (found != before.end() && (*found)->entry.settings == entry.settings) {
      slots_.push_back(std::move(*found));
      continue;
    }
    auto slot = std::make_shared<Slot>();
    slot->entry = std::move(entry);
    slot->closing = found != before.end() && ((*found)->closing || (*found)->model != nullptr ||
                                              (*found)->state == ModelStateKind::kOpening);
    changes.push_back(
        fmt::format("{} {}", found != before.end() ? "changed" : "added", slot->entry.name));
    slots_.push_back(slot);
    BeginLocked(slot);
  }
  for (const SlotPtr& slot : before) {
    if (slot == nullptr) continue;
    slot->gone = true;
    const bool replaced = FindLocked(slot->entry.name) != nullptr;
    if (!replaced) changes.push_back("removed " + slot->entry.name);
    if (slot->state == ModelStateKind::kReady) {
      slot->state = ModelStateKind::kUnloaded;
      CloseLocked(slot, nullptr);
    }
  }
  return changes;
}

absl::StatusOr<ModelCatalog::Opened> ModelCatalog::OpenEntry(const CatalogEntry& entry) {
  ASSIGN_OR_RETURN(OpenedModel opened, entry.open());
  const std::shared_ptr<engine::EngineModel>& model = opened.engine;
  const Metadata& metadata = model->weights().metadata();
  ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> served,
                   ServedModel::Create({.name = entry.name,
                                        .created = clock_->WallUs() / 1'000'000,
                                        .max_context = model->max_context(),
                                        .vocab_size = model->vocab_size(),
                                        .encoder = model->architecture().config().encoder,
                                        .judge = Judges(entry, metadata)},
                                       metadata, clock_));
  auto facts = std::make_shared<ModelFacts>(FactsOf(metadata));
  facts->weight_bytes = model->weights().total_bytes();
  facts->fingerprint = model->weights().fingerprint();
  facts->max_context = model->max_context();
  if (opened.adapter != nullptr) {
    facts->weight_bytes = opened.adapter->weights().total_bytes();
    facts->fingerprint += "+" + opened.adapter->weights().fingerprint();
    RETURN_IF_ERROR(scheduler_->AddAdapter(model, opened.adapter));
  } else {
    RETURN_IF_ERROR(scheduler_->AddModel(model));
  }
  return Opened{std::move(served), std::move(opened), std::move(facts)};
}

void ModelCatalog::OpenNow(const SlotPtr& slot) {
  const int64_t start_us = clock_->NowUs();
  auto loaded = OpenEntry(slot->entry);
  if (loaded.ok()) {
    log_->Info("model opened", {{"model", slot->entry.name},
                                {"us", clock_->NowUs() - start_us},
                                {"context", loaded->served->max_context()}});
    for (const std::string& warning : loaded->served->warnings()) {
      log_->Warning(warning, {{"model", slot->entry.name}});
    }
  } else {
    loaded = absl::Status(loaded.status().code(),
                          fmt::format("The model {} cannot be served: {}", slot->entry.name,
                                      Message(loaded.status())));
    // What callers take for an unknown model is one that is not in the configuration.
    if (absl::IsNotFound(loaded.status())) {
      loaded = absl::FailedPreconditionError(std::string(Message(loaded.status())));
    }
    log_->Error(Message(loaded.status()), {{"model", slot->entry.name}});
  }
  std::vector<OpenCallback> waiting;
  absl::StatusOr<std::shared_ptr<const ServedModel>> answer;
  {
    absl::MutexLock lock(&mutex_);
    waiting.swap(slot->waiting);
    if (loaded.ok()) {
      answer = loaded->served;
      slot->model = loaded->served;
      slot->engine = std::move(loaded->model.engine);
      slot->adapter = std::move(loaded->model.adapter);
      slot->facts = std::move(loaded->facts);
      slot->state = ModelStateKind::kReady;
      slot->reason = absl::OkStatus();
    } else {
      answer = loaded.status();
      slot->state = ModelStateKind::kFailed;
      slot->reason = loaded.status();
      slot->failed_us = clock_->NowUs();
    }
    // It left the configuration while it was being opened.
    if (slot->gone && loaded.ok()) {
      slot->state = ModelStateKind::kUnloaded;
      CloseLocked(slot, nullptr);
    } else if (slot->gone) {
      const SlotPtr next = FindLocked(slot->entry.name);
      if (next != nullptr && next->closing) {
        next->closing = false;
        pool_.Post([this, next] { OpenNow(next); });
      }
    }
  }
  for (OpenCallback& done : waiting) done(answer);
}

std::vector<ModelListing> ModelCatalog::List() {
  absl::MutexLock lock(&mutex_);
  std::vector<ModelListing> list;
  for (const SlotPtr& slot : slots_) {
    ModelListing listing{.name = slot->entry.name, .state = slot->state, .facts = slot->facts};
    if (slot->state == ModelStateKind::kFailed) listing.reason = Message(slot->reason);
    if (slot->state == ModelStateKind::kUnloaded) listing.reason = "unloaded";
    if (slot->model != nullptr) {
      listing.created = slot->model->created();
      listing.max_context = slot->model->max_context();
    }
    list.push_back(std::move(listing));
  }
  return list;
}

}  // namespace terrace::server
