// The table of kernels that a CPU variant provides. Each variant's translation unit is compiled for
// its own instruction set from the same source (kernels_impl.h over a simd_*.h), so this header
// holds plain structs only: nothing here may instantiate code that the linker could share between
// variants.
//
// Kernels work on ranges, take checked arguments, do not allocate, and may be called by several
// threads on disjoint ranges. A result depends neither on how ranges are cut nor on the other rows.
#ifndef TERRACE_OPS_CPU_KERNELS_H_
#define TERRACE_OPS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "ops/types.h"
#include "tensor/dtype.h"

namespace terrace::ops::cpu {

inline constexpr int kLanes = 16;  // rows of a packed group
inline constexpr int kBlock = 32;  // activations that share a scale

// Activation rows a tile is padded to, so that kernels exist for few heights only.
inline constexpr int PaddedRows(int rows) { return rows <= 4 ? rows : (rows + 1) / 2 * 2; }

// 32 activations of one row, quantised to int8: x ~ d * q. One cache line.
struct alignas(64) XBlock {
  int8_t q[kBlock];
  float d;   // largest magnitude / 127; NaN if the block held a NaN or an infinity
  float ds;  // d * sum(q), and the same for each half
  float ds_half[2];
  int32_t neg_sum;             // -sum(q)
  int32_t neg_sum_8;           // 8 times that: what codes of four bits about 8 begin with
  int32_t neg_sum_half_32[2];  // 32 times that of each half, for codes of six bits about 32
};
static_assert(sizeof(XBlock) == 64);

// Quantised rows lie in tiles of Kernels::tile_rows rows: [tile][block][row in tile]; the last tile
// has PaddedRows(what is left) rows.
struct MatMulArgs {
  const std::byte* weight;  // the first packed group
  int32_t groups;           // packed groups (of 16 rows) to compute
  int32_t rows;             // output features in them; the last group may be partial
  int32_t cols;
  const XBlock* xq;       // quantised formats
  const int8_t* x8;       // W8A8: 32 bytes a block, tiles as of xq; tile_quant_matmul: tiles of 16
                          // rows by 64 columns, the last rows filled up with zeros
  const float* x8_scale;  // and one scale and
  const int32_t* x8_sum;  // one sum of bytes a row, rows in order
  const float* x;         // float formats
  int64_t x_stride;
  int32_t n;              // activation rows
  const int16_t* xw;      // word kernels: 32 words a block, tiles as of xq
  const float* xw_scale;  // one a block
  const uint16_t* xb;     // tile kernels: BF16 in tiles of 16 rows, [tile][block][row][32]
  std::byte* scratch;     // word kernels: WordScratchBytes(cols), tile kernels: kTileScratchBytes;
                          // this thread's own
  const float* bias;      // of the first output feature, or null
  float* out;             // of the first output feature; row r at out + r * out_stride
  int64_t out_stride;
  // tile_glu_matmul: `weight` is the gate's, this that of the matrix it gates, in the same groups,
  // an even number. Results are BF16 as of xb: the first group's go to `glu`, those of the next 16
  // rows `glu_stride` values further. No bias, no `out`.
  const std::byte* up;
  Activation activation;
  uint16_t* glu;
  int64_t glu_stride;
};
using MatMulFn = void (*)(const MatMulArgs&);

// Word kernels take tiles of tile_rows rows, the last padded to a multiple of four.
inline constexpr int PaddedWordRows(int rows) { return (rows + 3) / 4 * 4; }
// One row group as words: 16 rows of each column, and 16 scales a block of 32 columns.
inline constexpr int64_t WordScratchBytes(int32_t cols) {
  return int64_t{cols} * kLanes * 2 + cols / kBlock * 64 + 64;
}

// Tile kernels take tiles of 16 rows, the last filled up with zeros. A pass has so many rows,
// columns and, where the width takes several passes, groups; two pairs of groups lie in BF16 beside
// its sums.
inline constexpr int kMatrixTile = 16;
inline constexpr int32_t kPassRows = 512;
inline constexpr int32_t kPassColumns = 1024;
inline constexpr int32_t kPassGroups = 32;
inline constexpr int64_t kPassSumBytes = int64_t{kPassRows} * kPassGroups * kLanes * 4;
inline constexpr int64_t kPanelBytes = int64_t{kPassColumns} * kLanes * 2;
inline constexpr int64_t kTileScratchBytes = kPassSumBytes + 4 * kPanelBytes;

struct AttentionArgs {
  const float* q;  // row 0 of the sequence, first query head of the KV head's group
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  const std::byte* const* blocks;
  size_t key_offset;  // of this layer and KV head, in a block
  size_t value_offset;
  KvDType kv_dtype;
  int32_t key_dim;
  int32_t value_dim;
  int32_t group;  // query heads that share the KV head
  int32_t start;  // position of row 0
  float scale;
  int32_t window;
  float softcap;
  const float* sinks;  // [group] or null
  float* scratch;      // AttentionScratch() floats, this thread's own
  // What this thread is likely to attend next: the first of its blocks, which are asked for while
  // the last of these are computed. None: next_count is 0.
  const std::byte* const* next_blocks;
  int32_t next_count;
  size_t next_key_offset;
  size_t next_value_offset;
};
// Query units (row, head) that keys and values in registers serve, and those that share one pass
// over keys and values.
inline constexpr int kAttentionUnits = 8;
inline constexpr int kAttentionTask = 64;
inline constexpr int kAttentionChunk = 64;  // keys between two corrections of the running maximum
inline constexpr int64_t AttentionScratch(int32_t key_dim, int32_t value_dim) {
  const int64_t units = int64_t{kAttentionTask} * (key_dim + value_dim + kLanes + 1);
  const int64_t scores = int64_t{kAttentionUnits} * kAttentionChunk;
  const int64_t chunk = int64_t{kAttentionChunk} * (key_dim + value_dim) +
                        kAttentionChunk / kKvBlockTokens * 2 * kLanes;
  return units + scores + chunk + 2 * kLanes;
}

// The same of tile attention: units of one pass, and keys of one chunk.
inline constexpr int kTileUnits = 256;
inline constexpr int kTileKeys = 128;
inline constexpr int64_t TileAttentionScratch(int32_t key_dim, int32_t value_dim) {
  const int64_t query = int64_t{kTileUnits} * key_dim;
  const int64_t chunk = int64_t{kTileKeys} * (key_dim + value_dim / 2 + 2);
  const int64_t scores = int64_t{kTileUnits} * kTileKeys * 3 / 2;
  return query + chunk + scores + int64_t{kTileUnits} * (value_dim + kLanes + 1);
}

struct Kernels {
  int tile_rows;  // activation rows that one pass over a row group serves
  // y = W x for each packed dtype; null where the dtype is not a matrix type.
  MatMulFn matmul[kDTypeCount];
  // The float formats for many rows, as 16-bit dot products: weights and activations are rounded to
  // 14 bits (sign and 13) of the largest magnitude in 32 columns. Null where there is no gain. From
  // `word_min_rows` rows on they are faster than `matmul`.
  MatMulFn word_matmul[kDTypeCount];
  int word_min_rows;
  void (*quantize_words)(const float* x, int32_t cols, int16_t* q, float* scale, int64_t stride);
  // From `tile_min_rows` rows on: products of weights and activations rounded to BF16, summed in
  // float32 by a matrix unit. Null where there is none. The width is a multiple of 32.
  MatMulFn tile_matmul[kDTypeCount];
  int tile_min_rows;
  // activation(gate x) * (up x) of two matrices, rounded to BF16 where it is computed, with the
  // bits that tile_matmul, glu and to_bf16 would give.
  MatMulFn tile_glu_matmul[kDTypeCount];
  // What `matmul` computes, bit by bit, by a matrix unit: block formats from `tile_quant_min_rows`
  // rows on, in tiles of 16 rows, the last filled up with zeros, and W8A8 from
  // `tile_scaled_min_rows` on for widths that are a multiple of 64. Null where there is none.
  MatMulFn tile_quant_matmul[kDTypeCount];
  int tile_quant_min_rows;
  int tile_scaled_min_rows;
  // Rounds one row to BF16: blocks of 32 that lie `stride` values apart.
  void (*to_bf16)(const float* x, int32_t cols, uint16_t* out, int64_t stride);
  // Quantises one row into blocks that lie `stride` records apart.
  void (*quantize_row)(const float* x, int32_t cols, XBlock* out, int64_t stride);
  // Quantises one row with one scale, for W8A8: block b at q + b / 2 * pair_step + b % 2 * step.
  // The scale is NaN if the row holds a NaN or an infinity.
  void (*quantize_whole_row)(const float* x, int32_t cols, int8_t* q, int64_t step,
                             int64_t pair_step, float* scale, int32_t* sum);
  void (*rms_norm)(const float* x, const float* weight, int32_t n, float eps, float* out);
  void (*glu)(Activation activation, const float* gate, const float* up, int32_t n, float* out);
  void (*add)(float* x, const float* y, int32_t n);
  void (*scale)(float* x, float scale, int32_t n);
  void (*softcap)(float* x, float cap, int32_t n);
  // Rotates `heads` heads of one row by dim / 2 cosines and sines.
  void (*rope)(float* x, int32_t heads, int32_t head_dim, int32_t dim, bool halves,
               const float* cosines, const float* sines);
  // Stores one token's vector into a tile; `transposed` for keys.
  void (*store_kv)(const float* x, int32_t dim, KvDType dtype, bool transposed, int32_t token,
                   std::byte* tile);
  // The keys of 16 tokens, rows `stride` floats apart, as a whole tile of F16, with the bits of
  // store_kv. `dim` is a multiple of 16. Null where there is no gain.
  void (*store_key_tile)(const float* x, int64_t stride, int32_t dim, std::byte* tile);
  // Units [first, last) of a sequence, unit = row * group + head in group.
  void (*attention)(const AttentionArgs& args, int64_t first, int64_t last);
  // The same for many units, by a matrix unit, from `tile_attention_min_rows` rows on; null where
  // there is none. F16 and INT8 KV, key_dim a multiple of 32, value_dim of 16. `scratch` has
  // TileAttentionScratch() floats. Results may depend on `first`.
  void (*tile_attention)(const AttentionArgs& args, int64_t first, int64_t last);
  int tile_attention_min_rows;

  // Measures of the machine, with this variant's instructions (verify.h). `read` returns a value
  // that depends on all bytes; the others do `rounds` x 12 independent steps from registers.
  int32_t (*read)(const std::byte* data, int64_t bytes);
  int32_t (*int8_rounds)(int64_t rounds);
  int32_t int8_step_ops;                   // operations a step of it
  int32_t (*word_rounds)(int64_t rounds);  // of 16-bit units; null: none
  int32_t word_step_ops;
  float (*float_rounds)(int64_t rounds);  // 32 operations a step
};

}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_H_
