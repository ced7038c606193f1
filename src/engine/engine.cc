#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/engine_rows.h"
#include "engine/leader.h"
#include "tier/page_trace.h"

namespace terrace::engine {
namespace {

// Rows of logits that AllLogits computes at a time: bounds the workspace for large vocabularies.
constexpr int32_t kDiagnosisRows = 32;

// Pins segments as the forward pass enters its stages, and turns bindings into addresses.
class PinnedWeights final : public model::WeightProvider {
 public:
  PinnedWeights(const EngineModel& model, std::span<const Adapter* const> adapters,
                ops::Backend* backend, tier::TierManager* manager, const Clock* clock,
                std::span<const kv::Sequence* const> arriving, const tier::CancelFlag* cancel)
      : model_(model),
        backend_(backend),
        manager_(manager),
        clock_(clock),
        arriving_(arriving),
        cancel_(cancel),
        slots_(model.weights().segments().size()) {
    for (const Adapter* adapter : adapters) {
      adapters_.push_back({adapter, std::vector<tier::Pin>(adapter->weights().segments())});
    }
  }

  ~PinnedWeights() override {
    // A pass that failed half way may have left work behind that still reads.
    if (!leaving_.empty()) backend_->Synchronize().IgnoreError();
  }

  // Counts reads of pages from now on; in the first stage those of `tokens`' rows.
  void CountPages(tier::PageTrace* trace, std::span<const int32_t> tokens) {
    trace_ = trace;
    tokens_ = tokens;
  }

  absl::Status Enter(Stage stage, int32_t layer) override {
    stage_ = stage;
    RETURN_IF_ERROR(FinishLeaving(kLeavingAtOnce));
    std::span<const uint32_t> segments = model_.StageSegments(stage, layer);
    for (size_t i = 0; i < segments.size(); ++i) {
      absl::Status status = PinSegment(segments[i]);
      if (!status.ok()) {
        for (size_t j = 0; j < i; ++j) UnpinSegment(segments[j]);
        return status;
      }
    }
    absl::Status status = EnterAdapters(stage, layer);
    if (status.ok() && stage == Stage::kAttention) status = AwaitKv(layer);
    if (!status.ok()) Leave(stage, layer);
    return status;
  }

  // On an asynchronous backend the stage's work has only begun: its segments stay until a later
  // stage is entered.
  void Leave(Stage stage, int32_t layer) override {
    Leaving leaving;
    for (Adapted& adapted : adapters_) {
      for (uint32_t segment : adapted.adapter->StageSegments(stage, layer)) {
        // Empty where entering the stage has failed before it came to this one.
        if (adapted.pins[segment]) leaving.pins.push_back(std::move(adapted.pins[segment]));
      }
    }
    for (uint32_t segment : model_.StageSegments(stage, layer)) {
      if (!backend_->asynchronous()) {
        UnpinSegment(segment);
      } else if (--slots_[segment].count == 0) {
        leaving.pins.push_back(std::move(slots_[segment].pin));
      }
    }
    if (leaving.pins.empty() || !backend_->asynchronous()) return;
    absl::StatusOr<uint64_t> mark = backend_->Mark();
    if (mark.ok()) leaving.mark = *mark;
    if (!mark.ok() && left_wrong_.ok()) left_wrong_ = mark.status();
    leaving_.push_back(std::move(leaving));
  }

  ops::Weight Matrix(int32_t tensor) const override {
    const EngineModel::Binding& binding = model_.bindings()[static_cast<size_t>(tensor)];
    ops::Weight weight = binding.weight;
    weight.data = slots_[binding.segment].pin.data() + binding.offset;
    if (trace_ != nullptr) CountMatrix(binding);
    return weight;
  }

  ops::Vector Vector(int32_t tensor) const override {
    const ops::Weight weight = Matrix(tensor);
    return {reinterpret_cast<const float*>(weight.data),
            model_.bindings()[static_cast<size_t>(tensor)].elements};
  }

