#include "tensor/blocks.h"

#include <cstring>

namespace terrace {
namespace {

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// A code of IQ3_S is three bits of magnitude (2 n + 1) and a sign.
constexpr int8_t kIq3Values[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};

constexpr uint16_t kIq3Grid[512] = {
#include "tensor/iq3s_grid.inc"
};

constexpr BlockScheme kQ4_0 = {4, 8, nullptr, 0, false, false, false};
constexpr BlockScheme kQ4_1 = {4, 0, nullptr, 0, false, true, false};
constexpr BlockScheme kQ5_0 = {5, 16, nullptr, 0, false, false, false};
constexpr BlockScheme kQ5_1 = {5, 0, nullptr, 0, false, true, false};
constexpr BlockScheme kQ8_0 = {8, 128, nullptr, 0, false, false, false};
constexpr BlockScheme kQ2_K = {2, 0, nullptr, 16, true, false, false};
constexpr BlockScheme kQ3_K = {3, 4, nullptr, 16, false, false, false};
constexpr BlockScheme kQ4_K = {4, 0, nullptr, 32, true, false, false};
constexpr BlockScheme kQ5_K = {5, 0, nullptr, 32, true, false, false};
constexpr BlockScheme kQ6_K = {6, 32, nullptr, 16, false, false, false};
constexpr BlockScheme kIQ4_NL = {4, 0, kIq4Values, 0, false, false, false};
constexpr BlockScheme kIQ4_XS = {4, 0, kIq4Values, 32, false, false, false};
constexpr BlockScheme kIQ3_S = {4, 0, kIq3Values, 32, false, false, false};
constexpr BlockScheme kMXFP4 = {4, 0, kMxfp4Values, 0, false, false, true};
constexpr BlockScheme kTQ2_0 = {2, 1, nullptr, 0, false, false, false};

uint16_t Load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }

// 16 bytes of nibbles: the low ones are codes 0..15, the high ones 16..31.
void ReadNibbles(const uint8_t* qs, uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = qs[i] & 15;
    code[i + 16] = qs[i] >> 4;
  }
}

void AddHighBits(uint32_t bits, uint8_t* code) {
  for (int i = 0; i < kGroup; ++i) code[i] |= static_cast<uint8_t>(((bits >> i) & 1) << 4);
}

uint32_t Load32(const uint8_t* p) {
  return static_cast<uint32_t>(Load16(p)) | (static_cast<uint32_t>(Load16(p + 2)) << 16);
}

// Two-bit codes of Q2_K, Q3_K and TQ2_0: 32 bytes hold four groups.
void ReadPairs(const uint8_t* qs, int group, uint8_t* code) {
  const uint8_t* base = qs + (group / 4) * 32;
  const int shift = 2 * (group % 4);
  for (int i = 0; i < kGroup; ++i) code[i] = (base[i] >> shift) & 3;
}

// The six-bit scales and minima of Q4_K and Q5_K.
void ReadScaleMin(const uint8_t* s, int group, GroupCodes* out) {
  int scale;
  int min;
  if (group < 4) {
    scale = s[group] & 63;
    min = s[group + 4] & 63;
  } else {
    scale = (s[group + 4] & 15) | ((s[group - 4] >> 6) << 4);
    min = (s[group + 4] >> 4) | ((s[group] >> 6) << 4);
  }
  out->scale[0] = out->scale[1] = static_cast<int8_t>(scale);
  out->min[0] = out->min[1] = static_cast<uint8_t>(min);
}

void ReadQ2K(const uint8_t* b, int group, GroupCodes* out) {
  ReadPairs(b + 16, group, out->code);
  out->d_bits = Load16(b + 80);
  out->dmin_bits = Load16(b + 82);
  for (int h = 0; h < 2; ++h) {
    out->scale[h] = static_cast<int8_t>(b[group * 2 + h] & 15);
    out->min[h] = b[group * 2 + h] >> 4;
  }
}

void ReadQ3K(const uint8_t* b, int group, GroupCodes* out) {
  ReadPairs(b + 32, group, out->code);
  for (int i = 0; i < kGroup; ++i) {
    out->code[i] |= static_cast<uint8_t>(((b[i] >> group) & 1) << 2);
  }
  const uint8_t* s = b + 96;
  for (int h = 0; h < 2; ++h) {
    const int i = group * 2 + h;
    const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    const int high = (s[8 + i % 4] >> (2 * (i / 4))) & 3;
    out->scale[h] = static_cast<int8_t>((low | (high << 4)) - 32);
  }
  out->d_bits = Load16(b + 108);
}

void ReadQ45K(const uint8_t* b, bool five, int group, GroupCodes* out) {
  out->d_bits = Load16(b);
  out->dmin_bits = Load16(b + 2);
  ReadScaleMin(b + 4, group, out);
  const uint8_t* high = b + 16;
  const uint8_t* qs = (five ? b + 48 : b + 16) + (group / 2) * 32;
  for (int i = 0; i < kGroup; ++i) {
    out->code[i] = group % 2 == 0 ? qs[i] & 15 : qs[i] >> 4;
    if (five) out->code[i] |= static_cast<uint8_t>(((high[i] >> group) & 1) << 4);
  }
}

