#include "ops/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "fmt/format.h"
#include "ops/check.h"
#include "ops/cpu/activations.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/kv_store.h"
#include "ops/cpu/packing.h"
#include "ops/cpu/variants.h"
#include "ops/rope.h"
#include "tensor/dequantize.h"

namespace terrace::ops {
namespace {

using cpu::Kernels;
using cpu::kLanes;

// Least bytes of weights a worker takes at once: below that, starting a new stream from memory
// costs more than an uneven end.
constexpr int64_t kGrainBytes = 32 << 10;

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::string name, const Kernels& kernels, ThreadTeam* team, const CpuOptions& options)
      : name_(std::move(name)),
        kernels_(kernels),
        team_(team),
        options_(options),
        activations_(kernels, team),
        worker_floats_(static_cast<size_t>(team->size())),
        worker_packed_(static_cast<size_t>(team->size())),
        worker_weights_(static_cast<size_t>(team->size())) {}

  std::string_view name() const override { return name_; }

  Layout PreferredLayout(DType dtype, int32_t, int32_t) const override {
    return cpu::Packable(dtype) ? Layout::kRows16 : Layout::kPlain;
  }

  uint64_t PackedBytes(Layout layout, DType dtype, int32_t rows, int32_t cols) const override {
    return cpu::PackedMatrixBytes(layout, dtype, rows, cols);
  }

  absl::Status Pack(Layout layout, DType dtype, int32_t rows, int32_t cols,
                    std::span<const std::byte> source, std::span<std::byte> packed) const override {
    return cpu::PackMatrix(layout, dtype, rows, cols, source, packed);
  }

  absl::Status EmbedRows(const Weight& table, std::span<const int32_t> ids, float scale,
                         Matrix out) override {
    RETURN_IF_ERROR(CheckEmbed(table, ids, out));
    const uint64_t row_bytes = RowBytes(table.dtype, static_cast<uint64_t>(table.cols));
    ForRows(out.rows, table.cols, [&](int64_t r) {
      float* to = out.row(r);
      const int64_t id = ids[static_cast<size_t>(r)];
      const std::span<float> row(to, static_cast<size_t>(table.cols));
      if (table.layout == Layout::kPlain) {
        DequantizeRow(table.dtype, table.data + row_bytes * static_cast<uint64_t>(id), row);
      } else {
        cpu::UnpackRow(table.dtype, table.data, id, row);
      }
      if (scale != 1.0f) kernels_.scale(to, scale, table.cols);
    });
    return absl::OkStatus();
  }

  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override {
    RETURN_IF_ERROR(CheckNorm(x, weight, out));
    ForRows(x.rows, x.cols,
            [&](int64_t r) { kernels_.rms_norm(x.row(r), weight.data, x.cols, eps, out.row(r)); });
    return absl::OkStatus();
  }

  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override {
    RETURN_IF_ERROR(CheckNormHeads(x, heads, weight));
    ForRows(x.rows, x.cols, [&](int64_t r) { NormHeads(x.row(r), heads, weight, eps); });
    return absl::OkStatus();
  }

  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override;
  absl::Status GatedFfn(Matrix x, const Weight& gate, const Weight& up, Activation activation,
                        Matrix gated, Matrix raised, const MatMulTarget& down) override;