  ops::WeightStack Stack(int32_t tensor) const override {
    const EngineModel::Binding& binding = model_.bindings()[static_cast<size_t>(tensor)];
    if (!binding.spread) return {Matrix(tensor), binding.count, binding.stride};
    std::vector<const std::byte*>& places = places_[tensor];
    places.assign(static_cast<size_t>(binding.count), nullptr);
    for (int32_t expert : experts_) {
      const Slot& slot = slots_[binding.segment + static_cast<uint32_t>(expert)];
      places[static_cast<size_t>(expert)] = slot.pin.data() + binding.offset;
      if (trace_ == nullptr) continue;
      trace_->Touch(model_.weights().tier_id(), binding.segment + static_cast<uint32_t>(expert),
                    binding.offset, binding.stride);
    }
    return {binding.weight, binding.count, 0, places.data()};
  }

  absl::StatusOr<size_t> EnterExperts(int32_t layer, std::span<const int32_t> experts) override {
    const std::optional<uint32_t> first = model_.FirstExpert(layer);
    if (!first) return experts.size();
    const tier::ModelId id = model_.weights().tier_id();
    // All of them move at once; the first ones are waited for first.
    for (int32_t expert : experts) {
      manager_->Prefetch(id, *first + static_cast<uint32_t>(expert), 1, tier::Priority::kNextLayer);
    }
    for (int32_t expert : experts) {
      const uint32_t segment = *first + static_cast<uint32_t>(expert);
      // What is pinned stays; a further one must fit beside it.
      if (!experts_.empty() && !manager_->CouldPin(id, segment)) break;
      if (absl::Status status = PinSegment(segment); !status.ok()) {
        LeaveExperts(layer);
        return status;
      }
      experts_.push_back(expert);
    }
    return experts_.size();
  }

  void LeaveExperts(int32_t layer) override {
    const std::optional<uint32_t> first = model_.FirstExpert(layer);
    for (int32_t expert : experts_) UnpinSegment(*first + static_cast<uint32_t>(expert));
    experts_.clear();
  }

  std::optional<model::LowRank> Delta(int32_t adapter, int32_t tensor) const override {
    const Adapted& adapted = adapters_[static_cast<size_t>(adapter)];
    const weights::AdapterWeights::Pair* pair = adapted.adapter->PairOf(tensor);
    if (pair == nullptr) return std::nullopt;
    model::LowRank delta{pair->a, pair->b, pair->scale};
    delta.a.data = adapted.pins[pair->segment].data() + pair->a_offset;
    delta.b.data = adapted.pins[pair->segment].data() + pair->b_offset;
    return delta;
  }

  int64_t wait_us() const { return wait_us_; }
  int64_t kv_wait_us() const { return kv_wait_us_; }

 private:
  // Packed rows lie together in groups, so a row's place is that of its share.
  void CountMatrix(const EngineModel::Binding& binding) const {
    const tier::ModelId id = model_.weights().tier_id();
    const uint64_t bytes = binding.stride * static_cast<uint64_t>(binding.count);
    const auto rows = static_cast<uint64_t>(binding.weight.rows);
    if (stage_ != Stage::kEmbed || rows <= 1) {
      trace_->Touch(id, binding.segment, binding.offset, bytes);
      return;
    }
    for (int32_t token : tokens_) {
      const uint64_t begin = bytes / rows * static_cast<uint64_t>(token);
      if (begin < bytes) {
        trace_->Touch(id, binding.segment, binding.offset + begin, bytes / rows);
      }
    }
  }

  struct Slot {
    tier::Pin pin;
    int32_t count = 0;
  };

  struct Adapted {
    const Adapter* adapter;
    std::vector<tier::Pin> pins;  // by segment
  };

