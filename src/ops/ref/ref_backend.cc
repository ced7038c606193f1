#include "ops/ref/ref_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/status.h"
#include "fmt/format.h"
#include "ops/check.h"
#include "ops/rope.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace terrace::ops {
namespace {

double Dot(const float* a, const float* b, int32_t n) {
  double sum[4] = {};
  int32_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] += static_cast<double>(a[i + j]) * b[i + j];
  }
  for (; i < n; ++i) sum[0] += static_cast<double>(a[i]) * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void NormInto(const float* x, const float* weight, int32_t n, float eps, float* out) {
  const double scale = 1.0 / std::sqrt(Dot(x, x, n) / n + eps);
  for (int32_t i = 0; i < n; ++i) out[i] = static_cast<float>(x[i] * scale * weight[i]);
}

float Activate(Activation activation, float x) {
  const double v = x;
  if (activation == Activation::kSilu) return static_cast<float>(v / (1.0 + std::exp(-v)));
  constexpr double kRoot2OverPi = 0.79788456080286535588;
  return static_cast<float>(0.5 * v * (1.0 + std::tanh(kRoot2OverPi * (v + 0.044715 * v * v * v))));
}

// One head's keys or values of a layer in a sequence's blocks, read as floats.
class KvReader {
 public:
  KvReader(const KvGeometry& geometry, const SequenceRows& sequence, size_t key, size_t value)
      : geometry_(geometry), sequence_(sequence), key_(key), value_(value) {}

  float Key(int32_t position, int32_t d) const {
    const int32_t token = position % kKvBlockTokens;
    return Read(Block(position) + key_, geometry_.key_dim, d * kKvBlockTokens + token, token);
  }
  float Value(int32_t position, int32_t d) const {
    const int32_t token = position % kKvBlockTokens;
    return Read(Block(position) + value_, geometry_.value_dim, token * geometry_.value_dim + d,
                token);
  }

 private:
  const std::byte* Block(int32_t position) const {
    return sequence_.blocks[static_cast<size_t>(position / kKvBlockTokens)];
  }
  float Read(const std::byte* tile, int32_t dim, int32_t at, int32_t token) const {
    switch (geometry_.dtype) {
      case KvDType::kF32: {
        float value;
        std::memcpy(&value, tile + size_t{4} * at, sizeof(value));
        return value;
      }
      case KvDType::kF16: {
        uint16_t bits;
        std::memcpy(&bits, tile + size_t{2} * at, sizeof(bits));
        return HalfToFloat(bits);
      }
      case KvDType::kI8: {
        float scale;
        std::memcpy(&scale, tile + dim * kKvBlockTokens + size_t{4} * token, sizeof(scale));
        return scale * static_cast<float>(static_cast<int8_t>(tile[at]));
      }
    }
    return 0.0f;
  }

  const KvGeometry& geometry_;
  const SequenceRows& sequence_;
  const size_t key_;
  const size_t value_;
};

// Writes one token's vector into a tile: element d at index d * element_stride + first.
void StoreVector(KvDType dtype, const float* x, int32_t dim, std::byte* tile, int32_t first,
                 int32_t element_stride, int32_t token) {
  float inverse = 0.0f;
  if (dtype == KvDType::kI8) {
    float largest = 0.0f;
    for (int32_t d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(x[d]));
    const float scale = largest / 127.0f;
    inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    std::memcpy(tile + dim * kKvBlockTokens + size_t{4} * token, &scale, sizeof(scale));
  }
  for (int32_t d = 0; d < dim; ++d) {
    const size_t at = static_cast<size_t>(first) + static_cast<size_t>(d) * element_stride;
    if (dtype == KvDType::kF32) {
      std::memcpy(tile + 4 * at, &x[d], 4);
    } else if (dtype == KvDType::kF16) {
      const uint16_t bits = FloatToHalf(x[d]);
      std::memcpy(tile + 2 * at, &bits, 2);
    } else {
      tile[at] = static_cast<std::byte>(static_cast<int8_t>(std::lrintf(x[d] * inverse)));
    }
  }
}

class RefBackend final : public Backend {
 public:
  explicit RefBackend(ThreadTeam* team) : team_(team) {}

  std::string_view name() const override { return "ref"; }

  Layout PreferredLayout(DType, int32_t, int32_t) const override { return Layout::kPlain; }

  uint64_t PackedBytes(Layout, DType dtype, int32_t rows, int32_t cols) const override {
    return static_cast<uint64_t>(rows) * RowBytes(dtype, static_cast<uint64_t>(cols));
  }

  absl::Status Pack(Layout layout, DType dtype, int32_t rows, int32_t cols,
                    std::span<const std::byte> source, std::span<std::byte> packed) const override {
    if (layout != Layout::kPlain)
      return absl::UnimplementedError("Pack: ref takes plain rows only");
    const uint64_t bytes = PackedBytes(layout, dtype, rows, cols);
    if (source.size() < bytes || packed.size() < bytes) {
      return absl::InvalidArgumentError(fmt::format("Pack: {} bytes do not fit", bytes));
    }
    if (packed.data() != source.data()) std::memcpy(packed.data(), source.data(), bytes);
    return absl::OkStatus();
  }

