// Attention over paged keys and values, for any number of query rows. Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_ATTENTION_H_
#define TERRACE_OPS_CPU_KERNELS_ATTENTION_H_

#include "ops/cpu/kernels_elementwise.h"
#include "ops/cpu/kernels_kv.h"

namespace terrace::ops::cpu {
namespace {

// Scratch of one pass: queries, running outputs, chunk scores, and per unit the running maximum and
// the sum of weights by lane.
struct AttentionState {
  float* query;    // [units][key_dim]
  float* output;   // [units][value_dim]
  float* score;    // [units][kAttentionChunk]
  float* sum;      // [units][kLanes]
  float* top;      // [units]
  int32_t blocks;  // KV blocks that hold keys the last unit sees: what may be asked for ahead
};

// Blocks between what is computed and what is asked for from memory.
inline constexpr int kAheadBlocks = kAttentionChunk / kKvBlockTokens;

inline constexpr int kUnits = kTileRows > 4 ? kAttentionUnits : kAttentionUnits / 2;

// The keys, and the values, of block `block` or, past the last one, of what comes next; null for
// none.
inline const std::byte* KeysAhead(const AttentionArgs& a, const AttentionState& s, int32_t block) {
  if (block < s.blocks) return a.blocks[block] + a.key_offset;
  block -= s.blocks;
  return block < a.next_count ? a.next_blocks[block] + a.next_key_offset : nullptr;
}
inline const std::byte* ValuesAhead(const AttentionArgs& a, const AttentionState& s,
                                    int32_t block) {
  if (block < s.blocks) return a.blocks[block] + a.value_offset;
  block -= s.blocks;
  return block < a.next_count ? a.next_blocks[block] + a.next_value_offset : nullptr;
}

// Scores of kBlocks KV blocks (16 keys each) for kUnitsNow units.
template <KvDType kType, bool kScaled, bool kAhead, int kUnitsNow, int kBlocks>
inline void ScoreBlocks(const AttentionArgs& a, const AttentionState& s, int32_t block, int slot) {
  F acc[kUnitsNow][kBlocks];
  const std::byte* tile[kBlocks];
#pragma GCC unroll 16
  for (int j = 0; j < kBlocks; ++j) {
    tile[j] = a.blocks[block + j] + a.key_offset;
#pragma GCC unroll 16
    for (int u = 0; u < kUnitsNow; ++u) acc[u][j] = Set1(0.0f);
  }
  // A block's tile is not followed by the next block's in memory: the hardware does not see it
  // coming.
  constexpr int kStepBytes = kKvBlockTokens * static_cast<int>(KvElementBytes(kType));
  [[maybe_unused]] const std::byte* next[kBlocks];
  if constexpr (kAhead) {
#pragma GCC unroll 16
    for (int j = 0; j < kBlocks; ++j) {
      const std::byte* const ahead = KeysAhead(a, s, block + j + kAheadBlocks);
      next[j] = ahead != nullptr ? ahead : tile[j];
    }
  }
  for (int32_t d = 0; d < a.key_dim; ++d) {
    F k[kBlocks];
#pragma GCC unroll 16
    for (int j = 0; j < kBlocks; ++j) {
      k[j] = LoadKv<kType>(tile[j], int64_t{d} * kKvBlockTokens);
      if constexpr (kAhead) {
        if (d * kStepBytes % 64 == 0) PrefetchFar(next[j] + int64_t{d} * kStepBytes);
      }
    }
#pragma GCC unroll 16
    for (int u = 0; u < kUnitsNow; ++u) {
      const F q = Set1(s.query[u * a.key_dim + d]);
#pragma GCC unroll 16
      for (int j = 0; j < kBlocks; ++j) acc[u][j] = Fma(k[j], q, acc[u][j]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kBlocks; ++j) {
    F scale = Set1(1.0f);
    if constexpr (kScaled) {
      scale = Load(reinterpret_cast<const float*>(tile[j] + int64_t{a.key_dim} * kStepBytes));
    }
#pragma GCC unroll 16
    for (int u = 0; u < kUnitsNow; ++u) {
      F x = acc[u][j];
      if constexpr (kScaled) x = Mul(x, scale);
      if (a.softcap > 0) x = Mul(Set1(a.softcap), Tanh(Div(x, Set1(a.softcap))));
      Store(s.score + u * kAttentionChunk + (slot + j) * kLanes, x);
    }
  }
}

// Turns a chunk's scores into weights, and corrects what was summed before for the new maximum.
inline void WeighChunk(const AttentionArgs& a, const AttentionState& s, int unit, int32_t position,
                       int32_t chunk_start, int blocks) {
  const float kNone = -__builtin_inff();
  const int32_t low = a.window > 0 ? position - a.window + 1 - chunk_start : 0;
  const int32_t high = position + 1 - chunk_start;
  float* score = s.score + unit * kAttentionChunk;
  F best = Set1(kNone);
  for (int j = 0; j < blocks; ++j) {
    const F x =
        KeepLanes(Load(score + j * kLanes), low - j * kLanes, high - j * kLanes, Set1(kNone));
    Store(score + j * kLanes, x);
    // The operand order lets a NaN through.
    best = Max(best, x);
  }
  const float chunk_top = ReduceMax(best);
  const float old = s.top[unit];
  const float top = chunk_top > old ? chunk_top : old;
  if (top == kNone) {  // nothing to see yet: all weights are zero
    for (int j = 0; j < blocks; ++j) Store(score + j * kLanes, Set1(0.0f));
    return;
  }
  if (top != old) {
    float lanes[kLanes];
    Store(lanes, Exp(Set1(old - top)));
    const F correction = Set1(lanes[0]);
    Store(s.sum + unit * kLanes, Mul(Load(s.sum + unit * kLanes), correction));
    ScaleRow(s.output + unit * a.value_dim, lanes[0], a.value_dim);
    s.top[unit] = top;
  }
  F sum = Load(s.sum + unit * kLanes);
  for (int j = 0; j < blocks; ++j) {
    const F weight = Exp(Sub(Load(score + j * kLanes), Set1(top)));
    Store(score + j * kLanes, weight);
    sum = Add(sum, weight);
  }
  Store(s.sum + unit * kLanes, sum);
}

// output += weights x values for kVectors x 16 dimensions from `d`, keys [low, high) of the chunk.
template <KvDType kType, bool kAhead, int kUnitsNow, int kVectors>
inline void AddValues(const AttentionArgs& a, const AttentionState& s, int32_t first_block,
                      int32_t low, int32_t high, int32_t d) {
  F acc[kUnitsNow][kVectors];
#pragma GCC unroll 16
  for (int u = 0; u < kUnitsNow; ++u) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      acc[u][j] = Load(s.output + u * a.value_dim + d + j * kLanes);
    }
  }
  constexpr int kVectorBytes = kLanes * static_cast<int>(KvElementBytes(kType));
  const int64_t row_bytes = a.value_dim * static_cast<int64_t>(KvElementBytes(kType));
  const int64_t offset = d * static_cast<int64_t>(KvElementBytes(kType));
  for (int32_t begin = low; begin < high;) {
    const int32_t block = begin / kKvBlockTokens;
    const int32_t limit = (block + 1) * kKvBlockTokens;
    const int32_t end = high < limit ? high : limit;
    const int64_t at = offset + (begin % kKvBlockTokens) * row_bytes;
    const std::byte* row = a.blocks[first_block + block] + a.value_offset + at;
    [[maybe_unused]] const std::byte* next = row;
    if constexpr (kAhead) {
      const std::byte* const ahead = ValuesAhead(a, s, first_block + block + kAheadBlocks);
      if (ahead != nullptr) next = ahead + at;
    }
    for (int32_t t = begin; t < end; ++t, row += row_bytes, next += row_bytes) {
      F v[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        v[j] = LoadKv<kType>(row + j * kVectorBytes, 0);
        if constexpr (kAhead) {
          if (j * kVectorBytes % 64 == 0) PrefetchFar(next + j * kVectorBytes);
        }
      }
#pragma GCC unroll 16
      for (int u = 0; u < kUnitsNow; ++u) {
        const F w = Set1(s.score[u * kAttentionChunk + t]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) acc[u][j] = Fma(w, v[j], acc[u][j]);
      }
    }
    begin = end;
  }
#pragma GCC unroll 16
  for (int u = 0; u < kUnitsNow; ++u) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      Store(s.output + u * a.value_dim + d + j * kLanes, acc[u][j]);
    }
  }
}

