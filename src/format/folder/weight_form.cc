#include "format/folder/weight_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/units.h"

namespace terrace::format {
namespace {

constexpr int64_t kBlock = 32;  // elements of a block of Q4_0 and Q8_0
constexpr int64_t kPack = 8;    // 4-bit codes in an int32

bool IsFloat(SafeDType dtype) {
  return dtype == SafeDType::kF32 || dtype == SafeDType::kF16 || dtype == SafeDType::kBF16;
}

DType FloatType(SafeDType dtype) {
  return dtype == SafeDType::kF32   ? DType::kF32
         : dtype == SafeDType::kF16 ? DType::kF16
                                    : DType::kBF16;
}

absl::Status Bad(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("tensor '{}': {}", name, what));
}

}  // namespace

WeightForms::WeightForms(const CheckpointConfig* config, const RecipeReader* reader)
    : config_(*config), reader_(reader) {
  for (uint32_t i = 0; i < reader->tensors().size(); ++i) {
    index_.emplace(reader->tensors()[i].name, i);
  }
}

uint32_t WeightForms::Find(std::string_view name) const {
  auto at = index_.find(name);
  return at == index_.end() ? Recipe::kNone : at->second;
}

bool WeightForms::Has(const std::string& name) const {
  return Find(name + ".weight") != Recipe::kNone ||
         Find(name + ".weight_packed") != Recipe::kNone || Find(name + ".qweight") != Recipe::kNone;
}

absl::StatusOr<Recipe> WeightForms::Plain(uint32_t index) const {
  const SafeTensor& from = tensor(index);
  if (!IsFloat(from.dtype)) {
    return absl::UnimplementedError(
        fmt::format("tensor '{}': {} is not read here", from.name, SafeDTypeName(from.dtype)));
  }
  if (from.shape.empty() || from.bytes == 0) return Bad(from.name, "it is empty");
  Recipe recipe;
  recipe.dtype = FloatType(from.dtype);
  recipe.cols = recipe.source_cols = from.shape.back();
  for (size_t i = 0; i + 1 < from.shape.size(); ++i) recipe.rows *= from.shape[i];
  recipe.source_rows = recipe.rows;
  recipe.sources = {index};
  return recipe;
}

absl::StatusOr<Recipe> WeightForms::Matrix(const std::string& name) const {
  if (const uint32_t packed = Find(name + ".weight_packed"); packed != Recipe::kNone) {
    return Packed(name, packed);
  }
  if (const uint32_t packed = Find(name + ".qweight"); packed != Recipe::kNone) {
    return QWeight(name, packed);
  }
  const uint32_t weight = Find(name + ".weight");
  if (weight == Recipe::kNone) return Bad(name + ".weight", "it is not in the checkpoint");
  const SafeTensor& from = tensor(weight);
  if (from.shape.size() != 2 || from.bytes == 0) {
    return Bad(from.name, fmt::format("a matrix is wanted, not [{}]", fmt::join(from.shape, ", ")));
  }
  if (from.dtype == SafeDType::kF8E4M3 || from.dtype == SafeDType::kF8E5M2) {
    return Fp8(name, weight);
  }
  if (from.dtype == SafeDType::kI8) return Int8(name, weight);
  return Plain(weight);
}

