#include "engine/draft_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"

namespace terrace::engine {
namespace {

// Drops what the draft had guessed and the large model did not take.
void Align(DraftAsk& ask) {
  std::vector<int32_t>& seen = ask.sequence->seen;
  const size_t known = std::min(seen.size(), ask.tokens.size() - 1);
  const auto differ =
      std::mismatch(seen.begin(), seen.begin() + static_cast<ptrdiff_t>(known), ask.tokens.begin());
  seen.resize(static_cast<size_t>(differ.first - seen.begin()));
  ask.sequence->kv.Rewind(static_cast<int32_t>(seen.size()));
}

int32_t Best(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Runs one step and notes what each sequence has seen by it. `asks` [entries.size()].
absl::Status Run(Engine& engine, EngineModel& draft, std::span<const StepEntry> entries,
                 std::span<DraftAsk* const> asks, const tier::CancelFlag* cancel) {
  ASSIGN_OR_RETURN(StepResult result, engine.Step(draft, entries, cancel));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!result.entries[i].status.ok()) return result.entries[i].status;
    std::vector<int32_t>& seen = asks[i]->sequence->seen;
    seen.insert(seen.end(), entries[i].tokens.begin(), entries[i].tokens.end());
    if (entries[i].want_logits) asks[i]->guesses.push_back(Best(result.entries[i].logits));
  }
  return absl::OkStatus();
}

}  // namespace

DraftSequence::DraftSequence(tier::TierManager* manager, const EngineModel& draft,
                             std::string tenant)
    : kv(manager, nullptr, {}, {draft.name(), std::move(tenant), tier::Kind::kKv},
         draft.kv_geometry().block_bytes()) {}

absl::Status Draft(Engine& engine, EngineModel& draft, std::span<DraftAsk> asks, int32_t max_rows,
                   const tier::CancelFlag* cancel) {
  std::vector<StepEntry> entries;
  std::vector<DraftAsk*> behind, ready;
  for (DraftAsk& ask : asks) {
    const auto room = draft.max_context() - static_cast<int32_t>(ask.tokens.size());
    ask.count = std::min(ask.count, room);
    if (ask.count <= 0 || max_rows <= 0) continue;
    Align(ask);
    const std::span<const int32_t> missing = ask.tokens.subspan(ask.sequence->seen.size());
    const size_t rows = std::min(missing.size(), static_cast<size_t>(max_rows));
    max_rows -= static_cast<int32_t>(rows);
    const bool whole = rows == missing.size();
    entries.push_back({&ask.sequence->kv, missing.first(rows), whole});
    behind.push_back(&ask);
    if (whole) ready.push_back(&ask);
  }
  absl::Status status;
  if (!entries.empty()) status = Run(engine, draft, entries, behind, cancel);
  for (int32_t at = 1; status.ok(); ++at) {
    std::erase_if(ready, [at](const DraftAsk* ask) { return ask->count <= at; });
    if (ready.empty()) break;
    entries.clear();
    for (DraftAsk* ask : ready) {
      ask->guesses.reserve(
          static_cast<size_t>(ask->count));  // they grow while the step's entry reads
      entries.push_back({&ask->sequence->kv, std::span(ask->guesses).last(1), true});
    }
    status = Run(engine, draft, entries, ready, cancel);
  }
  if (!status.ok()) {
    for (DraftAsk& ask : asks) ask.guesses.clear();
  }
  return status;
}

}  // namespace terrace::engine