  // A stage is entered once at a time, so its adapters' segments need no counts.
  absl::Status EnterAdapters(Stage stage, int32_t layer) {
    const int64_t start_us = adapters_.empty() ? 0 : clock_->NowUs();
    for (Adapted& adapted : adapters_) {
      for (uint32_t segment : adapted.adapter->StageSegments(stage, layer)) {
        absl::StatusOr<tier::Pin> pin = manager_->Acquire(
            adapted.adapter->weights().tier_id(), segment, tier::Priority::kDemand, cancel_);
        if (!pin.ok()) {
          return WithContext(pin.status(),
                             fmt::format("loading adapter '{}'", adapted.adapter->name()));
        }
        adapted.pins[segment] = *std::move(pin);
      }
    }
    if (start_us > 0) wait_us_ += clock_->NowUs() - start_us;
    return absl::OkStatus();
  }

  absl::Status AwaitKv(int32_t layer) {
    if (arriving_.empty()) return absl::OkStatus();
    const int64_t start_us = clock_->NowUs();
    absl::Status status;
    for (const kv::Sequence* kv : arriving_) {
      if (status.ok()) status = kv->AwaitLayer(layer, cancel_);
    }
    kv_wait_us_ += clock_->NowUs() - start_us;
    return status;
  }

  // Stages whose work may be under way when the next one begins.
  static constexpr size_t kLeavingAtOnce = 1;

  struct Leaving {
    std::vector<tier::Pin> pins;
    uint64_t mark = 0;
  };