absl::Status WeightForms::Expect(uint32_t index, const std::string& name, int64_t rows,
                                 int64_t cols, bool ints) const {
  if (index == Recipe::kNone) return Bad(name, "it is not in the checkpoint");
  const SafeTensor& found = tensor(index);
  int64_t elements = 1;
  for (int64_t dim : found.shape) elements *= dim;
  if (elements != rows * cols) {
    return Bad(name, fmt::format("its shape is [{}], not [{}, {}]", fmt::join(found.shape, ", "),
                                 rows, cols));
  }
  if (ints ? found.dtype != SafeDType::kI32 : !IsFloat(found.dtype)) {
    return Bad(name, fmt::format("{} is not read here", SafeDTypeName(found.dtype)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Recipe> WeightForms::Fp8(const std::string& name, uint32_t weight) const {
  const SafeTensor& from = tensor(weight);
  Recipe recipe;
  recipe.kind = Recipe::Kind::kFp8;
  recipe.dtype = DType::kBF16;
  recipe.rows = recipe.source_rows = from.shape[0];
  recipe.cols = recipe.source_cols = from.shape[1];
  recipe.sources = {weight};
  uint32_t scale = Find(name + ".weight_scale_inv");
  std::string scale_name = name + ".weight_scale_inv";
  if (scale == Recipe::kNone) {
    scale_name = name + ".weight_scale";
    scale = Find(scale_name);
  }
  if (scale == Recipe::kNone) return Bad(scale_name, "it is not in the checkpoint");
  int64_t elements = 1;
  for (int64_t dim : tensor(scale).shape) elements *= dim;
  recipe.scales = {scale};
  recipe.scale_cols = recipe.cols;
  if (elements == 1) {
    recipe.scale_rows = recipe.rows;
  } else if (elements == recipe.rows && config_.block_rows == 0) {
    recipe.scale_rows = 1;
  } else {
    recipe.scale_rows = config_.block_rows > 0 ? config_.block_rows : 128;
    recipe.scale_cols = config_.block_cols > 0 ? config_.block_cols : 128;
  }
  RETURN_IF_ERROR(Expect(scale, scale_name,
                         (recipe.rows + recipe.scale_rows - 1) / recipe.scale_rows,
                         (recipe.cols + recipe.scale_cols - 1) / recipe.scale_cols, false));
  return recipe;
}

absl::StatusOr<Recipe> WeightForms::Int8(const std::string& name, uint32_t weight) const {
  const SafeTensor& from = tensor(weight);
  Recipe recipe;
  recipe.kind = Recipe::Kind::kInt8;
  recipe.rows = recipe.source_rows = from.shape[0];
  recipe.cols = recipe.source_cols = from.shape[1];
  recipe.sources = {weight};
  const std::string scale_name = name + ".weight_scale";
  const uint32_t scale = Find(scale_name);
  if (scale == Recipe::kNone) return Bad(scale_name, "it is not in the checkpoint");
  int64_t elements = 1;
  for (int64_t dim : tensor(scale).shape) elements *= dim;
  recipe.scales = {scale};
  recipe.scale_rows = elements == 1 ? recipe.rows : 1;
  RETURN_IF_ERROR(Expect(scale, scale_name, elements == 1 ? 1 : recipe.rows, 1, false));
  std::vector<float> scales(static_cast<size_t>(elements));
  RETURN_IF_ERROR(reader_->ReadFloats(scale, 0, scales));
  for (float value : scales) {
    if (!std::isfinite(value)) return Bad(scale_name, fmt::format("a scale of {}", value));
  }
  // What was made for activations in INT8 keeps codes and scales as they are.
  if (config_.int8_activations && recipe.cols % kBlock == 0) {
    recipe.dtype = DType::kW8A8;
    return recipe;
  }
  // Q8_0 keeps codes and, in F16, scales; it needs scales in F16's normal range.
  recipe.dtype = recipe.cols % kBlock == 0 ? DType::kQ8_0 : DType::kBF16;
  for (float value : scales) {
    const float magnitude = std::abs(value);
    if (!(magnitude <= 65504.0f) || (magnitude < 0x1p-14f && magnitude != 0)) {
      recipe.dtype = DType::kBF16;
    }
  }
  return recipe;
}

absl::StatusOr<Recipe> WeightForms::Packed(const std::string& name, uint32_t weight) const {
  const SafeTensor& from = tensor(weight);
  if (config_.bits != 4) {
    return absl::UnimplementedError(fmt::format(
        "tensor '{}': packed {}-bit codes are not read by this build", from.name, config_.bits));
  }
  if (from.shape.size() != 2 || from.dtype != SafeDType::kI32 || from.bytes == 0 ||
      from.shape[1] > std::numeric_limits<int32_t>::max() / kPack) {
    return Bad(from.name, "packed codes are I32 [out, in / 8]");
  }
  Recipe recipe;
  recipe.kind = Recipe::Kind::kInt4Rows;
  recipe.rows = recipe.source_rows = from.shape[0];
  recipe.cols = recipe.source_cols = from.shape[1] * kPack;
  recipe.sources = {weight};
  recipe.scale_cols = config_.group > 0 ? config_.group : recipe.cols;
  const int64_t groups =
      CeilDiv(static_cast<uint64_t>(recipe.cols), static_cast<uint64_t>(recipe.scale_cols));
  recipe.scales = {Find(name + ".weight_scale")};
  RETURN_IF_ERROR(Expect(recipe.scales[0], name + ".weight_scale", recipe.rows, groups, false));
  if (!config_.symmetric) {
    recipe.zeros = {Find(name + ".weight_zero_point")};
    if (recipe.rows % kPack != 0) return Bad(from.name, "its rows are no multiple of 8");
    RETURN_IF_ERROR(
        Expect(recipe.zeros[0], name + ".weight_zero_point", recipe.rows / kPack, groups, true));
  }
  recipe.group_index = Find(name + ".weight_g_idx");
  if (recipe.group_index != Recipe::kNone) {
    RETURN_IF_ERROR(Expect(recipe.group_index, name + ".weight_g_idx", 1, recipe.cols, true));
  }
  const bool mixed = recipe.group_index != Recipe::kNone || recipe.scale_cols % kBlock != 0 ||
                     recipe.cols % kBlock != 0;
  recipe.dtype = mixed ? DType::kF16 : config_.symmetric ? DType::kQ4_0 : DType::kQ8_0;
  return recipe;
}

absl::StatusOr<Recipe> WeightForms::QWeight(const std::string& name, uint32_t weight) const {
  const SafeTensor& from = tensor(weight);
  if (config_.bits != 4) {
    return absl::UnimplementedError(fmt::format(
        "tensor '{}': packed {}-bit codes are not read by this build", from.name, config_.bits));
  }
  if (from.shape.size() != 2 || from.dtype != SafeDType::kI32 || from.bytes == 0 ||
      from.shape[0] > std::numeric_limits<int32_t>::max() / kPack ||
      from.shape[1] > std::numeric_limits<int32_t>::max() / kPack) {
    return Bad(from.name, "packed codes are a matrix of I32");
  }
  const bool awq = config_.quantization == "awq";
  Recipe recipe;
  recipe.kind = awq ? Recipe::Kind::kInt4Awq : Recipe::Kind::kInt4Gptq;
  recipe.rows = recipe.source_rows = from.shape[1] * (awq ? kPack : 1);
  recipe.cols = recipe.source_cols = from.shape[0] * (awq ? 1 : kPack);
  if (recipe.rows % kPack != 0) return Bad(from.name, "its columns are no multiple of 8");
  recipe.sources = {weight};
  recipe.scale_cols = config_.group > 0 ? config_.group : recipe.cols;
  const int64_t groups =
      CeilDiv(static_cast<uint64_t>(recipe.cols), static_cast<uint64_t>(recipe.scale_cols));
  recipe.scales = {Find(name + ".scales")};
  RETURN_IF_ERROR(Expect(recipe.scales[0], name + ".scales", groups, recipe.rows, false));
  const bool symmetric = !awq && config_.symmetric;
  if (!symmetric) {
    recipe.zeros = {Find(name + ".qzeros")};
    RETURN_IF_ERROR(Expect(recipe.zeros[0], name + ".qzeros", groups, recipe.rows / kPack, true));
    recipe.zero_bias = !awq && config_.zeros_less_one ? 1 : 0;
  }
  if (!awq && config_.mixed_groups) {
    recipe.group_index = Find(name + ".g_idx");
    RETURN_IF_ERROR(Expect(recipe.group_index, name + ".g_idx", 1, recipe.cols, true));
  }
  const bool mixed = recipe.group_index != Recipe::kNone || recipe.scale_cols % kBlock != 0 ||
                     recipe.cols % kBlock != 0;
  recipe.dtype = mixed ? DType::kF16 : symmetric ? DType::kQ4_0 : DType::kQ8_0;
  return recipe;
}

}  // namespace terrace::format