  absl::Status Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                    const RopeParams& params) override {
    RETURN_IF_ERROR(CheckRope(x, heads, head_dim, batch, params));
    Rotate(x, heads, {nullptr, head_dim}, 0, batch, params);
    return absl::OkStatus();
  }

  absl::Status NormRope(Matrix x, int32_t heads, Vector norm, float eps, const BatchRows& batch,
                        const RopeParams& params) override {
    RETURN_IF_ERROR(CheckNormHeads(x, heads, norm));
    RETURN_IF_ERROR(CheckRope(x, heads, norm.size, batch, params));
    Rotate(x, heads, norm, eps, batch, params);
    return absl::OkStatus();
  }

  absl::Status StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                       const BatchRows& batch) override {
    RETURN_IF_ERROR(CheckStoreKv(k, v, layer, geometry, batch));
    cpu::StoreKv(kernels_, team_, k, v, layer, geometry, batch);
    return absl::OkStatus();
  }

  absl::Status Attention(Matrix q, const AttentionParams& params, const KvGeometry& geometry,
                         const BatchRows& batch, Matrix out) override;

  absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) override {
    RETURN_IF_ERROR(CheckSameShape("Glu", gate, up));
    RETURN_IF_ERROR(CheckSameShape("Glu", gate, out));
    ForRows(gate.rows, gate.cols, [&](int64_t r) {
      kernels_.glu(activation, gate.row(r), up.row(r), gate.cols, out.row(r));
    });
    return absl::OkStatus();
  }

  absl::Status Add(Matrix x, Matrix y) override {
    RETURN_IF_ERROR(CheckSameShape("Add", x, y));
    ForRows(x.rows, x.cols, [&](int64_t r) { kernels_.add(x.row(r), y.row(r), x.cols); });
    return absl::OkStatus();
  }

  absl::Status Scale(Matrix x, float scale) override {
    RETURN_IF_ERROR(CheckMatrix("Scale", "input", x));
    ForRows(x.rows, x.cols, [&](int64_t r) { kernels_.scale(x.row(r), scale, x.cols); });
    return absl::OkStatus();
  }

  absl::Status Softcap(Matrix x, float cap) override {
    RETURN_IF_ERROR(CheckMatrix("Softcap", "input", x));
    if (!(cap > 0)) return absl::InvalidArgumentError("Softcap: the cap must be positive");
    ForRows(x.rows, x.cols, [&](int64_t r) { kernels_.softcap(x.row(r), cap, x.cols); });
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

  bool by_rows() const override { return !options_.deterministic && !uniform_; }

  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  template <typename F>
  void ForRows(int64_t rows, int64_t cols, F&& fn) {
    cpu::ForRows(team_, rows, cols, std::forward<F>(fn));
  }

  void NormHeads(float* row, int32_t heads, const Vector& weight, float eps) const {
    for (int32_t h = 0; h < heads; ++h) {
      float* const head = row + int64_t{h} * weight.size;
      kernels_.rms_norm(head, weight.data, weight.size, eps, head);
    }
  }
  // Heads of norm.size values, normed before if the norm has data.
  void Rotate(Matrix x, int32_t heads, const Vector& norm, float eps, const BatchRows& batch,
              const RopeParams& params) {
    PrepareAngles(batch.positions, params);
    const int32_t pairs = params.dim / 2;
    ForRows(x.rows, x.cols, [&](int64_t r) {
      if (norm.data != nullptr) NormHeads(x.row(r), heads, norm, eps);
      const float* angles = angles_.data() + r * params.dim;
      kernels_.rope(x.row(r), heads, norm.size, params.dim, params.kind == RopeKind::kHalves,
                    angles, angles + pairs);
    });
  }
  // What a call is to do, and the forms of its input that the targets' formats take.
  struct MatMulWork {
    int64_t groups = 0;    // of 16 rows, over all targets
    int64_t products = 0;  // of weights and activations
    int64_t bytes = 0;     // of weights
    int64_t unit = 2;      // groups that stay together, as tile kernels take them
    bool blocks = false;
    bool scaled = false;
    bool words = false;
    bool tiles = false;
  };
  absl::StatusOr<MatMulWork> PlanMatMul(const Matrix& x,
                                        std::span<const MatMulTarget> targets) const;
  // Where the forms of the input are ready.
  void Multiply(const Matrix& x, std::span<const MatMulTarget> targets, const MatMulWork& work);
  // Whether two matrices are multiplied and gated in one pass, into the input of `down`.
  bool GatesInTiles(const Matrix& x, const Weight& gate, const Weight& up, const Matrix& gated,
                    const Weight& down) const;

  // Some units (row, head of the group) of one KV head of one sequence. With fewer than one a
  // worker, heads of a group are split too, at the cost of reading keys twice.
  struct AttentionTask {
    const SequenceRows* sequence;
    int32_t kv_head;
    int64_t first;
    int64_t last;
    bool tiles;
  };
  std::vector<AttentionTask> AttentionTasks(const BatchRows& batch, const KvGeometry& geometry,
                                            int32_t group) const;

  // Uniform results: matrices are multiplied as for many rows. Tiles of attention are cut by the
  // number of rows and workers, so none are.
  Factors FactorsOf(const Matrix& x, DType dtype) const {
    const int32_t rows = uniform_ ? std::numeric_limits<int32_t>::max() : x.rows;
    return cpu::FactorsOf(kernels_, dtype, rows, x.cols, options_.deterministic);
  }
  // The groups of `args` from feature `row` on, of a matrix in plain rows: packs each before use.
  void MultiplyPlain(const Weight& w, int32_t row, cpu::MatMulFn matmul,
                     const cpu::MatMulArgs& args, int worker);
  // Cosines and sines of each row into angles_; kept while positions and parameters stay the same,
  // which they do over the layers of a step.
  void PrepareAngles(std::span<const int32_t> positions, const RopeParams& params);

  const std::string name_;
  const Kernels& kernels_;
  ThreadTeam* const team_;
  const CpuOptions options_;

  cpu::Activations activations_;
  std::vector<cpu::Scratch<float>> worker_floats_;
  std::vector<cpu::Scratch<std::byte>> worker_packed_;
  std::vector<cpu::Scratch<std::byte>> worker_weights_;

  std::vector<int32_t> angle_positions_;
  RopeParams angle_params_;
  std::vector<float> angle_factors_;
  std::vector<float> angles_;  // [row][dim]: dim / 2 cosines, dim / 2 sines
};