template <KvDType kType, bool kScaled, bool kAhead, int kUnitsNow>
inline void AddAllValues(const AttentionArgs& a, const AttentionState& s, int32_t first_block,
                         int blocks, int32_t low, int32_t high) {
  if constexpr (kScaled) {
    constexpr int64_t kElement = static_cast<int64_t>(KvElementBytes(kType));
    for (int j = 0; j < blocks; ++j) {
      const F scale = Load(reinterpret_cast<const float*>(
          a.blocks[first_block + j] + a.value_offset + a.value_dim * kKvBlockTokens * kElement));
      // Keys outside [low, high) may hold anything.
      const F clean = KeepLanes(scale, low - j * kLanes, high - j * kLanes, Set1(0.0f));
#pragma GCC unroll 16
      for (int u = 0; u < kUnitsNow; ++u) {
        float* w = s.score + u * kAttentionChunk + j * kLanes;
        Store(w, Mul(Load(w), clean));
      }
    }
  }
  constexpr int kVectors = kTileRows <= 4 ? 2 : kUnitsNow <= 2 ? 8 : kUnitsNow <= 4 ? 4 : 2;
  int32_t d = 0;
  for (; d + kVectors * kLanes <= a.value_dim; d += kVectors * kLanes) {
    AddValues<kType, kAhead, kUnitsNow, kVectors>(a, s, first_block, low, high, d);
  }
  for (; d + kLanes <= a.value_dim; d += kLanes) {
    AddValues<kType, kAhead, kUnitsNow, 1>(a, s, first_block, low, high, d);
  }
  for (; d < a.value_dim; ++d) {
    for (int32_t t = low; t < high; ++t) {
      const std::byte* tile = a.blocks[first_block + t / kKvBlockTokens] + a.value_offset;
      const float v = LoadKvOne<kType>(tile, int64_t{t % kKvBlockTokens} * a.value_dim + d);
#pragma GCC unroll 16
      for (int u = 0; u < kUnitsNow; ++u) {
        s.output[u * a.value_dim + d] += s.score[u * kAttentionChunk + t] * v;
      }
    }
  }
}

