#include "ops/cpu/packing.h"

#include <algorithm>
#include <cstring>

#include "tensor/blocks.h"
#include "tensor/dequantize.h"

namespace terrace::ops::cpu {
namespace {

constexpr int kRows = 16;

// Offsets inside a packed block of a block format.
struct PackedBlock {
  explicit PackedBlock(const BlockScheme& s)
      : d_bytes(s.e8m0 ? kRows : 2 * kRows),
        dmin_bytes(s.has_min || s.has_bias ? 2 * kRows : 0),
        subs(s.sub_elements == 0 ? 0 : kGroup / s.sub_elements),
        scale_bytes(subs * kRows),
        min_bytes(s.has_min ? subs * kRows : 0),
        plane_bytes(s.code_bits * kGroup * kRows / 8) {}

  int header_bytes() const { return d_bytes + dmin_bytes; }
  int group_bytes() const { return scale_bytes + min_bytes + plane_bytes; }

  int d_bytes;
  int dmin_bytes;
  int subs;  // sub-scales of 32 columns: 0, 1 or 2
  int scale_bytes;
  int min_bytes;
  int plane_bytes;
};

// Where bits of a code lie: byte offset of the unit's register and shift inside the byte.
struct Place {
  int offset;
  int shift;
};
Place LowPlace(int bits, int unit) {
  if (bits == 8) return {unit * 64, 0};
  if (bits >= 4) return {(unit % 4) * 64, (unit / 4) * 4};
  return {(unit % 2) * 64, (unit / 2) * 2};
}
int LowBits(int bits) { return bits == 8 ? 8 : bits >= 4 ? 4 : 2; }
Place HighPlace(int bits, int unit) {
  const int base = bits == 3 ? 128 : 256;
  if (bits == 6) return {base + (unit % 2) * 64, (unit / 2) * 2};
  return {base, unit};
}

void PutCodes(int bits, const uint8_t* code, int row, uint8_t* planes) {
  const int low_bits = LowBits(bits);
  for (int c = 0; c < kGroup; ++c) {
    const int unit = c / 4;
    const int at = row * 4 + c % 4;
    const Place low = LowPlace(bits, unit);
    planes[low.offset + at] |= static_cast<uint8_t>((code[c] & ((1 << low_bits) - 1)) << low.shift);
    if (bits > low_bits) {
      const Place high = HighPlace(bits, unit);
      planes[high.offset + at] |= static_cast<uint8_t>((code[c] >> low_bits) << high.shift);
    }
  }
}

void GetCodes(int bits, const uint8_t* planes, int row, uint8_t* code) {
  const int low_bits = LowBits(bits);
  const int high_mask = (1 << (bits - low_bits)) - 1;
  for (int c = 0; c < kGroup; ++c) {
    const int unit = c / 4;
    const int at = row * 4 + c % 4;
    const Place low = LowPlace(bits, unit);
    int value = (planes[low.offset + at] >> low.shift) & ((1 << low_bits) - 1);
    if (bits > low_bits) {
      const Place high = HighPlace(bits, unit);
      value |= ((planes[high.offset + at] >> high.shift) & high_mask) << low_bits;
    }
    code[c] = static_cast<uint8_t>(value);
  }
}

void PackBlockRow(DType dtype, const BlockScheme& scheme, const std::byte* source, int row,
                  uint8_t* packed) {
  const PackedBlock layout(scheme);
  const int groups = static_cast<int>(Info(dtype).block_elements) / kGroup;
  GroupCodes codes;
  for (int g = 0; g < groups; ++g) {
    ReadGroup(dtype, source, g, &codes);
    uint8_t* group = packed + layout.header_bytes() + g * layout.group_bytes();
    for (int s = 0; s < layout.subs; ++s) {
      group[s * kRows + row] = static_cast<uint8_t>(codes.scale[s]);
      if (scheme.has_min) group[layout.scale_bytes + s * kRows + row] = codes.min[s];
    }
    PutCodes(scheme.code_bits, codes.code, row, group + layout.scale_bytes + layout.min_bytes);
  }
  if (scheme.e8m0) {
    packed[row] = static_cast<uint8_t>(codes.d_bits);
  } else {
    std::memcpy(packed + 2 * row, &codes.d_bits, 2);
  }
  if (layout.dmin_bytes > 0) std::memcpy(packed + layout.d_bytes + 2 * row, &codes.dmin_bits, 2);
}

void UnpackBlockRow(DType dtype, const BlockScheme& scheme, const uint8_t* packed, int row,
                    float* out) {
  const PackedBlock layout(scheme);
  const int groups = static_cast<int>(Info(dtype).block_elements) / kGroup;
  GroupCodes codes = {};
  codes.scale[0] = codes.scale[1] = 1;
  if (scheme.e8m0) {
    codes.d_bits = packed[row];
  } else {
    std::memcpy(&codes.d_bits, packed + 2 * row, 2);
  }
  if (layout.dmin_bytes > 0) std::memcpy(&codes.dmin_bits, packed + layout.d_bytes + 2 * row, 2);
  for (int g = 0; g < groups; ++g) {
    const uint8_t* group = packed + layout.header_bytes() + g * layout.group_bytes();
    for (int half = 0; half < 2 && layout.subs > 0; ++half) {
      const int s = layout.subs == 2 ? half : 0;
      codes.scale[half] = static_cast<int8_t>(group[s * kRows + row]);
      if (scheme.has_min) codes.min[half] = group[layout.scale_bytes + s * kRows + row];
    }
    GetCodes(scheme.code_bits, group + layout.scale_bytes + layout.min_bytes, row, codes.code);
    DequantizeGroup(scheme, codes, out + g * kGroup);
  }
}

uint64_t PackedBlockBytes(DType dtype, const BlockScheme& scheme) {
  const PackedBlock layout(scheme);
  return static_cast<uint64_t>(layout.header_bytes()) +
         static_cast<uint64_t>(layout.group_bytes()) * (Info(dtype).block_elements / kGroup);
}

}  // namespace

bool Packable(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return true;
    default:
      return Info(dtype).quantised;
  }
}