absl::StatusOr<CpuBackend::MatMulWork> CpuBackend::PlanMatMul(
    const Matrix& x, std::span<const MatMulTarget> targets) const {
  MatMulWork work;
  for (const MatMulTarget& target : targets) {
    const DType dtype = target.weight.dtype;
    if (kernels_.matmul[static_cast<size_t>(dtype)] == nullptr) {
      return absl::UnimplementedError(
          fmt::format("MatMul: {} is not a matrix type", Info(dtype).name));
    }
    const Factors factors = FactorsOf(x, dtype);
    work.tiles = work.tiles || factors == Factors::kBf16;
    work.scaled = work.scaled || dtype == DType::kW8A8;
    work.blocks = work.blocks ||
                  (Info(dtype).quantised && dtype != DType::kW8A8 && factors == Factors::kStored);
    work.words = work.words || factors == Factors::kWords;
    const int64_t groups = (target.weight.rows + kLanes - 1) / kLanes;
    work.groups += groups;
    if (factors != Factors::kBf16 || groups % 2 != 0) work.unit = 1;
    work.products += int64_t{target.weight.rows} * target.weight.cols * x.rows;
    work.bytes += static_cast<int64_t>(target.weight.rows) *
                  static_cast<int64_t>(RowBytes(dtype, static_cast<uint64_t>(target.weight.cols)));
  }
  return work;
}

void CpuBackend::MultiplyPlain(const Weight& w, int32_t row, cpu::MatMulFn matmul,
                               const cpu::MatMulArgs& args, int worker) {
  const uint64_t row_bytes = RowBytes(w.dtype, static_cast<uint64_t>(w.cols));
  std::byte* packed =
      worker_packed_[static_cast<size_t>(worker)].Get(cpu::PackedGroupBytes(w.dtype, w.cols));
  for (int32_t g = 0; g < args.groups; ++g) {
    cpu::MatMulArgs one = args;
    one.groups = 1;
    one.rows = std::min(args.rows - g * kLanes, kLanes);
    one.weight = packed;
    one.out = args.out + g * kLanes;
    if (one.bias != nullptr) one.bias += g * kLanes;
    cpu::PackGroup(w.dtype, w.cols, one.rows,
                   w.data + static_cast<uint64_t>(row + g * kLanes) * row_bytes, packed);
    matmul(one);
  }
}

absl::Status CpuBackend::MatMul(Matrix x, std::span<const MatMulTarget> targets) {
  RETURN_IF_ERROR(CheckMatMul(x, targets));
  ASSIGN_OR_RETURN(const MatMulWork work, PlanMatMul(x, targets));
  if (work.products == 0) return absl::OkStatus();
  if (work.blocks) activations_.Quantise(x);
  if (work.scaled) activations_.QuantiseWholeRows(x);
  if (work.words) activations_.QuantiseWords(x);
  if (work.tiles) activations_.RoundToBf16(x);
  Multiply(x, targets, work);
  return absl::OkStatus();
}