  absl::Status EmbedRows(const Weight& table, std::span<const int32_t> ids, float scale,
                         Matrix out) override {
    RETURN_IF_ERROR(CheckEmbed(table, ids, out));
    RETURN_IF_ERROR(PlainOnly("EmbedRows", table));
    const uint64_t bytes = RowBytes(table.dtype, static_cast<uint64_t>(table.cols));
    for (size_t r = 0; r < ids.size(); ++r) {
      float* to = out.row(static_cast<int64_t>(r));
      DequantizeRow(table.dtype, table.data + bytes * static_cast<uint64_t>(ids[r]),
                    {to, static_cast<size_t>(table.cols)});
      for (int32_t i = 0; i < table.cols; ++i) to[i] *= scale;
    }
    return absl::OkStatus();
  }

  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override {
    RETURN_IF_ERROR(CheckNorm(x, weight, out));
    for (int32_t r = 0; r < x.rows; ++r) NormInto(x.row(r), weight.data, x.cols, eps, out.row(r));
    return absl::OkStatus();
  }

  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override {
    RETURN_IF_ERROR(CheckNormHeads(x, heads, weight));
    for (int32_t r = 0; r < x.rows; ++r) {
      for (int32_t h = 0; h < heads; ++h) {
        float* head = x.row(r) + int64_t{h} * weight.size;
        NormInto(head, weight.data, weight.size, eps, head);
      }
    }
    return absl::OkStatus();
  }

  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override {
    RETURN_IF_ERROR(CheckMatMul(x, targets));
    for (const MatMulTarget& target : targets) {
      RETURN_IF_ERROR(PlainOnly("MatMul", target.weight));
    }
    for (const MatMulTarget& target : targets) {
      const Weight& w = target.weight;
      const uint64_t bytes = RowBytes(w.dtype, static_cast<uint64_t>(w.cols));
      team_->ParallelFor(w.rows, 8, [&](int64_t begin, int64_t end, int) {
        std::vector<float> row(static_cast<size_t>(w.cols));
        for (int64_t r = begin; r < end; ++r) {
          DequantizeRow(w.dtype, w.data + bytes * static_cast<uint64_t>(r), row);
          const double bias = target.bias.data != nullptr ? target.bias.data[r] : 0.0;
          for (int32_t n = 0; n < x.rows; ++n) {
            target.out.row(n)[r] = static_cast<float>(Dot(row.data(), x.row(n), w.cols) + bias);
          }
        }
      });
    }
    return absl::OkStatus();
  }

