// Block formats for more than a few rows with the tiles of AMX: 8-bit dot products of 32 (or twice
// 16) columns as the other kernels form them, in integers, and the same float32 operations on them
// in the same order, so that results have the same bits. Included by one translation unit after
// kernels_amx.h.
//
// Tiles are loaded from memory only, and a load waits until what is stored there has left the
// store buffer. So a chunk of columns passes three stages, each one round after the one before:
// its codes are unpacked into this thread's room, multiplied, and their sums scaled and added.
#ifndef TERRACE_OPS_CPU_KERNELS_AMX_INT8_H_
#define TERRACE_OPS_CPU_KERNELS_AMX_INT8_H_

#include "ops/cpu/kernels_amx.h"

namespace terrace::ops::cpu {
namespace {

// Products of a chunk: tiles 0 to 3 are their sums [kH][16], 4 and 5 activations, kH rows of
// `columns` bytes, 6 and 7 codes of 16 rows, 4 columns a row.
constexpr int kChunkProducts = 4;

constexpr int kH = kMatrixTile;  // activation rows of a tile

TileShapes CodeShapes(int columns) {
  TileShapes shapes = {};
  for (int i = 0; i < kChunkProducts; ++i) {
    shapes.rows[i] = kH;
    shapes.bytes[i] = 64;
  }
  for (int i = 0; i < 2; ++i) {
    shapes.rows[4 + i] = kH;
    shapes.bytes[4 + i] = static_cast<uint16_t>(columns);
    shapes.rows[6 + i] = static_cast<uint8_t>(columns / 4);
    shapes.bytes[6 + i] = 64;
  }
  return shapes;
}

// One tile of kH activation rows against some groups of 16 output features.
template <class Fm>
class CodePipeline {
 public:
  CodePipeline(const MatMulArgs& args, int32_t n, int32_t first_group, int32_t group_count)
      : a_(args),
        n_(n),
        first_group_(first_group),
        blocks_(args.cols / kBlock),
        chunks_((blocks_ + kBlocks - 1) / kBlocks),
        rounds_(int64_t{chunks_} * group_count),
        group_bytes_(int64_t{args.cols} / (Fm::kGroups * kBlock) * Fm::kBlockBytes),
        x_(args.xq + int64_t{n} * blocks_) {}

  // REQUIRES: tiles of CodeShapes().
  void Run() {
    Place unpack = Begin();
    Place multiply = unpack;
    Place finish = unpack;
    F acc[kH];
#pragma GCC unroll 16
    for (int t = 0; t < kH; ++t) acc[t] = Set1(0.0f);
    for (int64_t round = 0; round < rounds_ + 2; ++round) {
      const bool multiplies = round > 0 && round <= rounds_;
      Room& sums = room_[(round + 1) & 1];
      if (multiplies) {
        Multiply(multiply.block, sums);
        Next(&multiply);
      }
      if (round < rounds_) {
        Unpack(unpack, room_[round & 1]);
        Next(&unpack);
      }
      if (round > 1) {
        Finish(finish, room_[round & 1], acc);
        Next(&finish);
      }
      if (multiplies) StoreChunk(sums);
    }
  }

 private:
  static constexpr int kHalfs = Fm::kHalves ? 2 : 1;
  static constexpr int kBlocks = kChunkProducts / kHalfs;  // of 32 columns, in a chunk

  struct Room {
    alignas(64) uint8_t codes[kBlocks][8 * 64];
    alignas(64) int32_t sums[kChunkProducts][kH * kLanes];
  };
  // A chunk: blocks from `block` on of the row group at `weight`.
  struct Place {
    const uint8_t* weight;
    int32_t group;
    int32_t block;
  };

  Place Begin() const {
    return {reinterpret_cast<const uint8_t*>(a_.weight) + first_group_ * group_bytes_, first_group_,
            0};
  }
  inline __attribute__((always_inline)) void Next(Place* p) const {
    p->block += kBlocks;
    if (p->block < blocks_) return;
    p->block = 0;
    ++p->group;
    p->weight += group_bytes_;
  }
  static inline __attribute__((always_inline)) const uint8_t* BlockAt(const Place& p,
                                                                      int32_t block) {
    return p.weight + int64_t{block / Fm::kGroups} * Fm::kBlockBytes;
  }

  inline __attribute__((always_inline)) void Unpack(const Place& p, Room& room) const {
    if (p.block == 0) PrefetchResults(p.group);
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      const int32_t block = p.block + j;
      if (block >= blocks_) break;
      const uint8_t* const planes =
          BlockAt(p, block) + Fm::kHeader + block % Fm::kGroups * Fm::kGroupBytes;
#pragma GCC unroll 16
      for (int i = 0; i < (Fm::kGroupBytes + 63) / 64; ++i) {
        PrefetchStream(planes + i * 64);
      }
      B w[8];
      Fm::Unpack(planes + Fm::kScaleBytes + Fm::kMinBytes, w);
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        if constexpr (Fm::kShift >= 0) {
          w[g] = _mm512_sub_epi8(w[g], _mm512_set1_epi8(static_cast<char>(1 << Fm::kShift)));
        }
        StoreI(room.codes[j] + g * 64, w[g]);
      }
    }
  }