void CpuBackend::Multiply(const Matrix& x, std::span<const MatMulTarget> targets,
                          const MatMulWork& work) {
  // One index space over the row groups of all targets. Chunks are small enough to even out workers
  // of unequal speed, and large enough to stream.
  const auto run = [&](int64_t first_unit, int64_t last_unit, int worker) {
    const int64_t begin = first_unit * work.unit;
    const int64_t end = last_unit * work.unit;
    int64_t first = 0;
    for (const MatMulTarget& target : targets) {
      const Weight& w = target.weight;
      const int64_t count = (w.rows + kLanes - 1) / kLanes;
      const int64_t low = std::max(begin, first) - first;
      const int64_t high = std::min(end, first + count) - first;
      first += count;
      if (low >= high) continue;
      const int32_t row = static_cast<int32_t>(low * kLanes);
      cpu::MatMulArgs args = {};
      args.groups = static_cast<int32_t>(high - low);
      args.rows = std::min(w.rows - row, args.groups * kLanes);
      args.cols = w.cols;
      activations_.Fill(&args);
      args.x = x.data;
      args.x_stride = x.stride;
      args.n = x.rows;
      args.bias = target.bias.data != nullptr ? target.bias.data + row : nullptr;
      args.out = target.out.data + row;
      args.out_stride = target.out.stride;
      cpu::MatMulFn matmul = kernels_.matmul[static_cast<size_t>(w.dtype)];
      const Factors factors = FactorsOf(x, w.dtype);
      if (factors == Factors::kBf16) {
        matmul = kernels_.tile_matmul[static_cast<size_t>(w.dtype)];
        args.scratch =
            worker_weights_[static_cast<size_t>(worker)].Get(size_t{cpu::kTileScratchBytes});
      } else if (factors == Factors::kWords) {
        matmul = kernels_.word_matmul[static_cast<size_t>(w.dtype)];
        args.scratch = worker_weights_[static_cast<size_t>(worker)].Get(
            static_cast<size_t>(cpu::WordScratchBytes(x.cols)));
      } else if ((w.dtype == DType::kW8A8 ? cpu::UsesTileScaled(kernels_, x.rows, x.cols)
                                          : cpu::UsesTileQuant(kernels_, x.rows)) &&
                 kernels_.tile_quant_matmul[static_cast<size_t>(w.dtype)] != nullptr) {
        args.scratch =
            worker_weights_[static_cast<size_t>(worker)].Get(size_t{cpu::kTileScratchBytes});
        matmul = kernels_.tile_quant_matmul[static_cast<size_t>(w.dtype)];
      }
      const uint64_t group_bytes = cpu::PackedGroupBytes(w.dtype, w.cols);
      if (w.layout == Layout::kRows16) {
        args.weight = w.data + static_cast<uint64_t>(low) * group_bytes;
        matmul(args);
        continue;
      }
      MultiplyPlain(w, row, matmul, args, worker);
    }
  };
  const int64_t units = work.groups / work.unit;
  if (work.products < cpu::kForkElements) return run(0, units, 0);
  const int64_t unit_bytes = std::max<int64_t>(1, work.bytes / units);
  team_->ParallelFor(units, std::max<int64_t>(1, kGrainBytes / unit_bytes), run);
}

bool CpuBackend::GatesInTiles(const Matrix& x, const Weight& gate, const Weight& up,
                              const Matrix& gated, const Weight& down) const {
  const auto tiles = [&](const Matrix& input, const Weight& w) {
    return w.layout == Layout::kRows16 && FactorsOf(input, w.dtype) == Factors::kBf16;
  };
  return x.rows > 0 && tiles(x, gate) && tiles(x, up) && gate.dtype == up.dtype &&
         gate.rows % cpu::kBlock == 0 && tiles(gated, down);
}

