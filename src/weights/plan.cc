#include "weights/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"

namespace terrace::weights {
namespace {

constexpr int32_t kGroupRows = 16;
constexpr uint64_t kMaxImageBytes = uint64_t{1} << 60;

// Where segments stand in execution order: attention and FFN of each layer, embed, head. A pass can
// do with the few rows of the embedding that it looks up (model::WeightProvider::FetchRows), so
// that all of it is needed only by a head that is tied to it. Beside other tensors, as in an
// encoder, the embedding comes first.
struct SegmentKey {
  uint64_t order = 0;
  std::string name;
};

// Experts of a layer that get segments of their own; more are no real model.
constexpr uint64_t kMaxExperts = 4096;

SegmentKey KeyOf(std::string_view tensor) {
  constexpr uint64_t kHead = std::numeric_limits<uint64_t>::max();
  if (tensor.starts_with("output")) return {kHead, "head"};
  if (tensor == "token_embd.weight") return {kHead - 1, "embed"};
  // Read with the first layer.
  if (tensor.starts_with("rope_")) tensor = "blk.0.attn_rope";
  if (!tensor.starts_with("blk.")) return {0, "embed"};
  std::string_view rest = tensor.substr(4);
  uint32_t layer = 0;
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (error != std::errc() || end == rest.data() + rest.size() || *end != '.') return {0, "embed"};
  std::string_view part(end + 1, static_cast<size_t>(rest.data() + rest.size() - end - 1));
  bool ffn = part.starts_with("ffn") || part.starts_with("post_ffw") ||
             part.starts_with("exp_probs") || part.starts_with("layer_out");
  return {(2 * uint64_t{layer} + (ffn ? 2 : 1)) * kMaxExperts,
          fmt::format("blk.{}.{}", layer, ffn ? "ffn" : "attn")};
}

// Stacks whose matrices are used one by one: an expert is brought in when a token is routed to it.
bool IsExpertStack(const PlannedTensor& tensor) {
  return tensor.conversion == Conversion::kPack && tensor.place.shape.size() == 3 &&
         tensor.matrices < kMaxExperts && tensor.place.name.starts_with("blk.") &&
         tensor.place.name.ends_with("_exps.weight");
}

bool IsVector(const format::TensorInfo& tensor) {
  return tensor.shape.size() <= 1 || tensor.name.ends_with(".bias") ||
         tensor.name.ends_with("_norm.weight");
}

bool IsEmpty(const format::TensorInfo& tensor) { return tensor.bytes == 0; }

absl::Status PlanMatrices(const format::TensorInfo& tensor, const ops::Backend& backend,
                          PlannedTensor* plan) {
  size_t dims = tensor.shape.size();
  int64_t rows = tensor.shape[dims - 2], cols = tensor.shape[dims - 1];
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (rows > kMost || cols > kMost) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}': a matrix of {} x {} is too large", tensor.name, rows, cols));
  }
  auto bytes = [&](int64_t count) {
    return backend.PackedBytes(plan->place.layout, tensor.dtype, static_cast<int32_t>(count),
                               static_cast<int32_t>(cols));
  };
  plan->conversion = Conversion::kPack;
  plan->place.layout =
      backend.PreferredLayout(tensor.dtype, static_cast<int32_t>(rows), static_cast<int32_t>(cols));
  plan->matrices = dims == 3 ? static_cast<uint64_t>(tensor.shape[0]) : 1;
  plan->rows = static_cast<uint64_t>(rows);
  plan->cols = static_cast<int32_t>(cols);
  plan->source_row_bytes = RowBytes(tensor.dtype, static_cast<uint64_t>(cols));
  plan->matrix_bytes = bytes(rows);
  plan->group_rows = std::min<uint64_t>(plan->rows, kGroupRows);
  plan->group_bytes = bytes(static_cast<int64_t>(plan->group_rows));
  uint64_t full = plan->rows / plan->group_rows, rest = plan->rows % plan->group_rows;
  uint64_t sum = full * plan->group_bytes + (rest > 0 ? bytes(static_cast<int64_t>(rest)) : 0);
  if (sum != plan->matrix_bytes || plan->matrix_bytes == 0) {
    plan->group_rows = plan->rows;
    plan->group_bytes = plan->matrix_bytes;
  }
  if (plan->matrix_bytes == 0 || plan->matrix_bytes > kMaxImageBytes / plan->matrices) {
    return absl::InvalidArgumentError(fmt::format(
        "tensor '{}': {} matrices of {} x {} in layout {} take {} bytes each", tensor.name,
        plan->matrices, rows, cols, ops::LayoutName(plan->place.layout), plan->matrix_bytes));
  }
  plan->place.bytes = plan->matrices * plan->matrix_bytes;
  return absl::OkStatus();
}