  // Asks for the lines of a group's results: stores leave their buffer in order, so that one which
  // waits for its line would hold up those of codes and sums.
  inline __attribute__((always_inline)) void PrefetchResults(int32_t group) const {
    float* const out = a_.out + int64_t{n_} * a_.out_stride + group * kLanes;
    const int count = a_.n - n_ < kH ? a_.n - n_ : kH;
    for (int t = 0; t < count; ++t) PrefetchWrite(out + t * a_.out_stride);
  }

  // The products of a chunk into tiles 0 to 3. Past the last block they are of what is in the room.
  inline __attribute__((always_inline)) void Multiply(int32_t block, const Room& room) const {
    const auto x = [&](int product) __attribute__((always_inline)) {
      const int32_t at = block + product / kHalfs;
      return x_[int64_t{at < blocks_ ? at : block} * kH].q + product % kHalfs * 16;
    };
    const auto codes = [&](int product) __attribute__((always_inline)) {
      return room.codes[product / kHalfs] + product % kHalfs * 256;
    };
    Tiles::Fence(&room);
#define TERRACE_PRODUCT(product, rows, units) \
  _tile_loadd(units, codes(product), 64);     \
  _tile_loadd(rows, x(product), 64);          \
  _tile_zero(product);                        \
  _tile_dpbssd(product, rows, units);
    TERRACE_PRODUCT(0, 4, 6)
    TERRACE_PRODUCT(1, 5, 7)
    TERRACE_PRODUCT(2, 4, 6)
    TERRACE_PRODUCT(3, 5, 7)
#undef TERRACE_PRODUCT
  }

  static inline __attribute__((always_inline)) void StoreChunk(Room& room) {
    _tile_stored(0, room.sums[0], 64);
    _tile_stored(1, room.sums[1], 64);
    _tile_stored(2, room.sums[2], 64);
    _tile_stored(3, room.sums[3], 64);
    Tiles::Fence(&room);
  }

  // acc[t] += what AddGroup adds for activation row t, block by block; a row group's last chunk
  // writes it.
  inline __attribute__((always_inline)) void Finish(const Place& p, const Room& room,
                                                    F* acc) const {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      const int32_t block = p.block + j;
      if (block >= blocks_) break;
      const uint8_t* const at = BlockAt(p, block);
      const BlockScales<Fm> s(at, at + Fm::kHeader + block % Fm::kGroups * Fm::kGroupBytes);
      const XBlock* const x = x_ + int64_t{block} * kH;
#pragma GCC unroll 16
      for (int t = 0; t < kH; ++t) {
        const XBlock& b = x[t];
        const F sum = ToF(LoadI(room.sums[j * kHalfs] + t * kLanes));
        if constexpr (Fm::kHalves) {
          const F sum1 = ToF(LoadI(room.sums[j * kHalfs + 1] + t * kLanes));
          s.AddHalves(sum, sum1, b, &acc[t]);
        } else {
          s.Add(sum, b, &acc[t]);
        }
      }
    }
    if (p.block + kBlocks < blocks_) return;
    WriteTile(a_, acc, p.group, n_, a_.n - n_ < kH ? a_.n - n_ : kH);
#pragma GCC unroll 16
    for (int t = 0; t < kH; ++t) acc[t] = Set1(0.0f);
  }

  const MatMulArgs& a_;
  const int32_t n_;
  const int32_t first_group_;
  const int32_t blocks_;
  const int32_t chunks_;
  const int64_t rounds_;
  const int64_t group_bytes_;
  const XBlock* const x_;
  Room room_[2];
};

// Groups that pass all tiles of rows while they lie in the second-level cache.
inline int32_t CachedGroups(int64_t group_bytes) {
  constexpr int64_t kCached = 256 << 10;
  return static_cast<int32_t>(group_bytes < kCached ? kCached / group_bytes : 1);
}

template <class Fm>
void TileQuantMatMul(const MatMulArgs& a) {
  PrefetchStart(a.weight);
  const Tiles tiles(CodeShapes(Fm::kHalves ? 16 : 32));
  const int32_t blocks = a.cols / kBlock;
  const int64_t group_bytes = int64_t{a.cols} / (Fm::kGroups * kBlock) * Fm::kBlockBytes;
  const int32_t chunk = ChunkRows(blocks * static_cast<int32_t>(sizeof(XBlock)), kH);
  const int32_t groups = a.n <= kH ? a.groups : CachedGroups(group_bytes);
  for (int32_t n0 = 0; n0 < a.n; n0 += chunk) {
    const int32_t n1 = n0 + chunk < a.n ? n0 + chunk : a.n;
    for (int32_t g = 0; g < a.groups; g += groups) {
      const int32_t count = a.groups - g < groups ? a.groups - g : groups;
      for (int32_t n = n0; n < n1; n += kH) CodePipeline<Fm>(a, n, g, count).Run();
    }
  }
}

constexpr MatMulFn TileQuantMatMulOf(DType dtype) {
  return ForBlockFormat(dtype, []<class Fm>() -> MatMulFn { return TileQuantMatMul<Fm>; });
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_INT8_H_