absl::Status CpuBackend::GatedFfn(Matrix x, const Weight& gate, const Weight& up,
                                  Activation activation, Matrix gated, Matrix raised,
                                  const MatMulTarget& down) {
  RETURN_IF_ERROR(CheckGatedFfn(x, gate, up, gated, raised, down));
  if (!GatesInTiles(x, gate, up, gated, down.weight)) {
    return Backend::GatedFfn(x, gate, up, activation, gated, raised, down);
  }
  ASSIGN_OR_RETURN(const MatMulWork work, PlanMatMul(gated, {&down, 1}));
  activations_.RoundToBf16(x);
  uint16_t* const out = activations_.NextBf16(x.rows, gate.rows);
  const auto group_bytes = static_cast<int64_t>(cpu::PackedGroupBytes(gate.dtype, gate.cols));
  constexpr int64_t kGroups = cpu::kBlock / kLanes;  // whose results are a block of the output
  const auto run = [&](int64_t first, int64_t last, int worker) {
    cpu::MatMulArgs args = {};
    activations_.Fill(&args);
    args.groups = static_cast<int32_t>((last - first) * kGroups);
    args.rows = args.groups * kLanes;
    args.cols = gate.cols;
    args.n = x.rows;
    args.weight = gate.data + first * kGroups * group_bytes;
    args.up = up.data + first * kGroups * group_bytes;
    args.activation = activation;
    args.glu = out + first * cpu::kBlock * cpu::kMatrixTile;
    args.glu_stride = int64_t{gate.rows} * cpu::kMatrixTile;
    args.scratch = worker_weights_[static_cast<size_t>(worker)].Get(size_t{cpu::kTileScratchBytes});
    kernels_.tile_glu_matmul[static_cast<size_t>(gate.dtype)](args);
  };
  team_->ParallelFor(gate.rows / cpu::kBlock,
                     std::max<int64_t>(1, kGrainBytes / (2 * kGroups * group_bytes)), run);
  activations_.UseNext();
  Multiply(gated, {&down, 1}, work);
  return absl::OkStatus();
}

void CpuBackend::PrepareAngles(std::span<const int32_t> positions, const RopeParams& p) {
  const RopeParams& old = angle_params_;
  const float* factors = p.frequency_factors.data;
  const size_t count = factors != nullptr ? static_cast<size_t>(p.dim / 2) : 0;
  const bool same =
      old.dim == p.dim && old.base == p.base && old.position_scale == p.position_scale &&
      old.yarn_ext_factor == p.yarn_ext_factor && old.yarn_attn_factor == p.yarn_attn_factor &&
      old.yarn_beta_fast == p.yarn_beta_fast && old.yarn_beta_slow == p.yarn_beta_slow &&
      old.yarn_original_context == p.yarn_original_context && angle_factors_.size() == count &&
      std::equal(angle_factors_.begin(), angle_factors_.end(), factors) &&
      std::equal(positions.begin(), positions.end(), angle_positions_.begin(),
                 angle_positions_.end());
  if (same) return;
  angle_params_ = p;
  angle_positions_.assign(positions.begin(), positions.end());
  angle_factors_.assign(factors, factors + count);
  angles_.resize(positions.size() * static_cast<size_t>(p.dim));
  const RopeTable table(p);
  ForRows(static_cast<int64_t>(positions.size()), p.dim * 16, [&](int64_t r) {
    float* to = angles_.data() + r * p.dim;
    table.Angles(positions[static_cast<size_t>(r)], to, to + p.dim / 2);
  });
}

std::vector<CpuBackend::AttentionTask> CpuBackend::AttentionTasks(const BatchRows& batch,
                                                                  const KvGeometry& geometry,
                                                                  int32_t group) const {
  std::vector<AttentionTask> tasks;
  int64_t pairs = 0;
  for (const SequenceRows& s : batch.sequences) pairs += s.rows > 0 ? geometry.kv_heads : 0;
  for (const SequenceRows& s : batch.sequences) {
    const int64_t units = int64_t{s.rows} * group;
    const bool tiles = cpu::AttendsInTiles(kernels_, geometry, s.rows, !by_rows());
    const int64_t least = tiles ? 2 * cpu::kMatrixTile : cpu::kAttentionUnits;
    int64_t step = tiles ? cpu::kTileUnits : cpu::kAttentionTask;
    if (pairs < 2 * team_->size()) {
      const int64_t share = (units + team_->size() - 1) / team_->size();
      step = share <= least ? share
                            : std::min<int64_t>(step, AlignUp(static_cast<uint64_t>(share),
                                                              static_cast<uint64_t>(least)));
    }
    // Units at the end see the most keys: they go first.
    for (int64_t first = units > 0 ? (units - 1) / step * step : -1; first >= 0; first -= step) {
      for (int32_t h = 0; h < geometry.kv_heads; ++h) {
        tasks.push_back({&s, h, first, std::min(units, first + step), tiles});
      }
    }
  }
  return tasks;
}

