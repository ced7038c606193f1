// What operators take: views of weights, activations, and of a batch's rows and KV blocks. Views do
// not own; pointers are addresses on the backend's device unless said "host".
#ifndef TERRACE_OPS_TYPES_H_
#define TERRACE_OPS_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace terrace::ops {

// How a weight matrix lies in memory. The name goes into an image's manifest: changing what a name
// means needs a new name.
enum class Layout : uint8_t {
  kPlain,   // rows one after the other, GGUF blocks as they are
  kRows16,  // "r16-1": 16 rows interleaved for wide registers; ops/cpu/packing.h has the bytes
};
const char* LayoutName(Layout layout);

// A weight matrix W of `rows` output features by `cols` input features; y = W x.
struct Weight {
  DType dtype = DType::kF32;
  Layout layout = Layout::kPlain;
  int32_t rows = 0;
  int32_t cols = 0;
  const std::byte* data = nullptr;
  bool valid() const { return data != nullptr; }
};

// A float32 vector of weights (norms, biases); null data means absent.
struct Vector {
  const float* data = nullptr;
  int32_t size = 0;
};

// float32 activations [rows, cols], row r at data + r * stride.
struct Matrix {
  float* data = nullptr;
  int32_t rows = 0;
  int32_t cols = 0;
  int64_t stride = 0;
  float* row(int64_t r) const { return data + r * stride; }
};

inline constexpr int32_t kKvBlockTokens = 16;

// kF32 is for checking: twice the bytes of kF16 and no rounding of keys and values.
enum class KvDType : uint8_t { kF16, kI8, kF32 };
inline constexpr size_t KvElementBytes(KvDType dtype) {
  return dtype == KvDType::kI8 ? 1 : dtype == KvDType::kF16 ? 2 : 4;
}

// Geometry of one model's KV blocks. A block holds 16 tokens of every layer, contiguous:
//   for each layer, for each KV head: K tile [key_dim][16 tokens], then V tile [16
//   tokens][value_dim];
// K is stored token-minor so that one wide load covers a dimension of all 16 tokens. With kI8, each
// tile is followed by 16 float scales, one a token (largest magnitude / 127).
struct KvGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  KvDType dtype = KvDType::kF16;

  size_t element_bytes() const { return KvElementBytes(dtype); }
  size_t scale_bytes() const { return dtype == KvDType::kI8 ? kKvBlockTokens * sizeof(float) : 0; }
  size_t key_tile_bytes() const {
    return static_cast<size_t>(key_dim) * kKvBlockTokens * element_bytes() + scale_bytes();
  }
  size_t value_tile_bytes() const {
    return static_cast<size_t>(value_dim) * kKvBlockTokens * element_bytes() + scale_bytes();
  }
  size_t head_bytes() const { return key_tile_bytes() + value_tile_bytes(); }
  size_t layer_bytes() const { return head_bytes() * static_cast<size_t>(kv_heads); }
  size_t block_bytes() const { return layer_bytes() * static_cast<size_t>(layers); }
  size_t key_offset(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer) * layer_bytes() + static_cast<size_t>(head) * head_bytes();
  }
  size_t value_offset(int32_t layer, int32_t head) const {
    return key_offset(layer, head) + key_tile_bytes();
  }
};

// The rows of one sequence in a batch: rows [first_row, first_row + rows) of every activation
// matrix are its tokens at positions start, start + 1, ... ; blocks[i] (device address, host array)
// holds positions [16 i, 16 i + 16) and covers start + rows tokens.
struct SequenceRows {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t start = 0;
  std::span<std::byte* const> blocks;
};

// A batch as operators see it (host memory).
struct BatchRows {
  int32_t rows = 0;                    // total over sequences
  std::span<const int32_t> positions;  // [rows]
  std::span<const SequenceRows> sequences;
};

enum class RopeKind : uint8_t {
  kAdjacent,  // rotates (x[2i], x[2i+1])
  kHalves,    // rotates (x[i], x[i + dim/2]), "NeoX"
};

// Rotary embedding (Su et al. 2021), with linear and YaRN scaling (Peng et al. 2023).
struct RopeParams {
  RopeKind kind = RopeKind::kHalves;
  int32_t dim = 0;  // rotated dimensions, at the head's start
  float base = 10000.0f;
  float position_scale = 1.0f;   // linear scaling: positions are multiplied by it
  Vector frequency_factors;      // [dim / 2] (host), divides each frequency; absent: 1
  float yarn_ext_factor = 0.0f;  // 0: no YaRN
  float yarn_attn_factor = 1.0f;
  float yarn_beta_fast = 32.0f;
  float yarn_beta_slow = 1.0f;
  int32_t yarn_original_context = 0;
  bool yarn_round_range = true;  // the corrected pairs' range is rounded outward to whole pairs
};

struct AttentionParams {
  int32_t layer = 0;
  int32_t heads = 0;     // query heads; a multiple of the geometry's kv_heads
  float scale = 1.0f;    // multiplies q . k
  int32_t window = 0;    // > 0: a token sees itself and the window - 1 tokens before it
  float softcap = 0.0f;  // > 0: score = cap * tanh(score / cap)
  Vector sinks;          // [heads] logits added to each softmax's denominator; absent: none
};

enum class Activation : uint8_t { kSilu, kGeluTanh };

}  // namespace terrace::ops

#endif  // TERRACE_OPS_TYPES_H_