inline int32_t PositionOf(const AttentionArgs& a, int64_t unit) {
  return a.start + static_cast<int32_t>(unit / a.group);
}

// Units past the last repeat it; their results are not written.
template <int kUnitsNow>
void BeginUnits(const AttentionArgs& a, const AttentionState& s, int64_t first, int count) {
  for (int u = 0; u < kUnitsNow; ++u) {
    const int64_t unit = first + (u < count ? u : count - 1);
    const float* q = a.q + unit / a.group * a.q_stride + unit % a.group * a.key_dim;
    for (int32_t d = 0; d < a.key_dim; ++d) s.query[u * a.key_dim + d] = q[d] * a.scale;
    for (int32_t d = 0; d < a.value_dim; ++d) s.output[u * a.value_dim + d] = 0.0f;
    Store(s.sum + u * kLanes, Set1(0.0f));
    s.top[u] = -__builtin_inff();
  }
}

// One chunk of keys, from position `start` on, for one group of units. `view` holds its blocks from
// `block` on.
template <KvDType kType, bool kScaled, bool kAhead, int kUnitsNow>
void AttendChunk(const AttentionArgs& view, const AttentionState& s, int64_t first, int count,
                 int32_t start, int32_t block) {
  constexpr int kChunkBlocks = kAttentionChunk / kKvBlockTokens;
  const int32_t first_position = PositionOf(view, first);
  const int32_t last = PositionOf(view, first + count - 1);  // units are in order of position
  const int32_t begin =
      view.window > 0 && first_position >= view.window ? first_position - view.window + 1 : 0;
  if (start > last || start < begin / kAttentionChunk * kAttentionChunk) return;
  const int32_t keys = last + 1 - start < kAttentionChunk ? last + 1 - start : kAttentionChunk;
  const int blocks = (keys + kKvBlockTokens - 1) / kKvBlockTokens;
  constexpr int kStep = kUnitsNow <= 4 ? kChunkBlocks : 2;
  int j = 0;
  for (; j + kStep <= blocks; j += kStep) {
    ScoreBlocks<kType, kScaled, kAhead, kUnitsNow, kStep>(view, s, block + j, j);
  }
  for (; j < blocks; ++j) ScoreBlocks<kType, kScaled, kAhead, kUnitsNow, 1>(view, s, block + j, j);
  for (int u = 0; u < kUnitsNow; ++u) {
    const int64_t unit = first + (u < count ? u : count - 1);
    WeighChunk(view, s, u, PositionOf(view, unit), start, blocks);
  }
  const int32_t low = begin > start ? begin - start : 0;
  AddAllValues<kType, kScaled, kAhead, kUnitsNow>(view, s, block, blocks, low, keys);
}