absl::Status CpuBackend::Attention(Matrix q, const AttentionParams& params,
                                   const KvGeometry& geometry, const BatchRows& batch, Matrix out) {
  RETURN_IF_ERROR(CheckAttention(q, params, geometry, batch, out));
  const int32_t group = params.heads / geometry.kv_heads;
  const std::vector<AttentionTask> tasks = AttentionTasks(batch, geometry, group);
  const int64_t scratch = std::max(cpu::AttentionScratch(geometry.key_dim, geometry.value_dim),
                                   cpu::TileAttentionScratch(geometry.key_dim, geometry.value_dim));
  const auto run = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const AttentionTask& task = tasks[static_cast<size_t>(i)];
      const SequenceRows& s = *task.sequence;
      cpu::AttentionArgs args = {};
      const int64_t head = int64_t{task.kv_head} * group;
      args.q = q.row(s.first_row) + head * geometry.key_dim;
      args.q_stride = q.stride;
      args.out = out.row(s.first_row) + head * geometry.value_dim;
      args.out_stride = out.stride;
      args.blocks = s.blocks.data();
      args.key_offset = geometry.key_offset(params.layer, task.kv_head);
      args.value_offset = geometry.value_offset(params.layer, task.kv_head);
      args.kv_dtype = geometry.dtype;
      args.key_dim = geometry.key_dim;
      args.value_dim = geometry.value_dim;
      args.group = group;
      args.start = s.start;
      args.scale = params.scale;
      args.window = params.window;
      args.softcap = params.softcap;
      args.sinks = params.sinks.data != nullptr ? params.sinks.data + head : nullptr;
      args.scratch = worker_floats_[static_cast<size_t>(worker)].Get(static_cast<size_t>(scratch));
      if (i + 1 < end) {
        const AttentionTask& next = tasks[static_cast<size_t>(i + 1)];
        args.next_blocks = next.sequence->blocks.data();
        args.next_count = static_cast<int32_t>(next.sequence->blocks.size());
        args.next_key_offset = geometry.key_offset(params.layer, next.kv_head);
        args.next_value_offset = geometry.value_offset(params.layer, next.kv_head);
      }
      (task.tiles ? kernels_.tile_attention : kernels_.attention)(args, task.first, task.last);
    }
  };
  const int64_t count = static_cast<int64_t>(tasks.size());
  if (count == 0) return absl::OkStatus();
  team_->ParallelFor(count, 1, run);
  return absl::OkStatus();
}

}  // namespace

std::vector<CpuVariant> CpuVariants() {
  std::vector<CpuVariant> variants;
  for (const cpu::Variant& v : cpu::AllVariants()) {
    variants.push_back({std::string(v.name), std::string(v.needs), v.supported});
  }
  return variants;
}

std::string BestCpuVariant() {
  std::string best;
  for (const cpu::Variant& v : cpu::AllVariants()) {
    if (v.supported) best = v.name;
  }
  return best;
}

Factors CpuFactors(std::string_view variant, DType dtype, int32_t rows, int32_t cols,
                   const CpuOptions& options) {
  for (const cpu::Variant& v : cpu::AllVariants()) {
    if (v.name != variant) continue;
    return cpu::FactorsOf(*v.kernels, dtype, rows, cols, options.deterministic);
  }
  return Factors::kStored;
}

bool CpuAttendsInTiles(std::string_view variant, const KvGeometry& geometry, int32_t rows,
                       const CpuOptions& options) {
  for (const cpu::Variant& v : cpu::AllVariants()) {
    if (v.name != variant) continue;
    return cpu::AttendsInTiles(*v.kernels, geometry, rows, options.deterministic);
  }
  return false;
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::string_view variant,
                                                          ThreadTeam* team,
                                                          const CpuOptions& options) {
  const std::string wanted = variant == "auto" ? BestCpuVariant() : std::string(variant);
  std::string known;
  const cpu::VariantList variants = cpu::AllVariants();
  for (const cpu::Variant& v : variants) {
    known += fmt::format("{}{}{}", known.empty() ? "" : ", ", v.name,
                         v.supported ? "" : " (not on this machine)");
  }
  for (const cpu::Variant& v : variants) {
    if (v.name != wanted) continue;
    if (!v.supported) {
      return absl::FailedPreconditionError(
          fmt::format("CPU variant {} needs {}; this machine has: {}", v.name, v.needs, known));
    }
    std::unique_ptr<Backend> backend =
        std::make_unique<CpuBackend>(std::string(v.name), *v.kernels, team, options);
    return backend;
  }
  return absl::NotFoundError(fmt::format("no CPU variant '{}'; there are: {}", wanted, known));
}

}  // namespace terrace::ops