// A run of whole blocks, each a "row" that becomes `group_bytes` bytes.
void PlanBlocks(const format::TensorInfo& tensor, Conversion conversion, PlannedTensor* plan) {
  const DTypeInfo& info = Info(tensor.dtype);
  bool floats = conversion == Conversion::kFloats;
  plan->conversion = conversion;
  plan->matrices = 1;
  plan->rows = tensor.bytes / info.block_bytes;
  plan->source_row_bytes = info.block_bytes;
  plan->group_bytes = floats ? uint64_t{info.block_elements} * sizeof(float) : info.block_bytes;
  plan->matrix_bytes = plan->rows * plan->group_bytes;
  plan->place.bytes = plan->matrix_bytes;
  if (floats) plan->place.dtype = DType::kF32;
}

absl::StatusOr<PlannedTensor> PlanTensor(const format::TensorInfo& tensor, uint32_t index,
                                         const ops::Backend& backend) {
  PlannedTensor plan;
  plan.source = index;
  plan.place.name = tensor.name;
  plan.place.dtype = tensor.dtype;
  plan.place.shape = tensor.shape;
  // Kept in the table with no bytes: a model that needs it sees its shape and says so.
  if (IsEmpty(tensor)) return plan;
  if (IsVector(tensor)) {
    PlanBlocks(tensor, Conversion::kFloats, &plan);
  } else if (tensor.shape.size() <= 3) {
    RETURN_IF_ERROR(PlanMatrices(tensor, backend, &plan));
  } else {
    PlanBlocks(tensor, Conversion::kCopy, &plan);
  }
  return plan;
}

std::string Fingerprint(const ImagePlan& plan, const format::ModelSource& source) {
  std::string text = SerializeManifest(ManifestOf(plan, source));
  return fmt::format("{:016x}{:016x}", Hash64(text, 1), Hash64(text, 2));
}

}  // namespace

std::string SegmentOf(std::string_view tensor) { return KeyOf(tensor).name; }

namespace {

// Puts a tensor, or each matrix of a stack of experts, behind what its segment holds already.
// Expert E follows the layer's other FFN tensors by E + 1; experts of one layer are alike, so one
// offset does for all matrices of a stack.
void PlaceTensor(uint32_t index, bool embed_first, PlannedTensor* tensor,
                 std::map<uint64_t, PlannedSegment>* segments) {
  SegmentKey key = KeyOf(tensor->place.name);
  if (embed_first && key.name == "embed") key.order = 0;
  auto put = [&](uint64_t order, std::string name, int32_t expert) {
    PlannedSegment& segment = (*segments)[order];
    segment.name = std::move(name);
    segment.expert = expert;
    const uint64_t offset = AlignUp(segment.bytes, kTensorAlignment);
    segment.bytes = offset + tensor->place.bytes;
    segment.tensors.push_back(index);
    return offset;
  };
  if (!tensor->place.spread) {
    tensor->place.offset = put(key.order, key.name, -1);
    return;
  }
  const std::string prefix = key.name.substr(0, key.name.rfind('.'));
  for (uint64_t e = 0; e < tensor->matrices; ++e) {
    tensor->place.offset =
        put(key.order + 1 + e, fmt::format("{}.exp.{}", prefix, e), static_cast<int32_t>(e));
  }
}

// Stacks of experts can be spread only where all of their layer have the same number.
absl::flat_hash_set<std::string> UnevenLayers(const std::vector<PlannedTensor>& tensors) {
  absl::flat_hash_map<std::string, uint64_t> counts;
  absl::flat_hash_set<std::string> uneven;
  for (const PlannedTensor& tensor : tensors) {
    if (!IsExpertStack(tensor)) continue;
    const std::string layer = KeyOf(tensor.place.name).name;
    auto [entry, added] = counts.try_emplace(layer, tensor.matrices);
    if (!added && entry->second != tensor.matrices) uneven.insert(layer);
  }
  return uneven;
}

}  // namespace

