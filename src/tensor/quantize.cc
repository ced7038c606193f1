#include "tensor/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fmt/format.h"
#include "tensor/half.h"

namespace terrace {
namespace {

void Store16(uint8_t* out, uint16_t value) {
  out[0] = static_cast<uint8_t>(value);
  out[1] = static_cast<uint8_t>(value >> 8);
}

// The value of largest magnitude, sign kept.
float Extreme(const float* x, int n) {
  float extreme = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  return extreme;
}

int Clamp(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::lrintf(value)), low, high);
}

float Inverse(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

void PutNibbles(const int* q, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((q[i] & 15) | ((q[i + 16] & 15) << 4));
}

void PutHighBits(const int* q, uint8_t* out) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>((q[i] >> 4) & 1) << i;
  for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(bits >> (8 * i));
}

// Q4_0 (half = 8) and Q5_0 (half = 16): the extreme value takes the code with the larger range.
void Symmetric(const float* x, int half, uint8_t* out) {
  const uint16_t d_bits = FloatToHalf(Extreme(x, 32) / static_cast<float>(-half));
  const float inverse = Inverse(HalfToFloat(d_bits));
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = Clamp(x[i] * inverse, -half, half - 1) + half;
  Store16(out, d_bits);
  if (half == 16) PutHighBits(q, out + 2);
  PutNibbles(q, half == 16 ? out + 6 : out + 2);
}

// Q4_1 (top = 15) and Q5_1 (top = 31).
void WithBias(const float* x, int top, uint8_t* out) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const uint16_t d_bits = FloatToHalf((*high - *low) / static_cast<float>(top));
  const uint16_t m_bits = FloatToHalf(*low);
  const float inverse = Inverse(HalfToFloat(d_bits));
  int q[32];
  for (int i = 0; i < 32; ++i) q[i] = Clamp((x[i] - HalfToFloat(m_bits)) * inverse, 0, top);
  Store16(out, d_bits);
  Store16(out + 2, m_bits);
  if (top == 31) PutHighBits(q, out + 4);
  PutNibbles(q, top == 31 ? out + 8 : out + 4);
}

void Q8_0(const float* x, uint8_t* out) {
  const uint16_t d_bits = FloatToHalf(std::fabs(Extreme(x, 32)) / 127.0f);
  const float inverse = Inverse(HalfToFloat(d_bits));
  Store16(out, d_bits);
  for (int i = 0; i < 32; ++i) {
    out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(Clamp(x[i] * inverse, -127, 127)));
  }
}

// Q4_K (top = 15) and Q5_K (top = 31): eight groups with a six-bit scale and minimum each.
void Q45K(const float* x, int top, uint8_t* out) {
  float scale[8];
  float min[8];
  for (int g = 0; g < 8; ++g) {
    const auto [low, high] = std::minmax_element(x + g * 32, x + g * 32 + 32);
    min[g] = std::max(0.0f, -*low);
    scale[g] = std::max(0.0f, *high + min[g]) / static_cast<float>(top);
  }
  const uint16_t d_bits = FloatToHalf(*std::max_element(scale, scale + 8) / 63.0f);
  const uint16_t dmin_bits = FloatToHalf(*std::max_element(min, min + 8) / 63.0f);
  const float d = HalfToFloat(d_bits);
  const float dmin = HalfToFloat(dmin_bits);
  Store16(out, d_bits);
  Store16(out + 2, dmin_bits);
  uint8_t* scales = out + 4;
  uint8_t* high_bits = out + 16;
  uint8_t* qs = top == 31 ? out + 48 : out + 16;
  std::memset(scales, 0, 12);
  if (top == 31) std::memset(high_bits, 0, 32);
  std::memset(qs, 0, 128);
  for (int g = 0; g < 8; ++g) {
    const int s = Clamp(scale[g] * Inverse(d), 0, 63);
    const int m = Clamp(min[g] * Inverse(dmin), 0, 63);
    if (g < 4) {
      scales[g] |= static_cast<uint8_t>(s);
      scales[g + 4] |= static_cast<uint8_t>(m);
    } else {
      scales[g + 4] |= static_cast<uint8_t>((s & 15) | ((m & 15) << 4));
      scales[g - 4] |= static_cast<uint8_t>((s >> 4) << 6);
      scales[g] |= static_cast<uint8_t>((m >> 4) << 6);
    }
    const float inverse = Inverse(d * static_cast<float>(s));
    for (int i = 0; i < 32; ++i) {
      const int q = Clamp((x[g * 32 + i] + dmin * static_cast<float>(m)) * inverse, 0, top);
      qs[(g / 2) * 32 + i] |= static_cast<uint8_t>((q & 15) << (4 * (g % 2)));
      if (top == 31) high_bits[i] |= static_cast<uint8_t>((q >> 4) << g);
    }
  }
}