uint64_t PackedGroupBytes(DType dtype, int32_t cols) {
  const uint64_t n = static_cast<uint64_t>(cols);
  if (const BlockScheme* scheme = SchemeOf(dtype)) {
    return n / Info(dtype).block_elements * PackedBlockBytes(dtype, *scheme);
  }
  if (dtype == DType::kBF16) return (n + 1) / 2 * kRows * 4;
  return n * kRows * Info(dtype).block_bytes;
}

void PackGroup(DType dtype, int32_t cols, int32_t rows, const std::byte* source,
               std::byte* packed) {
  const DTypeInfo& info = Info(dtype);
  const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
  if (const BlockScheme* scheme = SchemeOf(dtype)) {
    std::memset(packed, 0, PackedGroupBytes(dtype, cols));
    const uint64_t block_bytes = PackedBlockBytes(dtype, *scheme);
    const int32_t blocks = cols / static_cast<int32_t>(info.block_elements);
    for (int32_t b = 0; b < blocks; ++b) {
      uint8_t* to = reinterpret_cast<uint8_t*>(packed) + static_cast<uint64_t>(b) * block_bytes;
      for (int32_t r = 0; r < rows; ++r) {
        PackBlockRow(dtype, *scheme,
                     source + static_cast<uint64_t>(r) * row_bytes +
                         static_cast<uint64_t>(b) * info.block_bytes,
                     r, to);
      }
    }
    return;
  }
  const uint32_t bytes = info.block_bytes;
  const int pair = dtype == DType::kBF16 ? 2 : 1;
  if (rows < kRows || cols % pair != 0) std::memset(packed, 0, PackedGroupBytes(dtype, cols));
  for (int32_t c = 0; c < cols; ++c) {
    std::byte* to = packed + static_cast<uint64_t>(c / pair) * kRows * bytes * pair +
                    static_cast<uint64_t>(c % pair) * bytes;
    const std::byte* from = source + static_cast<uint64_t>(c) * bytes;
    for (int32_t r = 0; r < rows; ++r) {
      std::memcpy(to + static_cast<uint64_t>(r) * bytes * pair,
                  from + static_cast<uint64_t>(r) * row_bytes, bytes);
    }
  }
}

void UnpackRow(DType dtype, const std::byte* packed, int64_t row, std::span<float> out) {
  const int32_t cols = static_cast<int32_t>(out.size());
  const std::byte* group =
      packed + static_cast<uint64_t>(row / kRows) * PackedGroupBytes(dtype, cols);
  const int lane = static_cast<int>(row % kRows);
  const DTypeInfo& info = Info(dtype);
  if (const BlockScheme* scheme = SchemeOf(dtype)) {
    const uint64_t block_bytes = PackedBlockBytes(dtype, *scheme);
    for (size_t b = 0; b < out.size() / info.block_elements; ++b) {
      UnpackBlockRow(dtype, *scheme, reinterpret_cast<const uint8_t*>(group) + b * block_bytes,
                     lane, out.data() + b * info.block_elements);
    }
    return;
  }
  const uint64_t bytes = info.block_bytes;
  const uint64_t pair = dtype == DType::kBF16 ? 2 : 1;
  for (size_t c = 0; c < out.size(); ++c) {
    const std::byte* from = group + c / pair * kRows * bytes * pair +
                            static_cast<uint64_t>(lane) * bytes * pair + c % pair * bytes;
    DequantizeRow(dtype, from, out.subspan(c, 1));
  }
}

}  // namespace terrace::ops::cpu
