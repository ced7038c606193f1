// Guesses what follows with a smaller model of the same vocabulary. Each sequence of the large
// model has one of the draft model beside it, whose KV is brought up to date before guesses are
// made. Guesses are the draft's likeliest tokens: what they cost is time, never a change of the
// answer. Used by one thread, the one that uses the engine.
#ifndef TERRACE_ENGINE_DRAFT_MODEL_H_
#define TERRACE_ENGINE_DRAFT_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "kv/sequence.h"

namespace terrace::engine {

// The draft's side of one sequence.
struct DraftSequence {
  DraftSequence(tier::TierManager* manager, const EngineModel& draft, std::string tenant);
  kv::Sequence kv;
  std::vector<int32_t> seen;  // the tokens whose KV it holds, right or guessed
};

struct DraftAsk {
  DraftSequence* sequence = nullptr;
  std::span<const int32_t> tokens;  // of the sequence, prompt and answer
  int32_t count = 0;                // guesses wanted
  std::vector<int32_t> guesses;     // filled; fewer or none while the draft is behind
};

// Computes at most `max_rows` rows to bring sequences up to date, then guesses for those that are.
// On an error no guesses are there, and each sequence's KV is still right for its `seen`.
absl::Status Draft(Engine& engine, EngineModel& draft, std::span<DraftAsk> asks, int32_t max_rows,
                   const tier::CancelFlag* cancel);

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_DRAFT_MODEL_H_
