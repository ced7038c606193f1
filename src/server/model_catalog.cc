#include "server/model_catalog.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "engine/engine_model.h"
#include "obs/log.h"
#include "scheduler/scheduler.h"

namespace terrace::server {
namespace {

// Two, so that one model whose source is slow does not hold up the others.
constexpr int kOpeners = 2;
// A model that has just failed is not tried again for each of many requests.
constexpr int64_t kRetryUs = 100'000;

}  // namespace

ModelCatalog::ModelCatalog(std::vector<CatalogEntry> entries, scheduler::Scheduler* scheduler,
                           const Clock* clock, Logger* log)
    : scheduler_(scheduler), clock_(clock), log_(log), pool_(kOpeners) {
  absl::MutexLock lock(&mutex_);
  for (CatalogEntry& entry : entries) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->entry = std::move(entry);
  }
}

ModelCatalog::~ModelCatalog() = default;

ModelCatalog::Slot* ModelCatalog::FindLocked(std::string_view name) {
  for (const auto& slot : slots_) {
    if (slot->entry.name == name) return slot.get();
  }
  return nullptr;
}

void ModelCatalog::BeginLocked(Slot* slot) {
  slot->state = ModelStateKind::kOpening;
  pool_.Post([this, slot] { OpenNow(slot); });
}

void ModelCatalog::OpenAll() {
  absl::MutexLock lock(&mutex_);
  for (const auto& slot : slots_) {
    if (slot->state == ModelStateKind::kClosed) BeginLocked(slot.get());
  }
}

std::shared_ptr<const ServedModel> ModelCatalog::TryGet(std::string_view name) {
  absl::MutexLock lock(&mutex_);
  const Slot* slot = FindLocked(name);
  return slot == nullptr ? nullptr : slot->model;
}

void ModelCatalog::Open(std::string_view name, OpenCallback done) {
  absl::StatusOr<std::shared_ptr<const ServedModel>> now;
  {
    absl::MutexLock lock(&mutex_);
    Slot* slot = FindLocked(name);
    if (slot == nullptr) {
      std::vector<std::string> names;
      for (const auto& each : slots_) names.push_back(each->entry.name);
      const std::string nearest = NearestName(name, names);
      now = absl::NotFoundError(fmt::format(
          "There is no model \"{}\"; this server has: {}.{}", name, fmt::join(names, ", "),
          nearest.empty() ? "" : fmt::format(" Did you mean \"{}\"?", nearest)));
    } else if (slot->state == ModelStateKind::kReady) {
      now = slot->model;
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

absl::StatusOr<std::shared_ptr<const ServedModel>> ModelCatalog::Load(const CatalogEntry& entry) {
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model, entry.open());
  ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> served,
                   ServedModel::Create({.name = entry.name,
                                        .created = clock_->WallUs() / 1'000'000,
                                        .max_context = model->max_context(),
                                        .vocab_size = model->vocab_size()},
                                       model->weights().metadata(), clock_));
  RETURN_IF_ERROR(scheduler_->AddModel(std::move(model)));
  return served;
}

void ModelCatalog::OpenNow(Slot* slot) {
  const int64_t start_us = clock_->NowUs();
  auto loaded = Load(slot->entry);
  if (loaded.ok()) {
    log_->Info("model opened", {{"model", slot->entry.name},
                                {"us", clock_->NowUs() - start_us},
                                {"context", (*loaded)->max_context()}});
    for (const std::string& warning : (*loaded)->warnings()) {
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
  {
    absl::MutexLock lock(&mutex_);
    waiting.swap(slot->waiting);
    if (loaded.ok()) {
      slot->model = *loaded;
      slot->state = ModelStateKind::kReady;
      slot->reason = absl::OkStatus();
    } else {
      slot->state = ModelStateKind::kFailed;
      slot->reason = loaded.status();
      slot->failed_us = clock_->NowUs();
    }
  }
  for (OpenCallback& done : waiting) done(loaded);
}

std::vector<ModelListing> ModelCatalog::List() {
  absl::MutexLock lock(&mutex_);
  std::vector<ModelListing> list;
  for (const auto& slot : slots_) {
    ModelListing listing{.name = slot->entry.name, .state = slot->state};
    if (slot->state == ModelStateKind::kFailed) listing.reason = Message(slot->reason);
    if (slot->model != nullptr) {
      listing.created = slot->model->created();
      listing.max_context = slot->model->max_context();
    }
    list.push_back(std::move(listing));
  }
  return list;
}

}  // namespace terrace::server