  // Waits until work is under way in at most `most` stages that were left.
  absl::Status FinishLeaving(size_t most) {
    if (!left_wrong_.ok()) return std::exchange(left_wrong_, absl::OkStatus());
    while (leaving_.size() > most) {
      RETURN_IF_ERROR(backend_->WaitFor(leaving_.front().mark));
      leaving_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status PinSegment(uint32_t segment) {
    Slot& slot = slots_[segment];
    if (slot.count == 0) {
      // What is being left may be just the room that this segment needs.
      if (!leaving_.empty() && !manager_->CouldFit(model_.weights().segments()[segment].bytes)) {
        RETURN_IF_ERROR(FinishLeaving(0));
      }
      const int64_t start_us = clock_->NowUs();
      absl::StatusOr<tier::Pin> pin =
          manager_->Acquire(model_.weights().tier_id(), segment, tier::Priority::kDemand, cancel_);
      wait_us_ += clock_->NowUs() - start_us;
      if (!pin.ok()) {
        return WithContext(pin.status(),
                           fmt::format("loading {} of model '{}'",
                                       model_.weights().segments()[segment].name, model_.name()));
      }
      slot.pin = *std::move(pin);
    }
    ++slot.count;
    return absl::OkStatus();
  }

  void UnpinSegment(uint32_t segment) {
    Slot& slot = slots_[segment];
    if (--slot.count == 0) slot.pin.Release();
  }

  const EngineModel& model_;
  ops::Backend* backend_;
  tier::TierManager* manager_;
  const Clock* clock_;
  const std::span<const kv::Sequence* const> arriving_;
  const tier::CancelFlag* cancel_;
  std::vector<Slot> slots_;
  std::vector<Adapted> adapters_;
  std::vector<int32_t> experts_;  // entered now
  // By tensor: where the entered experts' matrices lie. Filled where the const Stack() is asked.
  mutable std::map<int32_t, std::vector<const std::byte*>> places_;
  std::deque<Leaving> leaving_;
  absl::Status left_wrong_;
  int64_t wait_us_ = 0;
  int64_t kv_wait_us_ = 0;
  Stage stage_ = Stage::kEmbed;  // entered last
  tier::PageTrace* trace_ = nullptr;
  std::span<const int32_t> tokens_;
};

bool AllFinite(std::span<const float> values) {
  // A sum would overflow; multiplying by zero turns both NaN and infinity into NaN.
  float poison = 0.0f;
  for (float value : values) poison += value * 0.0f;
  return poison == 0.0f;
}

}  // namespace

Engine::Engine(ops::Backend* backend, tier::TierManager* manager, const Clock* clock)
    : backend_(backend), manager_(manager), clock_(clock) {}

uint64_t Engine::WorkspaceBytes(const EngineModel& model, int32_t rows, int32_t logit_rows,
                                int32_t adapter_rank) {
  return AlignUp(model.architecture().WorkspaceBytes(rows, logit_rows, adapter_rank), kMiB);
}

void Engine::ShrinkWorkspace(uint64_t bytes) {
  if (workspace_.bytes() <= bytes) return;
  // What was computed last may still be read from it.
  if (backend_->asynchronous()) backend_->Synchronize().IgnoreError();
  workspace_.Release();
  workspace_bytes_ = 0;
}

absl::Status Engine::GrowWorkspace(uint64_t bytes) {
  if (workspace_.bytes() >= bytes) return absl::OkStatus();
  ShrinkWorkspace(0);
  ASSIGN_OR_RETURN(
      workspace_, manager_->Allocate({"engine", "", tier::Kind::kWorkspace}, AlignUp(bytes, kMiB)));
  workspace_bytes_ = workspace_.bytes();
  return absl::OkStatus();
}

absl::Status Engine::ToHost(ops::Matrix* matrix, std::vector<float>* host) {
  host->resize(static_cast<size_t>(matrix->rows) * static_cast<size_t>(matrix->cols));
  RETURN_IF_ERROR(backend_->Read(*matrix, *host));
  matrix->data = host->data();
  matrix->stride = matrix->cols;
  return absl::OkStatus();
}

absl::Status Engine::Forward(EngineModel& model, const Rows& rows,
                             std::span<const kv::Sequence* const> arriving,
                             const tier::CancelFlag* cancel, ops::Matrix* logits,
                             ops::Matrix* states, StepResult* step) {
  RETURN_IF_ERROR(Prepare(model, rows.tokens.size(), rows.logit_rows.size(), rows.adapter_rank()));
  if (leader_ != nullptr && model.group() != nullptr) {
    // The other members are in the middle of the pass, too: it is not given up half way.
    RETURN_IF_ERROR(leader_->Pass(AsGroupPass(model, rows), [&] {
      return Compute(model, rows, {}, nullptr, logits, states, step);
    }));
  } else {
    RETURN_IF_ERROR(Compute(model, rows, arriving, cancel, logits, states, step));
  }
  if (backend_->host_addressable() || rows.logit_rows.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(ToHost(logits, &host_logits_));
  if (states != nullptr) RETURN_IF_ERROR(ToHost(states, &host_states_));
  return absl::OkStatus();
}

absl::Status Engine::Compute(EngineModel& model, const Rows& rows,
                             std::span<const kv::Sequence* const> arriving,
                             const tier::CancelFlag* cancel, ops::Matrix* logits,
                             ops::Matrix* states, StepResult* step) {
  // Everything that is missing starts to move now, in the order in which it will be needed.
  manager_->Prefetch(model.weights().tier_id(), 0,
                     static_cast<uint32_t>(model.weights().segments().size()),
                     tier::Priority::kNextLayer);
  for (const Adapter* adapter : rows.adapters) {
    manager_->Prefetch(adapter->weights().tier_id(), 0,
                       static_cast<uint32_t>(adapter->weights().segments()),
                       tier::Priority::kNextLayer);
  }
  const uint64_t loaded_before = manager_->LoadedBytes(model.weights().tier_id());
  model::ForwardInput input;
  input.tokens = rows.tokens;
  input.batch.rows = static_cast<int32_t>(rows.tokens.size());
  input.batch.positions = rows.positions;
  input.batch.sequences = rows.sequences;
  input.kv = model.kv_geometry();
  input.logit_rows = rows.logit_rows;
  input.states = states;
  input.adapters = rows.adapted;
  input.adapter_rank = rows.adapter_rank();
  backend_->SetUniform(rows.uniform);
  input.group = model.group();
  PinnedWeights provider(model, rows.adapters, backend_, manager_, clock_, arriving, cancel);
  if (page_trace_ != nullptr) provider.CountPages(page_trace_, rows.tokens);
  absl::StatusOr<ops::Matrix> result = model.architecture().Forward(
      input, *backend_, provider, {workspace_.data(), workspace_.bytes()});
  step->weight_wait_us += provider.wait_us();
  step->kv_wait_us += provider.kv_wait_us();
  step->moved_bytes += manager_->LoadedBytes(model.weights().tier_id()) - loaded_before;
  if (!result.ok()) {
    // What is queued still reads the workspace and the KV of sequences.
    if (backend_->asynchronous()) backend_->Synchronize().IgnoreError();
    return result.status();
  }
  *logits = *result;
  return absl::OkStatus();
}

namespace {

// Rows of logits that an entry asks for; they belong to its last tokens.
int32_t LogitRows(const StepEntry& entry) {
  if (entry.every) return static_cast<int32_t>(entry.tokens.size());
  return entry.want_logits ? entry.guessed + 1 : 0;
}

absl::Status CheckDecodes(const EngineModel& model) {
  if (!model.architecture().config().encoder) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("model '{}' is an encoder: it gives vectors of texts, no tokens", model.name()));
}

absl::Status CheckTokens(const EngineModel& model, std::span<const int32_t> tokens) {
  for (int32_t token : tokens) {
    if (token < 0 || token >= model.vocab_size()) {
      return absl::InvalidArgumentError(fmt::format(
          "token {} is outside the vocabulary of {} tokens", token, model.vocab_size()));
    }
  }
  if (tokens.size() > static_cast<size_t>(model.max_context())) {
    return absl::InvalidArgumentError(fmt::format("{} tokens are more than the context of {}",
                                                  tokens.size(), model.max_context()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepResult> Engine::Step(EngineModel& model, std::span<const StepEntry> entries,
                                        const tier::CancelFlag* cancel) {
  if (model.architecture().config().encoder) return StepEncoder(model, entries, cancel);
  StepResult result;
  Rows rows;
  std::vector<const kv::Sequence*> arriving;
  absl::Status status;
  for (const StepEntry& entry : entries) {
    const int32_t new_length = entry.kv->length() + static_cast<int32_t>(entry.tokens.size());
    status = entry.kv->Reserve(new_length);
    if (!status.ok()) break;
    rows.Append(*entry.kv, entry.tokens, entry.adapter);
    rows.uniform |= entry.uniform;
    if (entry.kv->arriving()) arriving.push_back(entry.kv);
    const auto end = static_cast<int32_t>(rows.tokens.size());
    for (int32_t back = LogitRows(entry) - 1; back >= 0; --back)
      rows.logit_rows.push_back(end - 1 - back);
  }
  ops::Matrix logits, states;
  if (status.ok()) status = Forward(model, rows, arriving, cancel, &logits, &states, &result);
  // Nothing that was computed from KV on its way counts before that KV has been checked.
  const int64_t settle_us = arriving.empty() ? 0 : clock_->NowUs();
  for (const StepEntry& entry : entries) {
    if (status.ok()) status = entry.kv->Settle(cancel);
  }
  if (settle_us > 0) result.kv_wait_us += clock_->NowUs() - settle_us;
  if (!status.ok()) {
    for (const StepEntry& entry : entries) entry.kv->TrimReserve();
    return status;
  }
  int64_t logit_row = 0;
  for (const StepEntry& entry : entries) {
    EntryResult out;
    const int32_t count = LogitRows(entry);
    // Of the rows, the one that belongs to the last token that is not a guess.
    const int32_t last = entry.every ? count - 1 : 0;
    for (int32_t i = 0; i < count; ++i) {
      const std::span<float> row(logits.row(logit_row), static_cast<size_t>(logits.cols));
      const std::span<const float> state(states.row(logit_row), static_cast<size_t>(states.cols));
      ++logit_row;
      if (!AllFinite(row)) {
        out.status = absl::InternalError(
            fmt::format("model '{}' computed logits that are not finite", model.name()));
      }
      if (entry.every) out.each.push_back(row);
      if (i > last) out.after_guess.push_back(row);
      if (i != last || !entry.want_logits) continue;
      out.logits = row;
      out.state = state;
    }
    // KV of a pass that went wrong is not shared with anyone.
    if (out.status.ok()) {
      entry.kv->Commit(
          entry.tokens.first(entry.tokens.size() - static_cast<size_t>(entry.guessed)));
    }
    result.entries.push_back(std::move(out));
  }
  return result;
}

absl::StatusOr<StepResult> Engine::StepEncoder(EngineModel& model,
                                               std::span<const StepEntry> entries,
                                               const tier::CancelFlag* cancel) {
  Rows rows;
  rows.uniform = true;
  for (const StepEntry& entry : entries) rows.AppendText(entry.tokens);
  StepResult result;
  ops::Matrix pooled;
  RETURN_IF_ERROR(Forward(model, rows, {}, cancel, &pooled, nullptr, &result));
  for (int32_t i = 0; i < pooled.rows; ++i) {
    EntryResult out;
    out.logits = {pooled.row(i), static_cast<size_t>(pooled.cols)};
    out.state = out.logits;
    if (!AllFinite(out.state)) {
      out.status = absl::InternalError(
          fmt::format("model '{}' computed a vector that is not finite", model.name()));
    }
    result.entries.push_back(std::move(out));
  }
  return result;
}

absl::StatusOr<std::vector<float>> Engine::AllLogits(EngineModel& model,
                                                     std::span<const int32_t> tokens,
                                                     const Adapter* adapter) {
  RETURN_IF_ERROR(CheckDecodes(model));
  RETURN_IF_ERROR(CheckTokens(model, tokens));
  kv::Sequence kv(manager_, nullptr, {}, {model.name(), "", tier::Kind::kKv},
                  model.kv_geometry().block_bytes());
  std::vector<float> out;
  out.reserve(tokens.size() * static_cast<size_t>(model.vocab_size()));
  while (!tokens.empty()) {
    std::span<const int32_t> chunk = tokens.first(std::min<size_t>(tokens.size(), kDiagnosisRows));
    tokens = tokens.subspan(chunk.size());
    RETURN_IF_ERROR(kv.Reserve(kv.length() + static_cast<int32_t>(chunk.size())));
    Rows rows;
    rows.Append(kv, chunk, adapter);
    for (size_t i = 0; i < chunk.size(); ++i) rows.logit_rows.push_back(static_cast<int32_t>(i));
    ops::Matrix logits;
    StepResult step;
    RETURN_IF_ERROR(Forward(model, rows, {}, nullptr, &logits, nullptr, &step));
    for (int32_t i = 0; i < logits.rows; ++i) {
      out.insert(out.end(), logits.row(i), logits.row(i) + logits.cols);
    }
    kv.Commit(chunk);
  }
  return out;
}

absl::StatusOr<std::vector<float>> Engine::Embed(EngineModel& model,
                                                 std::span<const int32_t> tokens) {
  if (!model.architecture().config().encoder) {
    return absl::FailedPreconditionError(fmt::format("model '{}' is not an encoder", model.name()));
  }
  if (tokens.empty()) return absl::InvalidArgumentError("there are no tokens to embed");
  RETURN_IF_ERROR(CheckTokens(model, tokens));
  const StepEntry entry{.tokens = tokens, .want_logits = true};
  ASSIGN_OR_RETURN(const StepResult step, StepEncoder(model, {&entry, 1}, nullptr));
  RETURN_IF_ERROR(step.entries[0].status);
  const std::span<const float> vector = step.entries[0].state;
  return std::vector<float>(vector.begin(), vector.end());
}

}  // namespace terrace::engine
