#include "ops/opencl/angle_tables.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "ops/rope.h"

namespace terrace::ops {

absl::StatusOr<const std::byte*> AngleTables::Get(std::span<const int32_t> positions,
                                                  const RopeParams& p) {
  const std::span<const float> factors(
      p.frequency_factors.data,
      p.frequency_factors.data != nullptr ? static_cast<size_t>(p.dim / 2) : 0);
  const auto same = [&](const Table& table) {
    const RopeParams& o = table.params;
    return table.generation == ring_->generation() && o.dim == p.dim && o.base == p.base &&
           o.position_scale == p.position_scale && o.yarn_ext_factor == p.yarn_ext_factor &&
           o.yarn_attn_factor == p.yarn_attn_factor && o.yarn_beta_fast == p.yarn_beta_fast &&
           o.yarn_beta_slow == p.yarn_beta_slow &&
           o.yarn_original_context == p.yarn_original_context &&
           o.yarn_round_range == p.yarn_round_range &&
           std::equal(factors.begin(), factors.end(), table.factors.begin(), table.factors.end()) &&
           std::equal(positions.begin(), positions.end(), table.positions.begin(),
                      table.positions.end());
  };
  if (auto found = std::find_if(tables_.begin(), tables_.end(), same); found != tables_.end()) {
    return found->data;
  }
  const RopeTable table(p);
  std::vector<float> values(positions.size() * static_cast<size_t>(p.dim));
  for (size_t r = 0; r < positions.size(); ++r) {
    float* row = values.data() + r * static_cast<size_t>(p.dim);
    table.Angles(positions[r], row, row + p.dim / 2);
  }
  ASSIGN_OR_RETURN(const std::byte* data, ring_->UploadArray(std::span<const float>(values)));
  constexpr size_t kMostTables = 4;
  if (tables_.size() >= kMostTables) tables_.erase(tables_.begin());
  Table kept;
  kept.params = p;
  kept.factors.assign(factors.begin(), factors.end());
  kept.positions.assign(positions.begin(), positions.end());
  kept.data = data;
  kept.generation = ring_->generation();
  tables_.push_back(std::move(kept));
  return data;
}

}  // namespace terrace::ops
