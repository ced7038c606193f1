#include "tier/page_table.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace terrace::tier {

void ComingBytes::Add(const Load& load) {
  if (load.priority > Priority::kNextLayer) return;
  ++load.model->soon_loads;
  load.model->soon_bytes += load.range.bytes;
  Update(*load.model);
}

void ComingBytes::Remove(const Load& load) {
  if (load.priority > Priority::kNextLayer) return;
  --load.model->soon_loads;
  load.model->soon_bytes -= load.range.bytes;
  Update(*load.model);
}

void ComingBytes::Update(Model& model) {
  const uint64_t held = std::min(model.bytes, model.resident_bytes + model.soon_bytes);
  const bool comes = model.soon_loads > 0 && !model.has_experts;
  bytes_ -= std::exchange(model.coming_bytes, comes ? model.bytes - held : 0);
  bytes_ += model.coming_bytes;
}

absl::Status ComingBytes::Check(const std::map<ModelId, std::unique_ptr<Model>>& models) const {
  uint64_t coming = 0;
  for (const auto& [id, model] : models) {
    uint32_t loads = 0;
    uint64_t bytes = 0;
    for (const Segment& segment : model->segments) {
      if (segment.load == nullptr || segment.load->priority > Priority::kNextLayer) continue;
      ++loads;
      bytes += segment.load->range.bytes;
    }
    if (loads != model->soon_loads || bytes != model->soon_bytes) {
      return absl::InternalError(fmt::format("model {}: {} loads come soon ({} bytes), {} counted",
                                             model->spec.name, loads, bytes, model->soon_loads));
    }
    if (loads == 0 || model->has_experts) continue;
    coming += model->bytes - std::min(model->bytes, model->resident_bytes + bytes);
  }
  if (coming == bytes_) return absl::OkStatus();
  return absl::InternalError(fmt::format("{} bytes are to come, {} counted", coming, bytes_));
}

}  // namespace terrace::tier
