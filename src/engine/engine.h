// Runs batches of one model on one device: pins weights segment by segment, grows KV, computes logits
// and samples. Decides nothing about order; the scheduler does. Used by one thread at a time.
#ifndef TERRACE_ENGINE_ENGINE_H_
#define TERRACE_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine_model.h"
#include "engine/sampler.h"
#include "kv/sequence.h"
#include "tier/types.h"

namespace terrace {
class Clock;
}

namespace terrace::engine {

// One sequence's part of a step: `tokens` are appended at the end of `kv`; if `want_logits`, the
// logits after the last of them are computed.
struct StepEntry {
  kv::Sequence* kv = nullptr;
  std::span<const int32_t> tokens;
  bool want_logits = false;
};

struct StepResult {
  // [entries that wanted logits, vocab], in entry order; valid until the next call.
  std::vector<std::span<float>> logits;
  int64_t weight_wait_us = 0;  // time spent waiting for segments
};

class Engine {
 public:
  // All must outlive the engine.
  Engine(ops::Backend* backend, tier::TierManager* manager, const Clock* clock);
  ~Engine();

  // Runs one step. Errors leave every sequence as it was before: ResourceExhausted (KV or workspace
  // cannot be had), Cancelled, or the error of a load that failed. A NaN or infinity in an entry's
  // logits is an Internal error that names model and entry.
  absl::StatusOr<StepResult> Step(EngineModel& model, std::span<const StepEntry> entries,
                                  const tier::CancelFlag* cancel);

  // The logits after each of `tokens` [tokens, vocab], from a fresh sequence (diagnosis and tests).
  absl::StatusOr<std::vector<float>> AllLogits(EngineModel& model, std::span<const int32_t> tokens);

  tier::TierManager* manager() const { return manager_; }
  ops::Backend* backend() const { return backend_; }

 private:
  class Impl;
  ops::Backend* backend_;
  tier::TierManager* manager_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_ENGINE_H_
