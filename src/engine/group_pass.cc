// Passes that a group computes together: what the leader tells of them, and how another member
// computes them.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "engine/engine.h"
#include "engine/engine_rows.h"
#include "engine/group_message.h"

namespace terrace::engine {
namespace {

// What the tier manager rounds segments up to, at most.
constexpr uint64_t kMostPage = 4096;

}  // namespace

GroupPass Engine::AsGroupPass(const EngineModel& model, const Rows& rows) {
  GroupPass pass;
  pass.model = model.group_id();
  pass.tokens = rows.tokens;
  pass.positions = rows.positions;
  pass.logit_rows = rows.logit_rows;
  pass.uniform = rows.uniform;
  for (const ops::SequenceRows& from : rows.sequences) {
    GroupPass::Sequence& sequence = pass.sequences.emplace_back();
    sequence.first_row = from.first_row;
    sequence.rows = from.rows;
    sequence.start = from.start;
    for (const std::byte* block : from.blocks) {
      sequence.blocks.push_back(reinterpret_cast<uint64_t>(block));
    }
  }
  return pass;
}

namespace {

// Bytes of the segments that a pass has pinned at once, at most: those of a stage while those of
// the one before it are still in use, and an expert. Embedding and head are one stage at the end.
uint64_t WorkingBytes(const EngineModel& model) {
  const std::vector<tier::SegmentSpec>& segments = model.weights().segments();
  using Stage = model::WeightProvider::Stage;
  auto bytes_of = [&](Stage stage, int32_t layer) {
    uint64_t bytes = 0;
    for (const uint32_t segment : model.StageSegments(stage, layer)) {
      bytes += AlignUp(segments[segment].bytes, kMostPage);
    }
    return bytes;
  };
  uint64_t largest = bytes_of(Stage::kEmbed, 0) + bytes_of(Stage::kHead, 0), expert = 0;
  for (int32_t layer = 0; layer < model.architecture().config().layer_count(); ++layer) {
    largest = std::max({largest, bytes_of(Stage::kAttention, layer), bytes_of(Stage::kFfn, layer)});
    const std::optional<uint32_t> first = model.FirstExpert(layer);
    if (first) expert = std::max(expert, AlignUp(segments[*first].bytes, kMostPage));
  }
  return 2 * largest + expert;
}

}  // namespace

absl::Status Engine::PreparePass(const EngineModel& model, const GroupPass& pass) {
  return Prepare(model, pass.tokens.size(), pass.logit_rows.size(), 0);
}

absl::Status Engine::Prepare(const EngineModel& model, size_t rows, size_t logit_rows,
                             int32_t rank) {
  RETURN_IF_ERROR(GrowWorkspace(model.architecture().WorkspaceBytes(
      static_cast<int32_t>(rows), static_cast<int32_t>(logit_rows), rank)));
  if (model.group() == nullptr) return absl::OkStatus();
  const uint64_t bytes = WorkingBytes(model);
  if (manager_->CouldFit(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("beside KV there is no room for the {} of weights of '{}' that a step works with",
                  FormatBytes(bytes), model.name()));
}

absl::Status Engine::RunPass(EngineModel& model, const GroupPass& pass,
                             std::span<const std::vector<std::byte*>> blocks) {
  Rows rows;
  rows.tokens = pass.tokens;
  rows.positions = pass.positions;
  rows.logit_rows = pass.logit_rows;
  rows.uniform = pass.uniform;
  for (size_t i = 0; i < pass.sequences.size(); ++i) {
    const GroupPass::Sequence& sequence = pass.sequences[i];
    rows.sequences.push_back({sequence.first_row, sequence.rows, sequence.start, blocks[i]});
  }
  ops::Matrix logits;
  StepResult step;
  return Compute(model, rows, {}, nullptr, &logits, nullptr, &step);
}

}  // namespace terrace::engine
