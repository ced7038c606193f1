// Attention of many query units with the tiles of AMX. Queries and keys are split into two BF16
// numbers each, whose products give scores of about 16 bits; weights of the softmax and values are
// rounded to BF16. Included by one translation unit after kernels_amx.h.
//
// Up to kTileUnits units go through a chunk of kTileKeys keys together: scores, weights corrected
// for the running maximum, weighted values. Chunks begin at multiples of kTileKeys.
#ifndef TERRACE_OPS_CPU_KERNELS_AMX_ATTENTION_H_
#define TERRACE_OPS_CPU_KERNELS_AMX_ATTENTION_H_

#include "ops/cpu/kernels_amx.h"

namespace terrace::ops::cpu {
namespace {

constexpr int kTileKeyBlocks = kTileKeys / kKvBlockTokens;

// A pass's scratch, cut from AttentionArgs::scratch.
struct TilePass {
  TilePass(const AttentionArgs& a, int64_t first_unit, int unit_count)
      : first(first_unit), count(unit_count) {
    float* at = a.scratch;
    auto cut = [&](int64_t floats) {
      float* const begin = at;
      at += floats;
      return begin;
    };
    auto tiles = [&](int64_t floats) { return reinterpret_cast<uint8_t*>(cut(floats)); };
    query[0] = tiles(int64_t{kTileUnits} * a.key_dim / 2);
    query[1] = tiles(int64_t{kTileUnits} * a.key_dim / 2);
    key[0] = tiles(int64_t{kTileKeys} * a.key_dim / 2);
    key[1] = tiles(int64_t{kTileKeys} * a.key_dim / 2);
    value = tiles(int64_t{kTileKeys} * a.value_dim / 2);
    weight = tiles(int64_t{kTileUnits} * kTileKeys / 2);
    score = cut(int64_t{kTileUnits} * kTileKeys);
    key_scale = cut(kTileKeys);
    value_scale = cut(kTileKeys);
    state.output = cut(int64_t{kTileUnits} * a.value_dim);
    state.sum = cut(int64_t{kTileUnits} * kLanes);
    state.top = cut(kTileUnits);
  }