  absl::Status Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                    const RopeParams& params) override {
    RETURN_IF_ERROR(CheckRope(x, heads, head_dim, batch, params));
    const RopeTable table(params);
    const int32_t pairs = params.dim / 2;
    std::vector<float> cosines(static_cast<size_t>(pairs));
    std::vector<float> sines(static_cast<size_t>(pairs));
    const bool halves = params.kind == RopeKind::kHalves;
    for (int32_t r = 0; r < x.rows; ++r) {
      table.Angles(batch.positions[static_cast<size_t>(r)], cosines.data(), sines.data());
      for (int32_t h = 0; h < heads; ++h) {
        float* head = x.row(r) + int64_t{h} * head_dim;
        for (int32_t i = 0; i < pairs; ++i) {
          float& a = head[halves ? i : 2 * i];
          float& b = head[halves ? i + pairs : 2 * i + 1];
          const double c = cosines[static_cast<size_t>(i)];
          const double s = sines[static_cast<size_t>(i)];
          const double rotated = a * c - b * s;
          b = static_cast<float>(a * s + b * c);
          a = static_cast<float>(rotated);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                       const BatchRows& batch) override {
    RETURN_IF_ERROR(CheckStoreKv(k, v, layer, geometry, batch));
    for (const SequenceRows& s : batch.sequences) {
      for (int32_t r = 0; r < s.rows; ++r) {
        const int32_t position = s.start + r;
        const int32_t token = position % kKvBlockTokens;
        std::byte* block = s.blocks[static_cast<size_t>(position / kKvBlockTokens)];
        for (int32_t h = 0; h < geometry.kv_heads; ++h) {
          StoreVector(geometry.dtype, k.row(s.first_row + r) + int64_t{h} * geometry.key_dim,
                      geometry.key_dim, block + geometry.key_offset(layer, h), token,
                      kKvBlockTokens, token);
          StoreVector(geometry.dtype, v.row(s.first_row + r) + int64_t{h} * geometry.value_dim,
                      geometry.value_dim, block + geometry.value_offset(layer, h),
                      token * geometry.value_dim, 1, token);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Attention(Matrix q, const AttentionParams& params, const KvGeometry& geometry,
                         const BatchRows& batch, Matrix out) override {
    RETURN_IF_ERROR(CheckAttention(q, params, geometry, batch, out));
    for (const SequenceRows& s : batch.sequences) {
      team_->ParallelFor(params.heads, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t h = begin; h < end; ++h) {
          for (int32_t r = 0; r < s.rows; ++r) {
            AttendOne(q, params, geometry, s, static_cast<int32_t>(h), r, out);
          }
        }
      });
    }
    return absl::OkStatus();
  }

  absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) override {
    RETURN_IF_ERROR(CheckSameShape("Glu", gate, up));
    RETURN_IF_ERROR(CheckSameShape("Glu", gate, out));
    for (int32_t r = 0; r < gate.rows; ++r) {
      for (int32_t i = 0; i < gate.cols; ++i) {
        out.row(r)[i] = Activate(activation, gate.row(r)[i]) * up.row(r)[i];
      }
    }
    return absl::OkStatus();
  }

  absl::Status Add(Matrix x, Matrix y) override {
    RETURN_IF_ERROR(CheckSameShape("Add", x, y));
    for (int32_t r = 0; r < x.rows; ++r) {
      for (int32_t i = 0; i < x.cols; ++i) x.row(r)[i] += y.row(r)[i];
    }
    return absl::OkStatus();
  }

  absl::Status Scale(Matrix x, float scale) override {
    RETURN_IF_ERROR(CheckMatrix("Scale", "input", x));
    for (int32_t r = 0; r < x.rows; ++r) {
      for (int32_t i = 0; i < x.cols; ++i) x.row(r)[i] *= scale;
    }
    return absl::OkStatus();
  }

  absl::Status Softcap(Matrix x, float cap) override {
    RETURN_IF_ERROR(CheckMatrix("Softcap", "input", x));
    if (!(cap > 0)) return absl::InvalidArgumentError("Softcap: the cap must be positive");
    for (int32_t r = 0; r < x.rows; ++r) {
      for (int32_t i = 0; i < x.cols; ++i) {
        x.row(r)[i] = static_cast<float>(cap * std::tanh(double{x.row(r)[i]} / cap));
      }
    }
    return absl::OkStatus();
  }

  absl::Status GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) override {
    RETURN_IF_ERROR(CheckGather(x, rows, out));
    for (size_t r = 0; r < rows.size(); ++r) {
      std::memmove(out.row(static_cast<int64_t>(r)), x.row(rows[r]),
                   static_cast<size_t>(x.cols) * sizeof(float));
    }
    return absl::OkStatus();
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  static absl::Status PlainOnly(std::string_view op, const Weight& weight) {
    if (weight.layout == Layout::kPlain) return absl::OkStatus();
    return absl::UnimplementedError(
        fmt::format("{}: ref does not take layout {}", op, LayoutName(weight.layout)));
  }

  // One query head of one row: a softmax over its keys, in two passes.
  static void AttendOne(const Matrix& q, const AttentionParams& params, const KvGeometry& geometry,
                        const SequenceRows& s, int32_t head, int32_t r, const Matrix& out) {
    const int32_t kv_head = head / (params.heads / geometry.kv_heads);
    const KvReader kv(geometry, s, geometry.key_offset(params.layer, kv_head),
                      geometry.value_offset(params.layer, kv_head));
    const float* query = q.row(s.first_row + r) + int64_t{head} * geometry.key_dim;
    float* to = out.row(s.first_row + r) + int64_t{head} * geometry.value_dim;
    const int32_t position = s.start + r;
    const int32_t first = params.window > 0 ? std::max(0, position - params.window + 1) : 0;
    std::vector<double> score(static_cast<size_t>(position - first + 1));
    double largest = params.sinks.data != nullptr ? params.sinks.data[head] : -1e300;
    for (int32_t p = first; p <= position; ++p) {
      double dot = 0;
      for (int32_t d = 0; d < geometry.key_dim; ++d) dot += double{query[d]} * kv.Key(p, d);
      dot *= params.scale;
      if (params.softcap > 0) dot = params.softcap * std::tanh(dot / params.softcap);
      score[static_cast<size_t>(p - first)] = dot;
      largest = std::max(largest, dot);
    }
    double sum = params.sinks.data != nullptr ? std::exp(params.sinks.data[head] - largest) : 0.0;
    for (double& value : score) sum += value = std::exp(value - largest);
    std::vector<double> total(static_cast<size_t>(geometry.value_dim));
    for (int32_t p = first; p <= position; ++p) {
      const double weight = score[static_cast<size_t>(p - first)] / sum;
      for (int32_t d = 0; d < geometry.value_dim; ++d) {
        total[static_cast<size_t>(d)] += weight * kv.Value(p, d);
      }
    }
    for (int32_t d = 0; d < geometry.value_dim; ++d) {
      to[d] = static_cast<float>(total[static_cast<size_t>(d)]);
    }
  }

  ThreadTeam* const team_;
};

}  // namespace

std::unique_ptr<Backend> CreateRefBackend(ThreadTeam* team) {
  return std::make_unique<RefBackend>(team);
}

}  // namespace terrace::ops
