// Runs batches of one model on one device: pins weights segment by segment, grows KV, computes
// logits and samples. Decides nothing about order; the scheduler does. Used by one thread at a
// time.
#ifndef TERRACE_ENGINE_ENGINE_H_
#define TERRACE_ENGINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/adapter.h"
#include "engine/engine_model.h"
#include "kv/sequence.h"
#include "tier/types.h"

namespace terrace {
class Clock;
}

namespace terrace::tier {
class PageTrace;
}

namespace terrace::engine {

class Leader;
struct GroupPass;

// One sequence's part of a step: `tokens` are appended at the end of `kv`; if `want_logits`, the
// logits after the last of them are computed. The last `guessed` of the tokens are guesses: logits
// are computed after the token before them and after each of them, and they are not committed; the
// caller commits those that turn out right and trims the rest.
struct StepEntry {
  kv::Sequence* kv = nullptr;
  std::span<const int32_t> tokens;
  bool want_logits = false;
  int32_t guessed = 0;               // fewer than tokens.size(); 0 without want_logits
  const Adapter* adapter = nullptr;  // of this model, applied to the tokens; null: none
  // The result must not depend on the other entries, nor on the pieces in which tokens come: the
  // whole step is computed so (ops::Backend::SetUniform).
  bool uniform = false;
  // Logits after each of the tokens are computed (EntryResult::each), whether `want_logits` or not.
  // Then none is a guess.
  bool every = false;
};

// What became of one entry.
struct EntryResult {
  // Internal if its logits hold a NaN or an infinity (the message names the model); its KV is then
  // not to be used any more. Other entries are not touched by that.
  absl::Status status;
  std::span<float> logits;  // [vocab] if wanted; may be changed; valid until the engine's next call
  std::vector<std::span<float>> after_guess;  // the same after each guess
  std::vector<std::span<float>> each;         // the same after each token, if all were asked for
  std::span<const float> state;               // [width] that the logits come from; as long valid
};

struct StepResult {
  std::vector<EntryResult> entries;  // in entry order
  int64_t weight_wait_us = 0;        // time spent waiting for segments
  int64_t kv_wait_us = 0;            // and for KV on its way
  uint64_t moved_bytes = 0;          // of the model's weights, brought in meanwhile
};

class Engine {
 public:
  // All must outlive the engine.
  Engine(ops::Backend* backend, tier::TierManager* manager, const Clock* clock);

  // Runs one step. An encoder takes each entry as a whole text whose vector it gives as `state`;
  // it reads and keeps no KV, and is always uniform. A sequence whose KV is still on its way
  // (kv::Restore) is waited for layer by layer. Errors leave every sequence as it was before:
  // ResourceExhausted (KV or workspace cannot be had), Cancelled, Unavailable while `arriving()`
  // (what came is no good: DropArriving), or the error of a load that failed.
  absl::StatusOr<StepResult> Step(EngineModel& model, std::span<const StepEntry> entries,
                                  const tier::CancelFlag* cancel);

  // The logits after each of `tokens` [tokens, vocab], from a fresh sequence (diagnosis and tests).
  absl::StatusOr<std::vector<float>> AllLogits(EngineModel& model, std::span<const int32_t> tokens,
                                               const Adapter* adapter = nullptr);

  // The vector [width] that an encoder makes of a text's `tokens`. FailedPrecondition for a model
  // that is none.
  absl::StatusOr<std::vector<float>> Embed(EngineModel& model, std::span<const int32_t> tokens);

  // As the leader of a group: passes of models that are divided among it are computed by all
  // members. Null for none. Set before the first step; must outlive the engine's use.
  void set_leader(Leader* leader) { leader_ = leader; }
  // As another member of one: makes room for `pass`, and computes it with KV in `blocks`, by
  // sequence. ResourceExhausted; or the errors of Step.
  absl::Status PreparePass(const EngineModel& model, const GroupPass& pass);
  absl::Status RunPass(EngineModel& model, const GroupPass& pass,
                       std::span<const std::vector<std::byte*>> blocks);

  // A small piece of work for all that compute, checked: whether they still do. As Step, on its
  // thread. Internal if the result is wrong, or the device's error.
  absl::Status Probe();

  tier::TierManager* manager() const { return manager_; }
  // Of a step of so many rows, as it is booked.
  static uint64_t WorkspaceBytes(const EngineModel& model, int32_t rows, int32_t logit_rows,
                                 int32_t adapter_rank);
  // Gives the workspace back if it is larger than `bytes`; the next step takes what it needs.
  void ShrinkWorkspace(uint64_t bytes);
  // Read by the scheduler on any thread.
  uint64_t workspace_bytes() const { return workspace_bytes_.load(std::memory_order_relaxed); }
  ops::Backend* backend() const { return backend_; }

  // Where reads of weights are counted page by page; null for nowhere. Set before the first step;
  // must outlive the engine.
  void set_page_trace(tier::PageTrace* trace) { page_trace_ = trace; }

 private:
  struct Rows;
  static GroupPass AsGroupPass(const EngineModel& model, const Rows& rows);
  // `arriving`: entries' KV that is waited for layer by layer. Adds waits to `result`.
  // `logits` and `states` can be read and changed on the host until the next call.
  absl::Status Forward(EngineModel& model, const Rows& rows,
                       std::span<const kv::Sequence* const> arriving,
                       const tier::CancelFlag* cancel, ops::Matrix* logits, ops::Matrix* states,
                       StepResult* result);
  // The same at one device, logits left in its memory. REQUIRES: a workspace that is large enough.
  absl::Status Compute(EngineModel& model, const Rows& rows,
                       std::span<const kv::Sequence* const> arriving,
                       const tier::CancelFlag* cancel, ops::Matrix* logits, ops::Matrix* states,
                       StepResult* result);
  // Copies `matrix` from device memory to `host` and lets it lie there.
  absl::Status ToHost(ops::Matrix* matrix, std::vector<float>* host);
  absl::StatusOr<StepResult> StepEncoder(EngineModel& model, std::span<const StepEntry> entries,
                                         const tier::CancelFlag* cancel);
  // Makes the workspace large enough for so many rows, and sees that a pass of a divided model will
  // not fail for want of room in the middle, where the other members wait.
  absl::Status Prepare(const EngineModel& model, size_t rows, size_t logit_rows, int32_t rank);
  // Makes the workspace at least `bytes` large.
  absl::Status GrowWorkspace(uint64_t bytes);

  ops::Backend* backend_;
  tier::TierManager* manager_;
  const Clock* clock_;
  tier::PageTrace* page_trace_ = nullptr;
  Leader* leader_ = nullptr;
  tier::DeviceBuffer workspace_;
  // Where the host can't reach those in the workspace.
  std::vector<float> host_logits_, host_states_;
  std::atomic<uint64_t> workspace_bytes_{0};
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_ENGINE_H_
