#include "ops/check.h"

#include <algorithm>

#include "base/status.h"
#include "fmt/format.h"

namespace terrace::ops {
namespace {

// Longest rows of W8A8, so that sums of products of bytes stay below 2^31.
constexpr int32_t kMaxScaledCols = 1 << 17;

absl::Status Refuse(std::string_view op, const std::string& why) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", op, why));
}

}  // namespace

absl::Status CheckMatrix(std::string_view op, std::string_view what, const Matrix& m) {
  if (m.rows < 0 || m.cols <= 0 || (m.rows > 1 && m.stride < m.cols) ||
      (m.data == nullptr && m.rows > 0)) {
    return Refuse(op, fmt::format("{} is [{}, {}] with stride {}{}", what, m.rows, m.cols, m.stride,
                                  m.data == nullptr ? " and no data" : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckSameShape(std::string_view op, const Matrix& a, const Matrix& b) {
  RETURN_IF_ERROR(CheckMatrix(op, "first operand", a));
  RETURN_IF_ERROR(CheckMatrix(op, "second operand", b));
  if (a.rows != b.rows || a.cols != b.cols) {
    return Refuse(op, fmt::format("[{}, {}] and [{}, {}] differ", a.rows, a.cols, b.rows, b.cols));
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(std::string_view op, const Weight& weight) {
  const DTypeInfo& info = Info(weight.dtype);
  if (!weight.valid() || weight.rows <= 0 || weight.cols <= 0 ||
      weight.cols % static_cast<int32_t>(info.block_elements) != 0) {
    return Refuse(op, fmt::format("weight {} [{}, {}]{} does not fit its format", info.name,
                                  weight.rows, weight.cols, weight.valid() ? "" : " without data"));
  }
  if (weight.dtype == DType::kW8A8 && weight.cols > kMaxScaledCols) {
    return Refuse(op, fmt::format("weight W8A8 [{}, {}]: rows have at most {} columns", weight.rows,
                                  weight.cols, kMaxScaledCols));
  }
  return absl::OkStatus();
}

absl::Status CheckEmbed(const Weight& table, std::span<const int32_t> ids, const Matrix& out) {
  RETURN_IF_ERROR(CheckWeight("EmbedRows", table));
  RETURN_IF_ERROR(CheckMatrix("EmbedRows", "output", out));
  if (out.rows != static_cast<int64_t>(ids.size()) || out.cols != table.cols) {
    return Refuse("EmbedRows", fmt::format("{} ids of width {} into [{}, {}]", ids.size(),
                                           table.cols, out.rows, out.cols));
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= table.rows) {
      return Refuse("EmbedRows", fmt::format("id {} of a table of {} rows", id, table.rows));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNorm(const Matrix& x, const Vector& weight, const Matrix& out) {
  RETURN_IF_ERROR(CheckSameShape("RmsNorm", x, out));
  if (weight.data == nullptr || weight.size != x.cols) {
    return Refuse("RmsNorm", fmt::format("weight of {} for rows of {}", weight.size, x.cols));
  }
  return absl::OkStatus();
}

absl::Status CheckNormHeads(const Matrix& x, int32_t heads, const Vector& weight) {
  RETURN_IF_ERROR(CheckMatrix("RmsNormHeads", "input", x));
  if (weight.data == nullptr || heads <= 0 || weight.size <= 0 ||
      int64_t{heads} * weight.size != x.cols) {
    return Refuse("RmsNormHeads", fmt::format("{} heads with a weight of {} in rows of {}", heads,
                                              weight.size, x.cols));
  }
  return absl::OkStatus();
}

absl::Status CheckMatMul(const Matrix& x, std::span<const MatMulTarget> targets) {
  RETURN_IF_ERROR(CheckMatrix("MatMul", "input", x));
  for (const MatMulTarget& target : targets) {
    RETURN_IF_ERROR(CheckWeight("MatMul", target.weight));
    RETURN_IF_ERROR(CheckMatrix("MatMul", "output", target.out));
    if (target.weight.cols != x.cols || target.out.rows != x.rows ||
        target.out.cols != target.weight.rows) {
      return Refuse("MatMul", fmt::format("weight [{}, {}], input [{}, {}], output [{}, {}]",
                                          target.weight.rows, target.weight.cols, x.rows, x.cols,
                                          target.out.rows, target.out.cols));
    }
    if (target.bias.data != nullptr && target.bias.size != target.weight.rows) {
      return Refuse("MatMul",
                    fmt::format("bias of {} for {} rows", target.bias.size, target.weight.rows));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGatedFfn(const Matrix& x, const Weight& gate, const Weight& up,
                           const Matrix& gated, const Matrix& raised, const MatMulTarget& down) {
  const MatMulTarget both[] = {{gate, {}, gated}, {up, {}, raised}};
  RETURN_IF_ERROR(CheckSameShape("GatedFfn", gated, raised));
  RETURN_IF_ERROR(CheckMatMul(x, both));
  return CheckMatMul(gated, {&down, 1});
}

absl::Status CheckRope(const Matrix& x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                       const RopeParams& params) {
  RETURN_IF_ERROR(CheckMatrix("Rope", "input", x));
  if (heads <= 0 || head_dim <= 0 || int64_t{heads} * head_dim != x.cols || params.dim <= 0 ||
      params.dim > head_dim || params.dim % 2 != 0) {
    return Refuse("Rope", fmt::format("{} heads of {} rotating {} in rows of {}", heads, head_dim,
                                      params.dim, x.cols));
  }
  if (params.frequency_factors.data != nullptr && params.frequency_factors.size != params.dim / 2) {
    return Refuse("Rope", fmt::format("{} frequency factors for {} dimensions",
                                      params.frequency_factors.size, params.dim));
  }
  if (batch.rows != x.rows || batch.positions.size() != static_cast<size_t>(x.rows)) {
    return Refuse("Rope", fmt::format("{} positions for {} rows", batch.positions.size(), x.rows));
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(std::string_view op, const BatchRows& batch, int32_t rows) {
  if (batch.rows != rows) return Refuse(op, fmt::format("batch of {} for {}", batch.rows, rows));
  for (const SequenceRows& s : batch.sequences) {
    const int64_t tokens = int64_t{s.start} + s.rows;
    if (s.first_row < 0 || s.rows < 0 || s.start < 0 || int64_t{s.first_row} + s.rows > rows ||
        static_cast<int64_t>(s.blocks.size()) * kKvBlockTokens < tokens) {
      return Refuse(op, fmt::format("sequence of rows [{}, +{}) at {} with {} KV blocks",
                                    s.first_row, s.rows, s.start, s.blocks.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStoreKv(const Matrix& k, const Matrix& v, int32_t layer,
                          const KvGeometry& geometry, const BatchRows& batch) {
  RETURN_IF_ERROR(CheckMatrix("StoreKv", "keys", k));
  RETURN_IF_ERROR(CheckMatrix("StoreKv", "values", v));
  if (layer < 0 || layer >= geometry.layers || geometry.kv_heads <= 0 || k.rows != v.rows ||
      k.cols != geometry.kv_heads * geometry.key_dim ||
      v.cols != geometry.kv_heads * geometry.value_dim) {
    return Refuse("StoreKv", fmt::format("layer {} of {}, keys [{}, {}], values [{}, {}]", layer,
                                         geometry.layers, k.rows, k.cols, v.rows, v.cols));
  }
  return CheckBatch("StoreKv", batch, k.rows);
}

absl::Status CheckAttention(const Matrix& q, const AttentionParams& params,
                            const KvGeometry& geometry, const BatchRows& batch, const Matrix& out) {
  RETURN_IF_ERROR(CheckMatrix("Attention", "queries", q));
  RETURN_IF_ERROR(CheckMatrix("Attention", "output", out));
  if (params.layer < 0 || params.layer >= geometry.layers || geometry.kv_heads <= 0 ||
      params.heads <= 0 || params.heads % geometry.kv_heads != 0 || q.rows != out.rows ||
      q.cols != int64_t{params.heads} * geometry.key_dim ||
      out.cols != int64_t{params.heads} * geometry.value_dim) {
    return Refuse("Attention",
                  fmt::format("{} heads over {} KV heads of {} and {}, queries [{}, {}], output "
                              "[{}, {}], layer {} of {}",
                              params.heads, geometry.kv_heads, geometry.key_dim, geometry.value_dim,
                              q.rows, q.cols, out.rows, out.cols, params.layer, geometry.layers));
  }
  if (params.sinks.data != nullptr && params.sinks.size != params.heads) {
    return Refuse("Attention",
                  fmt::format("{} sinks for {} heads", params.sinks.size, params.heads));
  }
  return CheckBatch("Attention", batch, q.rows);
}

absl::Status CheckGather(const Matrix& x, std::span<const int32_t> rows, const Matrix& out) {
  RETURN_IF_ERROR(CheckMatrix("GatherRows", "input", x));
  RETURN_IF_ERROR(CheckMatrix("GatherRows", "output", out));
  if (out.rows != static_cast<int64_t>(rows.size()) || out.cols != x.cols) {
    return Refuse("GatherRows", fmt::format("{} rows of {} into [{}, {}]", rows.size(), x.cols,
                                            out.rows, out.cols));
  }
  for (const int32_t row : rows) {
    if (row < 0 || row >= x.rows) {
      return Refuse("GatherRows", fmt::format("row {} of {}", row, x.rows));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAddScaledRows(const Matrix& x, std::span<const int32_t> rows,
                                std::span<const float> shares, const Matrix& out) {
  RETURN_IF_ERROR(CheckMatrix("AddScaledRows", "input", x));
  RETURN_IF_ERROR(CheckMatrix("AddScaledRows", "output", out));
  const bool fit = std::all_of(rows.begin(), rows.end(),
                               [&](int32_t row) { return row >= 0 && row < out.rows; });
  if (!fit || rows.size() != shares.size() || x.rows < static_cast<int64_t>(rows.size()) ||
      x.cols != out.cols) {
    return Refuse("AddScaledRows",
                  fmt::format("{} rows and {} shares of [{}, {}] to [{}, {}]", rows.size(),
                              shares.size(), x.rows, x.cols, out.rows, out.cols));
  }
  return absl::OkStatus();
}

absl::Status CheckScaleBySigmoid(const Matrix& x, const Vector& gate, const Matrix& out) {
  RETURN_IF_ERROR(CheckMatrix("ScaleBySigmoid", "input", x));
  RETURN_IF_ERROR(CheckMatrix("ScaleBySigmoid", "output", out));
  if (gate.data != nullptr && gate.size == x.cols && out.rows == x.rows) return absl::OkStatus();
  return Refuse("ScaleBySigmoid", fmt::format("input [{}, {}], gate of {}, output of {} rows",
                                              x.rows, x.cols, gate.size, out.rows));
}

absl::Status CheckLayerNorm(const Matrix& x, const Vector& weight, const Vector& bias) {
  RETURN_IF_ERROR(CheckMatrix("LayerNorm", "input", x));
  const bool there = weight.data != nullptr && bias.data != nullptr;
  if (there && weight.size == x.cols && bias.size == x.cols) return absl::OkStatus();
  return Refuse("LayerNorm", fmt::format("input [{}, {}], weight of {}, bias of {}", x.rows, x.cols,
                                         weight.size, bias.size));
}

namespace {

// Every sequence has rows, all of them among `rows`.
bool SequencesFit(const BatchRows& batch, int32_t rows) {
  return std::all_of(batch.sequences.begin(), batch.sequences.end(), [&](const SequenceRows& s) {
    return s.first_row >= 0 && s.rows >= 1 && s.rows <= rows && s.first_row <= rows - s.rows;
  });
}

}  // namespace

absl::Status CheckAttendAll(const Matrix& q, const Matrix& k, const Matrix& v, int32_t heads,
                            const BatchRows& batch, const Matrix& out) {
  RETURN_IF_ERROR(CheckSameShape("AttendAll", q, k));
  RETURN_IF_ERROR(CheckSameShape("AttendAll", q, v));
  RETURN_IF_ERROR(CheckSameShape("AttendAll", q, out));
  if (heads >= 1 && q.cols % heads == 0 && SequencesFit(batch, q.rows)) return absl::OkStatus();
  return Refuse("AttendAll", fmt::format("[{}, {}] with {} heads, {} sequences", q.rows, q.cols,
                                         heads, batch.sequences.size()));
}

absl::Status CheckPool(const Matrix& x, const BatchRows& batch, const Matrix& out) {
  RETURN_IF_ERROR(CheckMatrix("Pool", "input", x));
  RETURN_IF_ERROR(CheckMatrix("Pool", "output", out));
  if (out.cols == x.cols && static_cast<size_t>(out.rows) == batch.sequences.size() &&
      SequencesFit(batch, x.rows)) {
    return absl::OkStatus();
  }
  return Refuse("Pool", fmt::format("[{}, {}] of {} sequences to [{}, {}]", x.rows, x.cols,
                                    batch.sequences.size(), out.rows, out.cols));
}

absl::Status CheckRead(const Matrix& x, std::span<const float> out) {
  RETURN_IF_ERROR(CheckMatrix("Read", "input", x));
  if (out.size() != static_cast<size_t>(x.rows) * static_cast<size_t>(x.cols)) {
    return Refuse("Read", fmt::format("[{}, {}] into {}", x.rows, x.cols, out.size()));
  }
  return absl::OkStatus();
}

}  // namespace terrace::ops