  const int64_t first;
  const int count;
  uint8_t* query[2];  // high and low parts: [16 units][32 dims] tiles, those of a unit together
  uint8_t* key[2];    // [16 pairs of dims][16 keys] tiles, those of a key block together
  uint8_t* value;     // [16 pairs of keys][16 dims] tiles, those of the same dims together
  uint8_t* weight;    // [16 units][32 keys] tiles, those of a unit together
  float* score;       // [units][kTileKeys]
  float* key_scale;   // INT8 only
  float* value_scale;
  AttentionState state;  // output, sum and top, as EndUnits takes them
};

// The BF16 number next to each lane, as a float.
inline F HighPart(F x) {
  return AsF(AndI(AddI(AsI(x), SetI(0x8000)), SetI(static_cast<int32_t>(0xffff0000u))));
}
// 32 floats that BF16 can hold, or rounded to it, in order.
inline void StoreBf16(uint8_t* to, F low, F high) {
  StoreI(to, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(high, low)));
}

void BeginTileUnits(const AttentionArgs& a, const TilePass& p) {
  const F scale = Set1(a.scale);
  for (int u = 0; u < (p.count + 15) / 16 * 16; ++u) {
    const int64_t unit = p.first + u;
    const float* q = a.q + unit / a.group * a.q_stride + unit % a.group * a.key_dim;
    const int64_t at = int64_t{u / 16} * 32 * a.key_dim + u % 16 * 64;
    for (int32_t d = 0; d < a.key_dim; d += 32) {
      const F x0 = u < p.count ? Mul(Load(q + d), scale) : Set1(0.0f);
      const F x1 = u < p.count ? Mul(Load(q + d + kLanes), scale) : Set1(0.0f);
      const F high0 = HighPart(x0);
      const F high1 = HighPart(x1);
      StoreBf16(p.query[0] + at + d * 32, high0, high1);
      StoreBf16(p.query[1] + at + d * 32, Sub(x0, high0), Sub(x1, high1));
    }
    for (int32_t d = 0; d < a.value_dim; d += kLanes) {
      Store(p.state.output + u * a.value_dim + d, Set1(0.0f));
    }
    Store(p.state.sum + u * kLanes, Set1(0.0f));
    p.state.top[u] = -__builtin_inff();
  }
}

// A KV block's keys as pairs of dimensions.
template <KvDType kType>
void KeyPairs(const AttentionArgs& a, const TilePass& p, int32_t block, int slot,
              const std::byte* next) {
  const std::byte* tile = a.blocks[block] + a.key_offset;
  const int64_t at = int64_t{slot} * a.key_dim * 32;
  for (int32_t d = 0; d < a.key_dim; d += 2) {
    const F x0 = LoadKv<kType>(tile, int64_t{d} * kKvBlockTokens);
    const F x1 = LoadKv<kType>(tile, int64_t{d + 1} * kKvBlockTokens);
    PrefetchFar(next + a.key_offset + int64_t{d} * 32);
    if constexpr (kType == KvDType::kI8) {
      StoreI(p.key[0] + at + d * 32, RoundPair(x0, x1));
    } else {
      const F high0 = HighPart(x0);
      const F high1 = HighPart(x1);
      StoreI(p.key[0] + at + d * 32, OrI(_mm512_srli_epi32(AsI(high0), 16), AsI(high1)));
      StoreI(p.key[1] + at + d * 32, RoundPair(Sub(x0, high0), Sub(x1, high1)));
    }
  }
  if constexpr (kType == KvDType::kI8) {
    Store(p.key_scale + slot * kLanes,
          Load(reinterpret_cast<const float*>(tile + a.key_dim * kKvBlockTokens)));
  }
}

// A KV block's values as pairs of keys; those outside [low, high) of the chunk may hold anything
// and become zeros.
template <KvDType kType>
void ValuePairs(const AttentionArgs& a, const TilePass& p, int32_t block, int slot, int32_t low,
                int32_t high, const std::byte* next) {
  const std::byte* tile = a.blocks[block] + a.value_offset;
  for (int pair = 0; pair < 8; ++pair) {
    const int32_t key = slot * kKvBlockTokens + 2 * pair;
    const bool has0 = key >= low && key < high;
    const bool has1 = key + 1 >= low && key + 1 < high;
    const int64_t row = int64_t{2 * pair} * a.value_dim;
    uint8_t* to = p.value + slot / 2 * kTileBytes + (slot % 2 * 8 + pair) * 64;
    for (int32_t d = 0; d < a.value_dim; d += kLanes) {
      const F x0 = has0 ? LoadKv<kType>(tile, row + d) : Set1(0.0f);
      const F x1 = has1 ? LoadKv<kType>(tile, row + a.value_dim + d) : Set1(0.0f);
      PrefetchFar(next + a.value_offset + (row + 2 * d) * 2);
      StoreI(to + int64_t{d} * (kTileKeys / 32) * 64, ConvertPair(x0, x1));
    }
  }
  if constexpr (kType == KvDType::kI8) {
    const F scale = Load(reinterpret_cast<const float*>(tile + a.value_dim * kKvBlockTokens));
    Store(p.value_scale + slot * kLanes,
          KeepLanes(scale, low - slot * kLanes, high - slot * kLanes, Set1(0.0f)));
  }
}

// Scores of kM x 16 units with kN blocks of keys.
template <KvDType kType, int kM, int kN>
void ScoreTiles(const AttentionArgs& a, const TilePass& p, int unit, int block) {
  const int64_t unit_bytes = int64_t{a.key_dim} * 32;
  const int32_t steps = a.key_dim / 32;
  const uint8_t *q[2], *k[2];
  for (int i = 0; i < 2; ++i) {
    q[i] = p.query[i] + unit / 16 * unit_bytes;
    k[i] = p.key[i] + block * unit_bytes;
  }
  _tile_zero(0);
  if constexpr (kN > 1) _tile_zero(1);
  if constexpr (kM > 1) _tile_zero(2);
  if constexpr (kM > 1 && kN > 1) _tile_zero(3);
  AddProducts<kM, kN>(q[0], q[0] + unit_bytes, k[0], k[0] + unit_bytes, steps);
  AddProducts<kM, kN>(q[1], q[1] + unit_bytes, k[0], k[0] + unit_bytes, steps);
  if constexpr (kType != KvDType::kI8) {
    AddProducts<kM, kN>(q[0], q[0] + unit_bytes, k[1], k[1] + unit_bytes, steps);
  }
  float* const to = p.score + unit * kTileKeys + block * kLanes;
  _tile_stored(0, to, kTileKeys * 4);
  if constexpr (kN > 1) _tile_stored(1, to + kLanes, kTileKeys * 4);
  if constexpr (kM > 1) _tile_stored(2, to + 16 * kTileKeys, kTileKeys * 4);
  if constexpr (kM > 1 && kN > 1) _tile_stored(3, to + 16 * kTileKeys + kLanes, kTileKeys * 4);
}

// e^x for x <= 0, within (|x| + 2) 2^-23 of itself, which BF16 does not see; below 2^-126 zero. NaN
// stays NaN.
inline F WeightOf(F x) {
  const F z = Mul(x, Set1(1.44269504f));
  const __mmask16 some = _mm512_cmp_ps_mask(z, Set1(-126.0f), _CMP_NLT_UQ);
  const F r = _mm512_reduce_ps(z, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // in [0, 1)
  F p = Set1(0.00187757667f);                                                  // 2^r within 2^-23
  p = Fma(p, r, Set1(0.00898934009f));
  p = Fma(p, r, Set1(0.0558263181f));
  p = Fma(p, r, Set1(0.240153617f));
  p = Fma(p, r, Set1(0.693153073f));
  p = Fma(p, r, Set1(0.999999925f));
  return _mm512_maskz_scalef_ps(some, p, z);
}

// Turns one unit's scores of `blocks` blocks of keys into weights, as WeighChunk does.
template <KvDType kType>
void WeighTileUnit(const AttentionArgs& a, const TilePass& p, int u, int32_t start, int blocks) {
  const float kNone = -__builtin_inff();
  const int32_t position = PositionOf(a, p.first + u);
  const int32_t low = a.window > 0 ? position - a.window + 1 - start : 0;
  const int32_t high = position + 1 - start;
  float* const score = p.score + u * kTileKeys;
  F best = Set1(kNone);
  for (int j = 0; j < blocks; ++j) {
    F x = Load(score + j * kLanes);
    if constexpr (kType == KvDType::kI8) x = Mul(x, Load(p.key_scale + j * kLanes));
    if (a.softcap > 0) x = Mul(Set1(a.softcap), Tanh(Div(x, Set1(a.softcap))));
    const bool partly = low > j * kLanes || high < (j + 1) * kLanes;
    if (partly) x = KeepLanes(x, low - j * kLanes, high - j * kLanes, Set1(kNone));
    if (partly || kType == KvDType::kI8 || a.softcap > 0) Store(score + j * kLanes, x);
    best = Max(best, x);  // in an order that lets a NaN through
  }
  const float chunk_top = ReduceMax(best);
  const float old = p.state.top[u];
  const float top = chunk_top > old ? chunk_top : old;
  if (top != old) {
    float lanes[kLanes];
    Store(lanes, Exp(Set1(old - top)));
    float* const sum = p.state.sum + u * kLanes;
    Store(sum, Mul(Load(sum), Set1(lanes[0])));
    ScaleRow(p.state.output + u * a.value_dim, lanes[0], a.value_dim);
    p.state.top[u] = top;
  }
  F sum = Load(p.state.sum + u * kLanes);
  uint8_t* const to = p.weight + u / 16 * (kTileKeys * 32) + u % 16 * 64;
  for (int j = 0; j < blocks; j += 2) {
    F weight[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      weight[i] = Set1(0.0f);
      if (j + i >= blocks || top == kNone) continue;
      weight[i] = WeightOf(Sub(Load(score + (j + i) * kLanes), Set1(top)));
      sum = Add(sum, weight[i]);
      if constexpr (kType == KvDType::kI8) {
        weight[i] = Mul(weight[i], Load(p.value_scale + (j + i) * kLanes));
      }
    }
    StoreBf16(to + j / 2 * kTileBytes, weight[0], weight[1]);
  }
  Store(p.state.sum + u * kLanes, sum);
}

// output += weights x values for kM x 16 units, keys in `steps` x 32.
template <int kM>
void AddTileValues(const AttentionArgs& a, const TilePass& p, int unit, int32_t steps) {
  TileBlock t = {};
  t.a = p.weight + int64_t{unit / 16} * kTileKeys * 32;
  t.a_stride = int64_t{kTileKeys} * 32;
  t.steps = steps;
  t.sums.stride = a.value_dim * int64_t{sizeof(float)};
  t.sums.column = kLanes * sizeof(float);
  t.sums.row = 16 * t.sums.stride;
  constexpr int64_t kDims = int64_t{kTileKeys} / 32 * kTileBytes;  // tiles of the same dims
  for (int32_t d = 0; d < a.value_dim; d += 2 * kLanes) {
    for (int i = 0; i < 2; ++i) t.b[i] = p.value + (d / kLanes + i) * kDims;
    t.sums.first = reinterpret_cast<char*>(p.state.output + unit * a.value_dim + d);
    if (d + kLanes < a.value_dim) {
      MultiplyBlock<kM, 2>(t);
    } else {
      MultiplyBlock<kM, 1>(t);
    }
  }
}

// kM x 16 units from `unit` on with the chunk of keys from `start` on.
template <KvDType kType, int kM>
void AttendTiles(const AttentionArgs& a, const TilePass& p, int unit, int32_t start, int chunk) {
  const int end = p.count - unit < 16 * kM ? p.count : unit + 16 * kM;
  const int32_t first = PositionOf(a, p.first + unit);
  const int32_t last = PositionOf(a, p.first + end - 1);
  // A chunk that is over for all of them, or is yet to come.
  if (start > last || (a.window > 0 && start + kTileKeys <= first - a.window + 1)) return;
  const int32_t seen = (last - start) / kKvBlockTokens + 1;
  const int blocks = seen < chunk ? seen : chunk;
  Tiles::Fence(p.key[0]);
  int j = 0;
  for (; j + 2 <= blocks; j += 2) ScoreTiles<kType, kM, 2>(a, p, unit, j);
  if (j < blocks) ScoreTiles<kType, kM, 1>(a, p, unit, j);
  for (int u = unit; u < end; ++u) WeighTileUnit<kType>(a, p, u, start, blocks);
  AddTileValues<kM>(a, p, unit, (blocks + 1) / 2);
}

template <KvDType kType>
void TileAttentionPass(const AttentionArgs& a, const TilePass& p) {
  BeginTileUnits(a, p);
  const int32_t first = PositionOf(a, p.first);
  const int32_t last = PositionOf(a, p.first + p.count - 1);
  const int32_t begin = a.window > 0 && first >= a.window ? first - a.window + 1 : 0;
  // Rows of units that do not exist keep the weights of nothing.
  __builtin_memset(p.weight, 0, static_cast<size_t>(kTileUnits) * kTileKeys * 2);
  for (int32_t start = begin / kTileKeys * kTileKeys; start <= last; start += kTileKeys) {
    const int32_t keys = last + 1 - start < kTileKeys ? last + 1 - start : kTileKeys;
    const int blocks = (keys + kKvBlockTokens - 1) / kKvBlockTokens;
    const int32_t low = begin > start ? begin - start : 0;
    const int32_t block = start / kKvBlockTokens;
    for (int j = 0; j < blocks; ++j) {
      const bool more = block + j + kTileKeyBlocks <= last / kKvBlockTokens;
      const std::byte* next = a.blocks[block + j + (more ? kTileKeyBlocks : 0)];
      KeyPairs<kType>(a, p, block + j, j, next);
      ValuePairs<kType>(a, p, block + j, j, low, keys, next);
    }
    for (int pair = 0; blocks % 2 != 0 && pair < 8; ++pair) {
      uint8_t* to = p.value + blocks / 2 * kTileBytes + (8 + pair) * 64;
      for (int32_t d = 0; d < a.value_dim; d += kLanes) {
        StoreI(to + int64_t{d} * (kTileKeys / 32) * 64, ZeroI());
      }
    }
    int unit = 0;
    for (; unit + 16 < p.count; unit += 32) AttendTiles<kType, 2>(a, p, unit, start, blocks);
    if (unit < p.count) AttendTiles<kType, 1>(a, p, unit, start, blocks);
  }
  EndUnits(a, p.state, p.first, p.count);
}

void TileAttention(const AttentionArgs& a, int64_t first, int64_t last) {
  const Tiles tiles;
  for (int64_t unit = first; unit < last; unit += kTileUnits) {
    const int count = static_cast<int>(last - unit < kTileUnits ? last - unit : kTileUnits);
    const TilePass pass(a, unit, count);
    if (a.kv_dtype == KvDType::kI8) {
      TileAttentionPass<KvDType::kI8>(a, pass);
    } else {
      TileAttentionPass<KvDType::kF16>(a, pass);
    }
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_ATTENTION_H_