inline void EndUnits(const AttentionArgs& a, const AttentionState& s, int64_t first, int count) {
  for (int u = 0; u < count; ++u) {
    const int64_t unit = first + u;
    const int64_t head = unit % a.group;
    float total = ReduceAdd(Load(s.sum + u * kLanes));
    float factor = 1.0f;
    if (a.sinks != nullptr) {
      const float top = s.top[u];
      const float sink = a.sinks[head];
      float lanes[kLanes];
      const float m = sink > top ? sink : top;
      Store(lanes, Exp(Set1(top - m)));
      factor = lanes[0];
      Store(lanes, Exp(Set1(sink - m)));
      total = total * factor + lanes[0];
    }
    float* to = a.out + unit / a.group * a.out_stride + head * a.value_dim;
    const F scale = Set1(factor / total);
    ForLanes(a.value_dim, [&](int32_t i, int n) {
      StoreN(to + i, Mul(LoadN(s.output + u * a.value_dim + i, n), scale), n);
    });
  }
}

// Where chunks begin that units from `first` on look at.
inline int32_t FirstChunk(const AttentionArgs& a, int64_t first) {
  const int32_t position = PositionOf(a, first);
  const int32_t begin = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  return begin / kAttentionChunk * kAttentionChunk;
}

// A few units: keys and values are read as they are stored.
template <KvDType kType, int kUnitsNow>
void AttendUnits(const AttentionArgs& a, int64_t first, int count, AttentionState& s) {
  BeginUnits<kUnitsNow>(a, s, first, count);
  const int32_t last = PositionOf(a, first + count - 1);
  s.blocks = last / kKvBlockTokens + 1;
  for (int32_t start = FirstChunk(a, first); start <= last; start += kAttentionChunk) {
    AttendChunk<kType, kType == KvDType::kI8, true, kUnitsNow>(a, s, first, count, start,
                                                               start / kKvBlockTokens);
  }
  EndUnits(a, s, first, count);
}

// Calls use with 1, 2, 4 or kUnits, the least that `count` units take.
template <typename Use>
void WithUnits(int count, Use use) {
  if (count == 1) {
    use.template operator()<1>();
  } else if (count == 2) {
    use.template operator()<2>();
  } else if (count <= 4) {
    use.template operator()<4>();
  } else {
    use.template operator()<kUnits>();
  }
}

// Turns a chunk's keys and values into floats that lie as in blocks of kF32, scales behind them.
template <KvDType kType>
void UnpackBlock(const AttentionArgs& a, const std::byte* block, float* to) {
  constexpr int64_t kElement = static_cast<int64_t>(KvElementBytes(kType));
  auto unpack = [&](const std::byte* tile, int64_t values) {
    int64_t i = 0;
    for (; i + kLanes <= values; i += kLanes) {
      Store(to + i, LoadKv<kType>(tile, i));
      if (i * kElement % 64 == 0) PrefetchFar(tile + (i + 16 * kLanes) * kElement);
    }
    for (; i < values; ++i) to[i] = LoadKvOne<kType>(tile, i);
    to += values;
    if constexpr (kType == KvDType::kI8) {
      Store(to, Load(reinterpret_cast<const float*>(tile + values)));
    }
    to += kLanes;
  };
  unpack(block + a.key_offset, int64_t{a.key_dim} * kKvBlockTokens);
  unpack(block + a.value_offset, int64_t{a.value_dim} * kKvBlockTokens);
}

