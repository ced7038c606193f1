#include "engine/engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/engine_rows.h"
#include "engine/leader.h"
#include "engine/pinned_weights.h"
#include "tier/page_trace.h"

namespace terrace::engine {
namespace {

// Rows of logits that AllLogits computes at a time: bounds the workspace for large vocabularies.
constexpr int32_t kDiagnosisRows = 32;

bool AllFinite(std::span<const float> values) {
  // One more in the exponent carries into the sign of a NaN or an infinity, and of no other number.
  // Lanes, for the compiler to take a vector of them at a time.
  constexpr size_t kLanes = 16;
  constexpr uint32_t kMagnitude = 0x7fffffff, kOne = 0x00800000;
  uint32_t carried[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      carried[lane] |= (std::bit_cast<uint32_t>(values[i + lane]) & kMagnitude) + kOne;
    }
  }
  for (; i < values.size(); ++i) {
    carried[0] |= (std::bit_cast<uint32_t>(values[i]) & kMagnitude) + kOne;
  }
  uint32_t any = 0;
  for (const uint32_t lane : carried) any |= lane;
  return any <= kMagnitude;
}

}  // namespace

Engine::Engine(ops::Backend* backend, tier::TierManager* manager, const Clock* clock)
    : backend_(backend), manager_(manager), clock_(clock) {}

uint64_t Engine::WorkspaceBytes(const EngineModel& model, int32_t rows, int32_t logit_rows,
                                int32_t adapter_rank) {
  return AlignUp(model.architecture().WorkspaceBytes(rows, logit_rows, adapter_rank), kMiB);
}

absl::Status Engine::Probe() {
  if (!backend_->host_addressable()) return backend_->Synchronize();
  // Enough that each thread takes part.
  constexpr int32_t kRows = 32, kCols = 1024;
  std::vector<float> values(size_t{kRows} * kCols, 1.0f);
  RETURN_IF_ERROR(backend_->Scale({values.data(), kRows, kCols, kCols}, 2.0f));
  RETURN_IF_ERROR(backend_->Synchronize());
  const bool right = std::all_of(values.begin(), values.end(), [](float v) { return v == 2.0f; });
  return right ? absl::OkStatus() : absl::InternalError("the engine computes wrong numbers");
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
  absl::StatusOr<ops::Matrix> result;
  for (bool may_fetch = true, again = true; again; may_fetch = false) {
    PinnedWeights provider(model, rows.adapters, {backend_, manager_, clock_, cancel}, arriving);
    if (page_trace_ != nullptr) provider.CountPages(page_trace_, rows.tokens);
    if (!may_fetch) provider.NeverFetchRows();
    result = model.architecture().Forward(input, *backend_, provider,
                                          {workspace_.data(), workspace_.bytes()});
    step->weight_wait_us += provider.wait_us();
    step->kv_wait_us += provider.kv_wait_us();
    // The same pass once more, from the matrix itself, which has come meanwhile.
    again = may_fetch && provider.fetched_wrong();
    if (again && backend_->asynchronous()) RETURN_IF_ERROR(backend_->Synchronize());
  }
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
