#include "tensor/dequantize.h"

#include <cstring>

#include "tensor/half.h"

namespace terrace {
namespace {

template <typename T, typename F>
void ConvertRow(const std::byte* row, std::span<float> out, F convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, row + i * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
}

template <typename T>
float ToFloat(T value) {
  return static_cast<float>(value);
}

}  // namespace

void DequantizeGroup(const BlockScheme& scheme, const GroupCodes& group, float* out) {
  const float d =
      scheme.e8m0 ? E8M0ToHalfFloat(static_cast<uint8_t>(group.d_bits)) : HalfToFloat(group.d_bits);
  const float dmin = HalfToFloat(group.dmin_bits);
  for (int half = 0; half < 2; ++half) {
    const float scale = d * static_cast<float>(group.scale[half]);
    float bias = 0.0f;
    if (scheme.has_bias) bias = dmin;
    if (scheme.has_min) bias = -(dmin * static_cast<float>(group.min[half]));
    for (int i = half * 16; i < half * 16 + 16; ++i) {
      const int q = scheme.table ? scheme.table[group.code[i]] : group.code[i] - scheme.offset;
      out[i] = scale * static_cast<float>(q) + bias;
    }
  }
}

void DequantizeRow(DType dtype, const std::byte* row, std::span<float> out) {
  switch (dtype) {
    case DType::kF32:
      return ConvertRow<float>(row, out, ToFloat<float>);
    case DType::kF16:
      return ConvertRow<uint16_t>(row, out, HalfToFloat);
    case DType::kBF16:
      return ConvertRow<uint16_t>(row, out, Bf16ToFloat);
    case DType::kF8E4M3:
      return ConvertRow<uint8_t>(row, out, F8E4M3ToFloat);
    case DType::kF8E5M2:
      return ConvertRow<uint8_t>(row, out, F8E5M2ToFloat);
    case DType::kI8:
      return ConvertRow<int8_t>(row, out, ToFloat<int8_t>);
    case DType::kI16:
      return ConvertRow<int16_t>(row, out, ToFloat<int16_t>);
    case DType::kI32:
      return ConvertRow<int32_t>(row, out, ToFloat<int32_t>);
    case DType::kI64:
      return ConvertRow<int64_t>(row, out, ToFloat<int64_t>);
    case DType::kF64:
      return ConvertRow<double>(row, out, ToFloat<double>);
    case DType::kW8A8: {
      float scale;
      std::memcpy(&scale, row, sizeof(scale));
      return ConvertRow<int8_t>(row + sizeof(scale), out,
                                [=](int8_t q) { return scale * static_cast<float>(q); });
    }
    default:
      break;
  }
  const BlockScheme& scheme = *SchemeOf(dtype);
  const DTypeInfo& info = Info(dtype);
  const int groups = static_cast<int>(info.block_elements) / kGroup;
  const size_t blocks = out.size() / info.block_elements;
  GroupCodes codes;
  for (size_t b = 0; b < blocks; ++b) {
    for (int g = 0; g < groups; ++g) {
      ReadGroup(dtype, row + b * info.block_bytes, g, &codes);
      DequantizeGroup(scheme, codes, out.data() + b * info.block_elements + g * kGroup);
    }
  }
}

}  // namespace terrace
