#include "engine/pinned_weights.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"
#include "tier/page_trace.h"

namespace terrace::engine {

PinnedWeights::PinnedWeights(const EngineModel& model, std::span<const Adapter* const> adapters,
                             const Parts& parts, std::span<const kv::Sequence* const> arriving)
    : model_(model), parts_(parts), arriving_(arriving), slots_(model.weights().segments().size()) {
  for (const Adapter* adapter : adapters) {
    adapters_.push_back({adapter, std::vector<tier::Pin>(adapter->weights().segments())});
  }
}

PinnedWeights::~PinnedWeights() {
  // A pass that failed half way may have left work behind that still reads.
  if (!leaving_.empty() || fetched_table_) parts_.backend->Synchronize().IgnoreError();
}

void PinnedWeights::AskForAll() {
  if (std::exchange(asked_for_all_, true)) return;
  parts_.manager->Prefetch(model_.weights().tier_id(), 0,
                           static_cast<uint32_t>(model_.weights().segments().size()),
                           tier::Priority::kNextLayer);
  for (const Adapted& adapted : adapters_) {
    const weights::AdapterWeights& weights = adapted.adapter->weights();
    parts_.manager->Prefetch(weights.tier_id(), 0, static_cast<uint32_t>(weights.segments()),
                             tier::Priority::kNextLayer);
  }
}

absl::Status PinnedWeights::Enter(Stage stage, int32_t layer) {
  stage_ = stage;
  AskForAll();
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
  if (status.ok()) status = CheckFetched(segments);
  if (!status.ok()) Leave(stage, layer);
  return status;
}

void PinnedWeights::Leave(Stage stage, int32_t layer) {
  Leaving leaving;
  for (Adapted& adapted : adapters_) {
    for (uint32_t segment : adapted.adapter->StageSegments(stage, layer)) {
      // Empty where entering the stage has failed before it came to this one.
      if (adapted.pins[segment]) leaving.pins.push_back(std::move(adapted.pins[segment]));
    }
  }
  for (uint32_t segment : model_.StageSegments(stage, layer)) {
    if (!parts_.backend->asynchronous()) {
      UnpinSegment(segment);
    } else if (--slots_[segment].count == 0) {
      leaving.pins.push_back(std::move(slots_[segment].pin));
    }
  }
  if (leaving.pins.empty() || !parts_.backend->asynchronous()) return;
  absl::StatusOr<uint64_t> mark = parts_.backend->Mark();
  if (mark.ok()) leaving.mark = *mark;
  if (!mark.ok() && left_wrong_.ok()) left_wrong_ = mark.status();
  leaving_.push_back(std::move(leaving));
}

ops::Weight PinnedWeights::Matrix(int32_t tensor) const {
  const EngineModel::Binding& binding = BindingOf(tensor);
  ops::Weight weight = binding.weight;
  weight.data = slots_[binding.segment].pin.data() + binding.offset;
  if (trace_ != nullptr) CountMatrix(binding);
  return weight;
}

ops::Vector PinnedWeights::Vector(int32_t tensor) const {
  const ops::Weight weight = Matrix(tensor);
  return {reinterpret_cast<const float*>(weight.data), BindingOf(tensor).elements};
}

ops::WeightStack PinnedWeights::Stack(int32_t tensor) const {
  const EngineModel::Binding& binding = BindingOf(tensor);
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

absl::StatusOr<size_t> PinnedWeights::EnterExperts(int32_t layer,
                                                   std::span<const int32_t> experts) {
  const std::optional<uint32_t> first = model_.FirstExpert(layer);
  if (!first) return experts.size();
  const tier::ModelId id = model_.weights().tier_id();
  // All of them move at once; the first ones are waited for first.
  for (int32_t expert : experts) {
    parts_.manager->Prefetch(id, *first + static_cast<uint32_t>(expert), 1,
                             tier::Priority::kNextLayer);
  }
  for (int32_t expert : experts) {
    const uint32_t segment = *first + static_cast<uint32_t>(expert);
    // What is pinned stays; a further one must fit beside it.
    if (!experts_.empty() && !parts_.manager->CouldPin(id, segment)) break;
    if (absl::Status status = PinSegment(segment); !status.ok()) {
      LeaveExperts(layer);
      return status;
    }
    experts_.push_back(expert);
  }
  return experts_.size();
}

void PinnedWeights::LeaveExperts(int32_t layer) {
  const std::optional<uint32_t> first = model_.FirstExpert(layer);
  for (int32_t expert : experts_) UnpinSegment(*first + static_cast<uint32_t>(expert));
  experts_.clear();
}

std::optional<model::LowRank> PinnedWeights::Delta(int32_t adapter, int32_t tensor) const {
  const Adapted& adapted = adapters_[static_cast<size_t>(adapter)];
  const weights::AdapterWeights::Pair* pair = adapted.adapter->PairOf(tensor);
  if (pair == nullptr) return std::nullopt;
  model::LowRank delta{pair->a, pair->b, pair->scale};
  delta.a.data = adapted.pins[pair->segment].data() + pair->a_offset;
  delta.b.data = adapted.pins[pair->segment].data() + pair->b_offset;
  return delta;
}

void PinnedWeights::CountMatrix(const EngineModel::Binding& binding) const {
  if (stage_ == Stage::kEmbed && binding.weight.rows > 1) return CountRows(binding, tokens_);
  trace_->Touch(model_.weights().tier_id(), binding.segment, binding.offset,
                binding.stride * static_cast<uint64_t>(binding.count));
}

void PinnedWeights::CountRows(const EngineModel::Binding& binding,
                              std::span<const int32_t> rows) const {
  const uint64_t bytes = binding.stride * static_cast<uint64_t>(binding.count);
  const uint64_t row_bytes = bytes / static_cast<uint64_t>(binding.weight.rows);
  for (int32_t row : rows) {
    const uint64_t begin = row_bytes * static_cast<uint64_t>(row);
    if (begin >= bytes) continue;
    trace_->Touch(model_.weights().tier_id(), binding.segment, binding.offset + begin, row_bytes);
  }
}

absl::StatusOr<std::optional<model::FetchedRows>> PinnedWeights::FetchRows(
    int32_t tensor, std::span<const int32_t> rows) {
  if (!may_fetch_) return std::nullopt;
  const EngineModel::Binding& binding = BindingOf(tensor);
  const int64_t start_us = parts_.clock->NowUs();
  ASSIGN_OR_RETURN(fetched_, RowFetch::Read(model_, binding, rows, *parts_.backend, parts_.manager,
                                            parts_.cancel));
  AskForAll();  // not before: what is under way would keep these few reads waiting
  wait_us_ += parts_.clock->NowUs() - start_us;
  if (!fetched_) return std::nullopt;
  const std::span<const std::byte> bytes = fetched_->bytes();
  absl::StatusOr<tier::DeviceBuffer> table =
      parts_.manager->CouldFit(bytes.size())
          ? parts_.manager->Allocate({"engine", "", tier::Kind::kWorkspace}, bytes.size())
          : absl::ResourceExhaustedError("no room for rows");
  if (!table.ok()) {
    fetched_.reset();
    return std::nullopt;
  }
  fetched_table_ = *std::move(table);
  RETURN_IF_ERROR(parts_.manager->CopyToDevice(bytes, fetched_table_.data()));
  if (trace_ != nullptr) CountRows(binding, rows);
  model::FetchedRows fetched{binding.weight, fetched_->places()};
  fetched.table.rows = fetched_->table_rows();
  fetched.table.data = fetched_table_.data();
  return fetched;
}

absl::Status PinnedWeights::CheckFetched(std::span<const uint32_t> segments) {
  if (!fetched_ ||
      std::find(segments.begin(), segments.end(), fetched_->segment()) == segments.end()) {
    return absl::OkStatus();
  }
  const RowFetch fetched = *std::exchange(fetched_, std::nullopt);
  ASSIGN_OR_RETURN(const bool matches,
                   fetched.Matches(slots_[fetched.segment()].pin.data(), parts_.manager));
  if (matches) return absl::OkStatus();
  fetched_wrong_ = true;
  return absl::DataLossError(
      fmt::format("rows of {} of model '{}' that were read by themselves are not those of its "
                  "checked blocks",
                  model_.weights().segments()[fetched.segment()].name, model_.name()));
}

absl::Status PinnedWeights::EnterAdapters(Stage stage, int32_t layer) {
  const int64_t start_us = adapters_.empty() ? 0 : parts_.clock->NowUs();
  for (Adapted& adapted : adapters_) {
    for (uint32_t segment : adapted.adapter->StageSegments(stage, layer)) {
      absl::StatusOr<tier::Pin> pin = parts_.manager->Acquire(
          adapted.adapter->weights().tier_id(), segment, tier::Priority::kDemand, parts_.cancel);
      if (!pin.ok()) {
        return WithContext(pin.status(),
                           fmt::format("loading adapter '{}'", adapted.adapter->name()));
      }
      adapted.pins[segment] = *std::move(pin);
    }
  }
  if (start_us > 0) wait_us_ += parts_.clock->NowUs() - start_us;
  return absl::OkStatus();
}

absl::Status PinnedWeights::AwaitKv(int32_t layer) {
  if (arriving_.empty()) return absl::OkStatus();
  const int64_t start_us = parts_.clock->NowUs();
  absl::Status status;
  for (const kv::Sequence* kv : arriving_) {
    if (status.ok()) status = kv->AwaitLayer(layer, parts_.cancel);
  }
  kv_wait_us_ += parts_.clock->NowUs() - start_us;
  return status;
}

absl::Status PinnedWeights::FinishLeaving(size_t most) {
  if (!left_wrong_.ok()) return std::exchange(left_wrong_, absl::OkStatus());
  while (leaving_.size() > most) {
    RETURN_IF_ERROR(parts_.backend->WaitFor(leaving_.front().mark));
    leaving_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status PinnedWeights::PinSegment(uint32_t segment) {
  Slot& slot = slots_[segment];
  if (slot.count == 0) {
    // What is being left may be just the room that this segment needs.
    if (!leaving_.empty() &&
        !parts_.manager->CouldFit(model_.weights().segments()[segment].bytes)) {
      RETURN_IF_ERROR(FinishLeaving(0));
    }
    const int64_t start_us = parts_.clock->NowUs();
    absl::StatusOr<tier::Pin> pin = parts_.manager->Acquire(model_.weights().tier_id(), segment,
                                                            tier::Priority::kDemand, parts_.cancel);
    wait_us_ += parts_.clock->NowUs() - start_us;
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

void PinnedWeights::UnpinSegment(uint32_t segment) {
  Slot& slot = slots_[segment];
  if (--slot.count == 0) slot.pin.Release();
}

}  // namespace terrace::engine
