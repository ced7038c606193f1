// Rows of a matrix whose segment is not on the device, read by themselves: a few pages instead of
// the whole embedding before a pass can begin. Private to the engine's own files.
#ifndef TERRACE_ENGINE_ROW_FETCH_H_
#define TERRACE_ENGINE_ROW_FETCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine_model.h"
#include "ops/backend.h"
#include "tier/tier_manager.h"

namespace terrace::engine {

class RowFetch {
 public:
  // Reads the groups of rows, as the layout packs them, that hold `rows` of the model's matrix.
  // None if they are much of the segment, if the segment is on the device, or if they cannot be
  // read now. Errors: Cancelled.
  static absl::StatusOr<std::optional<RowFetch>> Read(
      const EngineModel& model, const EngineModel::Binding& matrix, std::span<const int32_t> rows,
      const ops::Backend& backend, tier::TierManager* manager, const tier::CancelFlag* cancel);

  uint32_t segment() const { return segment_; }
  // The groups back to back, a matrix in the layout of the whole one once they are in device
  // memory.
  std::span<const std::byte> bytes() const { return bytes_; }
  int32_t table_rows() const;
  // Where the rows asked for lie among them.
  const std::vector<int32_t>& places() const { return places_; }

  // Whether the segment, now at the device address `data`, holds the same bytes.
  absl::StatusOr<bool> Matches(const std::byte* data, tier::TierManager* manager) const;

 private:
  uint32_t segment_ = 0;
  int32_t group_rows_ = 1;
  std::vector<std::byte> bytes_;
  std::vector<uint64_t> offsets_;  // of each group in the segment
  std::vector<int32_t> places_;
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_ROW_FETCH_H_