absl::StatusOr<ImagePlan> MakePlan(const format::ModelSource& source, const ops::Backend& backend) {
  ImagePlan plan;
  std::map<uint64_t, PlannedSegment> segments;
  for (uint32_t i = 0; i < source.tensors.size(); ++i) {
    ASSIGN_OR_RETURN(PlannedTensor tensor, PlanTensor(source.tensors[i], i, backend));
    plan.tensors.push_back(std::move(tensor));
  }
  const absl::flat_hash_set<std::string> uneven = UnevenLayers(plan.tensors);
  const bool embed_first =
      std::any_of(plan.tensors.begin(), plan.tensors.end(),
                  [](const PlannedTensor& t) { return KeyOf(t.place.name).order == 0; });
  for (uint32_t i = 0; i < source.tensors.size(); ++i) {
    PlannedTensor& tensor = plan.tensors[i];
    plan.total_bytes += tensor.place.bytes;
    if (tensor.place.bytes > kMaxImageBytes || plan.total_bytes > kMaxImageBytes) {
      return absl::InvalidArgumentError(
          fmt::format("tensor '{}' makes the model too large", source.tensors[i].name));
    }
    if (IsExpertStack(tensor) && !uneven.contains(KeyOf(tensor.place.name).name)) {
      tensor.place.spread = true;
      tensor.place.bytes = tensor.matrix_bytes;
    }
    PlaceTensor(i, embed_first, &tensor, &segments);
  }
  plan.total_bytes = 0;
  for (auto& [order, segment] : segments) {
    // A segment of empty tensors only still takes a page: the manager has no segments of no bytes.
    segment.bytes = AlignUp(std::max<uint64_t>(segment.bytes, 1), format::kImageAlignment);
    plan.total_bytes += segment.bytes;
    for (uint32_t tensor : segment.tensors) {
      if (segment.expert > 0) break;  // of a stack that is spread, the first one's segment
      plan.tensors[tensor].place.segment = static_cast<uint32_t>(plan.segments.size());
    }
    plan.segments.push_back(std::move(segment));
  }
  if (plan.segments.empty()) return absl::InvalidArgumentError("the model holds no tensors");
  plan.fingerprint = Fingerprint(plan, source);
  return plan;
}

format::ImageManifest ManifestOf(const ImagePlan& plan, const format::ModelSource& source) {
  format::ImageManifest manifest;
  manifest.fingerprint = plan.fingerprint;
  manifest.source = source.identity;
  uint64_t offset = 0;
  for (const PlannedSegment& segment : plan.segments) {
    manifest.segments.push_back(
        {segment.name, segment.bytes, format::CutIntoBlocks(offset, segment.bytes)});
    offset += segment.bytes;
  }
  for (const PlannedTensor& tensor : plan.tensors) {
    const TensorPlace& place = tensor.place;
    manifest.tensors.push_back({place.name, place.segment, place.offset, place.bytes, place.dtype,
                                ops::LayoutName(place.layout), place.shape, place.spread});
  }
  return manifest;
}

}  // namespace terrace::weights
