#include "cli/model_opener.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "cli/model_argument.h"
#include "weights/object_source.h"

namespace terrace::cli {

std::string ModelSettings(const server::ModelConfig& model) {
  std::string settings;
  for (const server::ModelConfigKey& key : server::ModelConfigKeys()) {
    if (key.name == "traffic" || key.name == "rollback_errors") continue;
    settings += fmt::format("{}={}\n", key.name, key.get(model));
  }
  return settings;
}

std::string EntrySettings(const server::Config& config, const server::ModelConfig& model) {
  std::string settings = ModelSettings(model);
  for (const server::ModelConfig& base : config.models) {
    if (base.name == model.base) settings += ModelSettings(base);
  }
  return settings;
}

absl::StatusOr<server::OpenedModel> ModelOpener::OpenEntry(const server::Config& config,
                                                           const server::ModelConfig& model) {
  if (model.base.empty()) return Open(config, model);
  const auto base = std::find_if(config.models.begin(), config.models.end(),
                                 [&](const auto& other) { return other.name == model.base; });
  if (base == config.models.end()) {
    return absl::InvalidArgumentError(
        fmt::format("its base '{}' is no entry of the configuration", model.base));
  }
  ASSIGN_OR_RETURN(Model engine, Open(config, *base));
  if (model.source.empty() || weights::IsObject(model.source)) {
    return absl::InvalidArgumentError("the source of an adapter must be a path on this machine");
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const engine::Adapter> adapter,
                   runtime_->OpenAdapter(model.name, model.source,
                                         model.hot_keep_us.value_or(config.memory.hot_keep_us),
                                         *engine, {model.sla, ""}));
  return server::OpenedModel(std::move(engine), std::move(adapter));
}

absl::StatusOr<ModelOpener::Model> ModelOpener::Open(const server::Config& config,
                                                     const server::ModelConfig& model) {
  Opened* opened = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    opened = &opened_[ModelSettings(model)];
  }
  absl::MutexLock lock(&opened->mutex);
  Model shared = opened->model.lock();
  if (shared != nullptr) return shared;
  ASSIGN_OR_RETURN(shared, OpenNew(config, model));
  opened->model = shared;
  return shared;
}

absl::StatusOr<ModelOpener::Model> ModelOpener::OpenDraft(const server::Config& config,
                                                          const std::string& name,
                                                          const server::ModelConfig& of) {
  server::ModelConfig draft;
  draft.name = name;
  draft.hot_keep_us = of.hot_keep_us;
  for (const server::ModelConfig& model : config.models) {
    if (model.name == name) draft = model;
  }
  if (draft.speculation.starts_with("draft:") || name == of.name) {
    return absl::InvalidArgumentError(
        fmt::format("the draft {} of {} may not have a draft itself", name, of.name));
  }
  return Open(config, draft);
}

absl::StatusOr<ModelOpener::Model> ModelOpener::OpenNew(const server::Config& config,
                                                        const server::ModelConfig& model) {
  ASSIGN_OR_RETURN(std::string path, FindModel(config, model.name));
  const int64_t hot_keep_us = model.hot_keep_us.value_or(config.memory.hot_keep_us);
  engine::EngineModelOptions more = KvOptions(config, model);
  using Kind = engine::SpeculationOptions::Kind;
  more.speculation.tokens = model.speculation_tokens;
  if (model.speculation == "ngram") more.speculation.kind = Kind::kNgram;
  if (model.speculation.starts_with("draft:")) {
    more.speculation.kind = Kind::kDraft;
    ASSIGN_OR_RETURN(more.speculation.draft, OpenDraft(config, model.speculation.substr(6), model));
  }
  return runtime_->OpenModel(model.name, path, model.max_context, hot_keep_us, std::move(more),
                             TermsOf(model));
}

}  // namespace terrace::cli