void Q6K(const float* x, uint8_t* out) {
  float scale[16];
  for (int g = 0; g < 16; ++g) scale[g] = Extreme(x + g * 16, 16) / -32.0f;
  const uint16_t d_bits = FloatToHalf(Extreme(scale, 16) / -127.0f);
  const float inverse_d = Inverse(HalfToFloat(d_bits));
  std::memset(out, 0, 210);
  for (int g = 0; g < 16; ++g) {
    const int s = Clamp(scale[g] * inverse_d, -128, 127);
    out[192 + g] = static_cast<uint8_t>(static_cast<int8_t>(s));
    const float inverse = Inverse(HalfToFloat(d_bits) * static_cast<float>(s));
    for (int i = 0; i < 16; ++i) {
      const int at = g * 16 + i;
      const int q = Clamp(x[at] * inverse, -32, 31) + 32;
      const int half = at / 128;
      const int part = (at / 32) % 4;
      out[half * 64 + (part % 2) * 32 + at % 32] |=
          static_cast<uint8_t>((q & 15) << (4 * (part / 2)));
      out[128 + half * 32 + at % 32] |= static_cast<uint8_t>((q >> 4) << (2 * part));
    }
  }
  Store16(out + 208, d_bits);
}

void W8A8(std::span<const float> x, uint8_t* out) {
  const float scale = std::fabs(Extreme(x.data(), static_cast<int>(x.size()))) / 127.0f;
  const float inverse = Inverse(scale);
  std::memcpy(out, &scale, sizeof(scale));
  for (size_t i = 0; i < x.size(); ++i) {
    out[4 + i] = static_cast<uint8_t>(static_cast<int8_t>(Clamp(x[i] * inverse, -127, 127)));
  }
}

}  // namespace

absl::Status QuantizeRow(DType dtype, std::span<const float> values, std::span<std::byte> out) {
  const DTypeInfo& info = Info(dtype);
  if (values.size() % info.block_elements != 0 || out.size() < RowBytes(dtype, values.size())) {
    return absl::InvalidArgumentError(
        fmt::format("QuantizeRow: {} values into {} bytes of {} do not fit", values.size(),
                    out.size(), info.name));
  }
  if (dtype == DType::kW8A8) {
    W8A8(values, reinterpret_cast<uint8_t*>(out.data()));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < values.size(); i += info.block_elements) {
    const float* x = values.data() + i;
    uint8_t* to = reinterpret_cast<uint8_t*>(out.data()) + RowBytes(dtype, i);
    switch (dtype) {
      case DType::kF32:
        std::memcpy(to, x, sizeof(float));
        break;
      case DType::kF16:
        Store16(to, FloatToHalf(*x));
        break;
      case DType::kBF16:
        Store16(to, FloatToBf16(*x));
        break;
      case DType::kQ4_0:
        Symmetric(x, 8, to);
        break;
      case DType::kQ4_1:
        WithBias(x, 15, to);
        break;
      case DType::kQ5_0:
        Symmetric(x, 16, to);
        break;
      case DType::kQ5_1:
        WithBias(x, 31, to);
        break;
      case DType::kQ8_0:
        Q8_0(x, to);
        break;
      case DType::kQ4_K:
        Q45K(x, 15, to);
        break;
      case DType::kQ5_K:
        Q45K(x, 31, to);
        break;
      case DType::kQ6_K:
        Q6K(x, to);
        break;
      default:
        return absl::UnimplementedError(fmt::format("QuantizeRow: no quantiser for {}", info.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