// Many units: all of them go through a chunk of keys and values before the next one is read, and
// share its unpacking. Each unit's arithmetic is that of AttendUnits, in the same order.
template <KvDType kType>
void AttendTogether(const AttentionArgs& a, int64_t first, int count) {
  AttentionState s;
  s.query = a.scratch;
  s.output = s.query + kAttentionTask * a.key_dim;
  s.sum = s.output + kAttentionTask * a.value_dim;
  s.top = s.sum + kAttentionTask * kLanes;
  s.score = s.top + kAttentionTask;
  s.blocks = 0;
  float* const unpacked = s.score + kUnits * kAttentionChunk;
  const int64_t block_floats = int64_t{a.key_dim + a.value_dim} * kKvBlockTokens + 2 * kLanes;
  constexpr int32_t kChunkBlocks = kAttentionChunk / kKvBlockTokens;
  const std::byte* tiles[kChunkBlocks];
  for (int32_t j = 0; j < kChunkBlocks; ++j) {
    tiles[j] = reinterpret_cast<const std::byte*>(unpacked + j * block_floats);
  }
  AttentionArgs view = a;
  view.blocks = tiles;
  view.next_count = 0;
  view.key_offset = 0;
  view.value_offset = (int64_t{a.key_dim} * kKvBlockTokens + kLanes) * sizeof(float);
  auto each_group = [&](auto use) {
    for (int u = 0; u < count; u += kUnits) {
      AttentionState group = s;
      group.query += u * a.key_dim;
      group.output += u * a.value_dim;
      group.sum += u * kLanes;
      group.top += u;
      const int units = count - u < kUnits ? count - u : kUnits;
      WithUnits(units, [&]<int kUnitsNow>() {
        use.template operator()<kUnitsNow>(group, first + u, units);
      });
    }
  };
  each_group([&]<int kUnitsNow>(const AttentionState& group, int64_t unit, int units) {
    BeginUnits<kUnitsNow>(a, group, unit, units);
  });
  const int32_t last = PositionOf(a, first + count - 1);
  for (int32_t start = FirstChunk(a, first); start <= last; start += kAttentionChunk) {
    const int32_t block = start / kKvBlockTokens;
    for (int32_t j = 0; j < kChunkBlocks && start + j * kKvBlockTokens <= last; ++j) {
      UnpackBlock<kType>(a, a.blocks[block + j], unpacked + j * block_floats);
    }
    each_group([&]<int kUnitsNow>(const AttentionState& group, int64_t unit, int units) {
      AttendChunk<KvDType::kF32, kType == KvDType::kI8, false, kUnitsNow>(view, group, unit, units,
                                                                          start, 0);
    });
  }
  each_group([&]<int kUnitsNow>(const AttentionState& group, int64_t unit, int units) {
    EndUnits(a, group, unit, units);
  });
}

template <KvDType kType>
void AttendAll(const AttentionArgs& a, int64_t first, int64_t last) {
  if (last - first > kUnits) {
    for (int64_t unit = first; unit < last; unit += kAttentionTask) {
      const int64_t left = last - unit;
      AttendTogether<kType>(a, unit,
                            static_cast<int>(left < kAttentionTask ? left : kAttentionTask));
    }
    return;
  }
  AttentionState s;
  s.query = a.scratch;
  s.output = s.query + kUnits * a.key_dim;
  s.score = s.output + kUnits * a.value_dim;
  s.sum = s.score + kUnits * kAttentionChunk;
  s.top = s.sum + kUnits * kLanes;
  const int count = static_cast<int>(last - first);
  if (count <= 0) return;
  WithUnits(count, [&]<int kUnitsNow>() { AttendUnits<kType, kUnitsNow>(a, first, count, s); });
}

void AttentionRange(const AttentionArgs& a, int64_t first, int64_t last) {
  switch (a.kv_dtype) {
    case KvDType::kF16:
      return AttendAll<KvDType::kF16>(a, first, last);
    case KvDType::kI8:
      return AttendAll<KvDType::kI8>(a, first, last);
    case KvDType::kF32:
      return AttendAll<KvDType::kF32>(a, first, last);
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_ATTENTION_H_