void ReadQ6K(const uint8_t* b, int group, GroupCodes* out) {
  const int half = group / 4;
  const int part = group % 4;
  const uint8_t* low = b + half * 64 + (part % 2) * 32;
  const uint8_t* high = b + 128 + half * 32;
  for (int i = 0; i < kGroup; ++i) {
    const int nibble = (low[i] >> (4 * (part / 2))) & 15;
    out->code[i] = static_cast<uint8_t>(nibble | (((high[i] >> (2 * part)) & 3) << 4));
  }
  out->scale[0] = static_cast<int8_t>(b[192 + group * 2]);
  out->scale[1] = static_cast<int8_t>(b[193 + group * 2]);
  out->d_bits = Load16(b + 208);
}

void ReadIQ4XS(const uint8_t* b, int group, GroupCodes* out) {
  out->d_bits = Load16(b);
  const int high = (Load16(b + 2) >> (2 * group)) & 3;
  const int low = (b[4 + group / 2] >> (4 * (group % 2))) & 15;
  out->scale[0] = out->scale[1] = static_cast<int8_t>((low | (high << 4)) - 32);
  ReadNibbles(b + 8 + group * 16, out->code);
}

void ReadIQ3S(const uint8_t* b, int group, GroupCodes* out) {
  out->d_bits = Load16(b);
  const uint8_t* qs = b + 2 + group * 8;
  const uint8_t high = b[66 + group];
  const uint8_t* signs = b + 74 + group * 4;
  for (int e = 0; e < 8; ++e) {
    const uint16_t entry = kIq3Grid[qs[e] | (((high >> e) & 1) << 8)];
    for (int i = 0; i < 4; ++i) {
      const int at = e * 4 + i;
      const int negative = (signs[at / 8] >> (at % 8)) & 1;
      out->code[at] = static_cast<uint8_t>(((entry >> (4 * i)) & 7) | (negative << 3));
    }
  }
  const int s = (b[106 + group / 2] >> (4 * (group % 2))) & 15;
  out->scale[0] = out->scale[1] = static_cast<int8_t>(1 + 2 * s);
}

}  // namespace

const BlockScheme* SchemeOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return &kQ4_0;
    case DType::kQ4_1:
      return &kQ4_1;
    case DType::kQ5_0:
      return &kQ5_0;
    case DType::kQ5_1:
      return &kQ5_1;
    case DType::kQ8_0:
      return &kQ8_0;
    case DType::kQ2_K:
      return &kQ2_K;
    case DType::kQ3_K:
      return &kQ3_K;
    case DType::kQ4_K:
      return &kQ4_K;
    case DType::kQ5_K:
      return &kQ5_K;
    case DType::kQ6_K:
      return &kQ6_K;
    case DType::kIQ4_NL:
      return &kIQ4_NL;
    case DType::kIQ4_XS:
      return &kIQ4_XS;
    case DType::kIQ3_S:
      return &kIQ3_S;
    case DType::kMXFP4:
      return &kMXFP4;
    case DType::kTQ2_0:
      return &kTQ2_0;
    default:
      return nullptr;
  }
}

void ReadGroup(DType dtype, const std::byte* block, int group, GroupCodes* out) {
  const uint8_t* b = reinterpret_cast<const uint8_t*>(block);
  out->dmin_bits = 0;
  out->scale[0] = out->scale[1] = 1;
  out->min[0] = out->min[1] = 0;
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      out->d_bits = Load16(b);
      return ReadNibbles(b + 2, out->code);
    case DType::kQ4_1:
      out->d_bits = Load16(b);
      out->dmin_bits = Load16(b + 2);
      return ReadNibbles(b + 4, out->code);
    case DType::kQ5_0:
      out->d_bits = Load16(b);
      ReadNibbles(b + 6, out->code);
      return AddHighBits(Load32(b + 2), out->code);
    case DType::kQ5_1:
      out->d_bits = Load16(b);
      out->dmin_bits = Load16(b + 2);
      ReadNibbles(b + 8, out->code);
      return AddHighBits(Load32(b + 4), out->code);
    case DType::kQ8_0:
      out->d_bits = Load16(b);
      for (int i = 0; i < kGroup; ++i) out->code[i] = b[2 + i] ^ 0x80;
      return;
    case DType::kMXFP4:
      out->d_bits = b[0];
      return ReadNibbles(b + 1, out->code);
    case DType::kTQ2_0:
      out->d_bits = Load16(b + 64);
      return ReadPairs(b, group, out->code);
    case DType::kQ2_K:
      return ReadQ2K(b, group, out);
    case DType::kQ3_K:
      return ReadQ3K(b, group, out);
    case DType::kQ4_K:
      return ReadQ45K(b, false, group, out);
    case DType::kQ5_K:
      return ReadQ45K(b, true, group, out);
    case DType::kQ6_K:
      return ReadQ6K(b, group, out);
    case DType::kIQ4_XS:
      return ReadIQ4XS(b, group, out);
    case DType::kIQ3_S:
      return ReadIQ3S(b, group, out);
    default:
      std::memset(out, 0, sizeof(*out));
      return;
  }
}

}  // namespace terrace
