// The weights of one forward pass: pins segments as the pass enters its stages, and turns bindings
// into addresses. Private to the engine's own files.
#ifndef TERRACE_ENGINE_PINNED_WEIGHTS_H_
#define TERRACE_ENGINE_PINNED_WEIGHTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/adapter.h"
#include "engine/engine_model.h"
#include "engine/row_fetch.h"
#include "kv/sequence.h"
#include "model/architecture.h"
#include "ops/backend.h"
#include "tier/tier_manager.h"
#include "tier/types.h"

namespace terrace {
class Clock;
}
namespace terrace::tier {
class PageTrace;
}

namespace terrace::engine {

class PinnedWeights final : public model::WeightProvider {
 public:
  // What a pass works with; all outlive it.
  struct Parts {
    ops::Backend* backend = nullptr;
    tier::TierManager* manager = nullptr;
    const Clock* clock = nullptr;
    const tier::CancelFlag* cancel = nullptr;  // may be null
  };
  // `arriving`: sequences whose KV is waited for layer by layer.
  PinnedWeights(const EngineModel& model, std::span<const Adapter* const> adapters,
                const Parts& parts, std::span<const kv::Sequence* const> arriving);
  ~PinnedWeights() override;

  // Counts reads of pages from now on; in the first stage those of `tokens`' rows.
  void CountPages(tier::PageTrace* trace, std::span<const int32_t> tokens) {
    trace_ = trace;
    tokens_ = tokens;
  }
  void NeverFetchRows() { may_fetch_ = false; }

  absl::Status Enter(Stage stage, int32_t layer) override;
  // On an asynchronous backend the stage's work has only begun: its segments stay until a later
  // stage is entered.
  void Leave(Stage stage, int32_t layer) override;
  ops::Weight Matrix(int32_t tensor) const override;
  ops::Vector Vector(int32_t tensor) const override;
  ops::WeightStack Stack(int32_t tensor) const override;
  absl::StatusOr<size_t> EnterExperts(int32_t layer, std::span<const int32_t> experts) override;
  void LeaveExperts(int32_t layer) override;
  absl::StatusOr<std::optional<model::FetchedRows>> FetchRows(
      int32_t tensor, std::span<const int32_t> rows) override;
  std::optional<model::LowRank> Delta(int32_t adapter, int32_t tensor) const override;

  int64_t wait_us() const { return wait_us_; }
  int64_t kv_wait_us() const { return kv_wait_us_; }
  // The pass failed because rows that it had fetched were not the matrix's.
  bool fetched_wrong() const { return fetched_wrong_; }

 private:
  // Stages whose work may be under way when the next one begins.
  static constexpr size_t kLeavingAtOnce = 1;

  struct Slot {
    tier::Pin pin;
    int32_t count = 0;
  };
  struct Adapted {
    const Adapter* adapter;
    std::vector<tier::Pin> pins;  // by segment
  };
  struct Leaving {
    std::vector<tier::Pin> pins;
    uint64_t mark = 0;
  };

  const EngineModel::Binding& BindingOf(int32_t tensor) const {
    return model_.bindings()[static_cast<size_t>(tensor)];
  }
  // Everything that is missing starts to move, in the order in which it will be needed. Once.
  void AskForAll();
  void CountMatrix(const EngineModel::Binding& binding) const;
  // Packed rows lie together in groups, so a row's place is that of its share.
  void CountRows(const EngineModel::Binding& binding, std::span<const int32_t> rows) const;
  // A stage is entered once at a time, so its adapters' segments need no counts.
  absl::Status EnterAdapters(Stage stage, int32_t layer);
  absl::Status AwaitKv(int32_t layer);
  absl::Status CheckFetched(std::span<const uint32_t> segments);
  // Waits until work is under way in at most `most` stages that were left.
  absl::Status FinishLeaving(size_t most);
  absl::Status PinSegment(uint32_t segment);
  void UnpinSegment(uint32_t segment);

  const EngineModel& model_;
  const Parts parts_;
  const std::span<const kv::Sequence* const> arriving_;
  std::vector<Slot> slots_;
  std::vector<Adapted> adapters_;
  std::vector<int32_t> experts_;  // entered now
  // By tensor: where the entered experts' matrices lie. Filled where the const Stack() is asked.
  mutable std::map<int32_t, std::vector<const std::byte*>> places_;
  std::optional<RowFetch> fetched_;  // not compared yet
  tier::DeviceBuffer fetched_table_;
  bool asked_for_all_ = false;
  bool may_fetch_ = true;
  bool fetched_wrong_ = false;
  std::deque<Leaving> leaving_;
  absl::Status left_wrong_;
  int64_t wait_us_ = 0;
  int64_t kv_wait_us_ = 0;
  Stage stage_ = Stage::kEmbed;  // entered last
  tier::PageTrace* trace_ = nullptr;
  std::span<const int32_t> tokens_;
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_PINNED_WEIGHTS_H_
