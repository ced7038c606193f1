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

// Four codes of a row at once: the bytes of a word stay where they are, so this is the same on
// machines of either byte order.
uint32_t LoadWord(const void* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
void StoreWord(uint8_t* p, uint32_t v) { std::memcpy(p, &v, sizeof(v)); }
// The same mask for the four bytes of a word.
constexpr uint32_t Each(uint32_t byte) { return byte * 0x01010101u; }

// Writes a row's bytes of all planes, from its eight units of four codes (see LowPlace, HighPlace).
template <int kBits>
void PutUnits(const uint32_t* unit, int row, uint8_t* planes) {
  uint8_t* to = planes + row * 4;
  if constexpr (kBits == 8) {
    for (int g = 0; g < 8; ++g) StoreWord(to + g * 64, unit[g]);
  } else if constexpr (kBits >= 4) {
    for (int j = 0; j < 4; ++j) {
      StoreWord(to + j * 64, (unit[j] & Each(15)) | (unit[j + 4] & Each(15)) << 4);
    }
  } else {
    for (int j = 0; j < 2; ++j) {
      uint32_t low = 0;
      for (int s = 0; s < 4; ++s) low |= (unit[j + 2 * s] & Each(3)) << (2 * s);
      StoreWord(to + j * 64, low);
    }
  }
  if constexpr (kBits == 3 || kBits == 5) {
    constexpr int kLow = kBits - 1;
    uint32_t high = 0;
    for (int g = 0; g < 8; ++g) high |= (unit[g] >> kLow & Each(1)) << g;
    StoreWord(to + kLow * 64, high);
  }
  if constexpr (kBits == 6) {
    for (int j = 0; j < 2; ++j) {
      uint32_t high = 0;
      for (int s = 0; s < 4; ++s) high |= (unit[j + 2 * s] >> 4 & Each(3)) << (2 * s);
      StoreWord(to + 256 + j * 64, high);
    }
  }
}

void PutCodes(int bits, const uint8_t* code, int row, uint8_t* planes) {
  uint32_t unit[8];
  std::memcpy(unit, code, sizeof(unit));
  switch (bits) {
    case 2:
      return PutUnits<2>(unit, row, planes);
    case 3:
      return PutUnits<3>(unit, row, planes);
    case 4:
      return PutUnits<4>(unit, row, planes);
    case 5:
      return PutUnits<5>(unit, row, planes);
    case 6:
      return PutUnits<6>(unit, row, planes);
    default:
      return PutUnits<8>(unit, row, planes);
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

// Blocks of one group whose 4-bit codes lie in the file as they do in the planes (column c beside
// c + 16): the header is kHalves F16 fields or one byte, then the codes.
template <int kHeaderBytes>
void PackNibbleBlock(const std::byte* source, uint64_t row_bytes, int32_t rows, uint8_t* packed) {
  constexpr int kCodes = kHeaderBytes == 1 ? 16 : kHeaderBytes * kRows;
  for (int r = 0; r < rows; ++r, source += row_bytes) {
    for (int h = 0; h < kHeaderBytes / 2; ++h) {
      std::memcpy(packed + h * 2 * kRows + 2 * r, source + 2 * h, 2);
    }
    if constexpr (kHeaderBytes == 1) std::memcpy(packed + r, source, 1);
    for (int j = 0; j < 4; ++j) {
      StoreWord(packed + kCodes + j * 64 + r * 4, LoadWord(source + kHeaderBytes + 4 * j));
    }
  }
}

void PackQ8Block(const std::byte* source, uint64_t row_bytes, int32_t rows, uint8_t* packed) {
  for (int r = 0; r < rows; ++r, source += row_bytes) {
    std::memcpy(packed + 2 * r, source, 2);
    for (int g = 0; g < 8; ++g) {
      StoreWord(packed + 2 * kRows + g * 64 + r * 4, LoadWord(source + 2 + 4 * g) ^ Each(0x80));
    }
  }
}

// Rows of W8A8: a scale each, then bytes.
void PackScaledRows(const std::byte* source, uint64_t row_bytes, int32_t cols, int32_t rows,
                    uint8_t* packed) {
  uint8_t* planes = packed + 4 * kRows;
  for (int32_t r = 0; r < rows; ++r, source += row_bytes) {
    StoreWord(packed + 4 * r, LoadWord(source));
    for (int32_t c = 0; c < cols; c += 4) {
      StoreWord(planes + int64_t{c} * kRows + r * 4, LoadWord(source + 4 + c) ^ Each(0x80));
    }
  }
}

// One block of the format of up to 16 rows that lie `row_bytes` apart.
void PackBlock(DType dtype, const BlockScheme& scheme, const std::byte* source, uint64_t row_bytes,
               int32_t rows, uint8_t* packed) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return PackNibbleBlock<2>(source, row_bytes, rows, packed);
    case DType::kQ4_1:
      return PackNibbleBlock<4>(source, row_bytes, rows, packed);
    case DType::kMXFP4:
      return PackNibbleBlock<1>(source, row_bytes, rows, packed);
    case DType::kQ8_0:
      return PackQ8Block(source, row_bytes, rows, packed);
    default:
      for (int32_t r = 0; r < rows; ++r, source += row_bytes) {
        PackBlockRow(dtype, scheme, source, r, packed);
      }
  }
}

// Elements of `kBytes` of 16 rows, row by row to column by column: [count][16 rows].
template <int kBytes>
void TransposeElements(const std::byte* source, uint64_t row_bytes, uint64_t count, int32_t rows,
                       std::byte* packed) {
  // By lines of the source: rows that lie a power of two apart would push one another out of the
  // first-level cache before their next element is read.
  constexpr uint64_t kColumns = 64 / kBytes;
  for (uint64_t c = 0; c < count; c += kColumns) {
    const uint64_t n = std::min(kColumns, count - c);
    alignas(64) std::byte lines[kRows][64] = {};
    for (int r = 0; r < rows; ++r) {
      const std::byte* from = source + static_cast<uint64_t>(r) * row_bytes + c * kBytes;
      if (n == kColumns) {
        std::memcpy(lines[r], from, 64);
      } else {
        std::memcpy(lines[r], from, n * kBytes);
      }
    }
    std::byte* to = packed + c * kRows * kBytes;
    for (uint64_t i = 0; i < n; ++i) {
      for (int r = 0; r < kRows; ++r) {
        std::memcpy(to + (i * kRows + static_cast<uint64_t>(r)) * kBytes, lines[r] + i * kBytes,
                    kBytes);
      }
    }
  }
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
  if (dtype == DType::kW8A8) return kRows * (n + 4);
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
    if (rows < kRows) std::memset(packed, 0, PackedGroupBytes(dtype, cols));
    const uint64_t block_bytes = PackedBlockBytes(dtype, *scheme);
    const int32_t blocks = cols / static_cast<int32_t>(info.block_elements);
    for (int32_t b = 0; b < blocks; ++b) {
      PackBlock(dtype, *scheme, source + static_cast<uint64_t>(b) * info.block_bytes, row_bytes,
                rows, reinterpret_cast<uint8_t*>(packed) + static_cast<uint64_t>(b) * block_bytes);
    }
    return;
  }
  if (dtype == DType::kW8A8) {
    if (rows < kRows) std::memset(packed, 0, PackedGroupBytes(dtype, cols));
    return PackScaledRows(source, row_bytes, cols, rows, reinterpret_cast<uint8_t*>(packed));
  }
  const uint64_t n = static_cast<uint64_t>(cols);
  if (dtype == DType::kBF16) {  // pairs of columns, the last filled up with zeros
    TransposeElements<4>(source, row_bytes, n / 2, rows, packed);
    if (n % 2 != 0) {
      std::byte* last = packed + n / 2 * kRows * 4;
      std::memset(last, 0, kRows * 4);
      for (uint64_t r = 0; r < static_cast<uint64_t>(rows); ++r) {
        std::memcpy(last + r * 4, source + r * row_bytes + (n - 1) * 2, 2);
      }
    }
    return;
  }
  switch (info.block_bytes) {
    case 1:
      return TransposeElements<1>(source, row_bytes, n, rows, packed);
    case 2:
      return TransposeElements<2>(source, row_bytes, n, rows, packed);
    default:
      return TransposeElements<4>(source, row_bytes, n, rows, packed);
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
  if (dtype == DType::kW8A8) {
    float scale;
    std::memcpy(&scale, group + 4 * lane, sizeof(scale));
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(group) + 4 * kRows + lane * 4;
    for (size_t c = 0; c < out.size(); ++c) {
      out[c] = scale * static_cast<float>(codes[c / 4 * 64 + c % 4] - 128);
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
