#include "ops/verify.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "base/random.h"
#include "base/status.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/packing.h"
#include "ops/measure.h"
#include "ops/ref/ref_backend.h"
#include "ops/tolerance.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"
#include "tensor/quantize.h"

namespace terrace::ops {
namespace {

constexpr int32_t kRows = 80;
constexpr int32_t kCols = 512;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Plain rows of any codes, with F16 scales of ordinary size: formats differ in where those lie, so
// each 16-bit unit of a block is made a small F16 where a quantiser does not make the whole row.
void FillRows(DType dtype, int64_t cols, std::vector<std::byte>& bytes, Random& random) {
  const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
  std::vector<float> values(static_cast<size_t>(cols));
  for (uint64_t at = 0; at < bytes.size(); at += row_bytes) {
    for (float& v : values) v = random.Signed() * 0.1f;
    if (QuantizeRow(dtype, values, {bytes.data() + at, row_bytes}).ok()) continue;
    for (uint64_t i = 0; i < row_bytes; ++i) {
      // High bytes below 0x28 keep every F16 under 0.04, low ones are free; E8M0 is set below.
      const uint64_t r = random.Below(256);
      bytes[at + i] = static_cast<std::byte>(i % 2 == 1 ? r & 0xa7 : r);
    }
    if (dtype == DType::kMXFP4) {
      for (uint64_t b = at; b < at + row_bytes; b += 17) {
        bytes[b] = static_cast<std::byte>(118 + random.Below(6));
      }
    }
    if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2) {
      for (uint64_t i = at; i < at + row_bytes; ++i) bytes[i] &= std::byte{0xb3};
    }
  }
}

std::vector<float> RandomFloats(size_t count, Random& random) {
  std::vector<float> x(count);
  for (float& v : x) v = random.Signed() * 3;
  return x;
}

Matrix View(std::vector<float>& data, int32_t rows, int32_t cols) {
  return {data.data(), rows, cols, cols};
}

// Keeps the element closest to its tolerance.
void Note(VerifyRow& row, double got, double want, double tolerance) {
  double error = std::fabs(got - want);
  if (std::isnan(error)) error = INFINITY;
  if (row.tolerance == 0 || error * row.tolerance > row.worst_error * tolerance) {
    row.worst_error = error;
    row.tolerance = tolerance;
  }
  row.holds = row.worst_error <= row.tolerance;
}

class Verifier {
 public:
  Verifier(const VerifyOptions& options, ThreadTeam* team) : options_(options), team_(team) {}

  absl::Status Prepare() {
    ref_ = CreateRefBackend(team_);
    if (!options_.measure) return absl::OkStatus();
    constexpr size_t kBytes = size_t{192} << 20;
    read_ = std::make_unique<LargeBuffer>(kBytes);
    weights_ = std::make_unique<LargeBuffer>(kBytes);
    if (read_->data() == nullptr || weights_->data() == nullptr) {
      return absl::ResourceExhaustedError("no memory to measure in");
    }
    std::memset(read_->data(), 1, read_->size());
    return absl::OkStatus();
  }

  absl::Status Variant(const std::string& name) {
    variant_ = name;
    ASSIGN_OR_RETURN(cpu_, CreateCpuBackend(name, team_));
    if (options_.measure) {
      ASSIGN_OR_RETURN(limits_, MeasureLimits(name, *read_, team_));
    }
    for (int i = 0; i < kDTypeCount; ++i) {
      const DType dtype = static_cast<DType>(i);
      if (!cpu::Packable(dtype)) continue;
      RETURN_IF_ERROR(MatMul(dtype, 1));
      RETURN_IF_ERROR(MatMul(dtype, 64));
    }
    RETURN_IF_ERROR(Elementwise());
    for (const KvDType dtype : {KvDType::kF16, KvDType::kI8, KvDType::kF32}) {
      RETURN_IF_ERROR(Attention(dtype));
    }
    return absl::OkStatus();
  }

  std::vector<VerifyRow> TakeRows() { return std::move(rows_); }

 private:
  VerifyRow NewRow(std::string op, std::string dtype) {
    VerifyRow row;
    row.variant = variant_;
    row.op = std::move(op);
    row.dtype = std::move(dtype);
    return row;
  }

  absl::Status MatMul(DType dtype, int32_t n) {
    Random random(options_.seed);
    std::vector<std::byte> plain(RowBytes(dtype, kCols) * kRows);
    FillRows(dtype, kCols, plain, random);
    std::vector<float> x = RandomFloats(static_cast<size_t>(n) * kCols, random);
    std::vector<float> got(static_cast<size_t>(n) * kRows), want(got.size());
    std::vector<std::byte> packed(cpu_->PackedBytes(Layout::kRows16, dtype, kRows, kCols));
    RETURN_IF_ERROR(cpu_->Pack(Layout::kRows16, dtype, kRows, kCols, plain, packed));
    MatMulTarget target;
    target.weight = {dtype, Layout::kPlain, kRows, kCols, plain.data()};
    target.out = View(want, n, kRows);
    RETURN_IF_ERROR(ref_->MatMul(View(x, n, kCols), {&target, 1}));
    target.weight.layout = Layout::kRows16;
    target.weight.data = packed.data();
    target.out = View(got, n, kRows);
    RETURN_IF_ERROR(cpu_->MatMul(View(x, n, kCols), {&target, 1}));
    VerifyRow row =
        NewRow(n == 1 ? "matmul 1 row" : "matmul 64 rows", std::string(Info(dtype).name));
    const Factors factors = CpuFactors(variant_, dtype, n, kCols);
    std::vector<float> w(kCols);
    for (int32_t r = 0; r < kRows; ++r) {
      DequantizeRow(dtype, plain.data() + RowBytes(dtype, kCols) * static_cast<uint64_t>(r), w);
      for (int32_t i = 0; i < n; ++i) {
        const size_t at = static_cast<size_t>(i * kRows + r);
        Note(row, got[at], want[at],
             MatMulTolerance(dtype, w.data(), x.data() + i * kCols, kCols, factors));
      }
    }
    if (options_.measure) RETURN_IF_ERROR(MeasureMatMul(dtype, n, row));
    rows_.push_back(row);
    return absl::OkStatus();
  }

  // A matrix [4096, 1024] as many times over as the buffer holds, so that weights come from memory.
  absl::Status MeasureMatMul(DType dtype, int32_t n, VerifyRow& row) {
    constexpr int32_t kOut = 4096;
    constexpr int32_t kIn = 1024;
    const uint64_t bytes = cpu_->PackedBytes(Layout::kRows16, dtype, kOut, kIn);
    const uint64_t stride = (bytes + 4095) / 4096 * 4096;
    const uint64_t copies = n == 1 ? weights_->size() / stride : 4;
    Random random(options_.seed);
    std::vector<std::byte> plain(RowBytes(dtype, kIn) * kOut);
    FillRows(dtype, kIn, plain, random);
    for (uint64_t i = 0; i < copies; ++i) {
      std::byte* to = weights_->data() + i * stride;
      if (i > 0) {
        std::memcpy(to, weights_->data(), bytes);
        continue;
      }
      RETURN_IF_ERROR(cpu_->Pack(Layout::kRows16, dtype, kOut, kIn, plain, {to, bytes}));
    }
    std::vector<float> x = RandomFloats(static_cast<size_t>(n) * kIn, random);
    std::vector<float> out(static_cast<size_t>(n) * kOut);
    double best = 1e30;
    double read = 0;
    for (int repeat = 0; repeat < 3; ++repeat) {
      if (n == 1) {
        ASSIGN_OR_RETURN(const double now, MeasureRead(variant_, *read_, team_));
        read = std::max(read, now);
      }
      const double start = Seconds();
      for (uint64_t i = 0; i < copies; ++i) {
        MatMulTarget target;
        target.weight = {dtype, Layout::kRows16, kOut, kIn, weights_->data() + i * stride};
        target.out = View(out, n, kOut);
        RETURN_IF_ERROR(cpu_->MatMul(View(x, n, kIn), {&target, 1}));
      }
      best = std::min(best, (Seconds() - start) / static_cast<double>(copies));
    }
    if (n == 1) {
      row.unit = "GB/s";
      row.rate = static_cast<double>(bytes) / best / 1e9;
      row.share = row.rate * 1e9 / read;
      return absl::OkStatus();
    }
    row.unit = "GOP/s";
    row.rate = 2.0 * kOut * kIn * n / best / 1e9;
    const double words = std::max(limits_.word_ops_per_s, limits_.float_ops_per_s);
    const bool int8 =
        Info(dtype).quantised && CpuFactors(variant_, dtype, n, kIn) == Factors::kStored;
    row.share = row.rate * 1e9 / (int8 ? limits_.int8_ops_per_s : words);
    return absl::OkStatus();
  }

  // Runs `op` over the same data on both backends.
  absl::Status Compare(const std::string& name, double relative, double absolute,
                       const std::function<absl::Status(Backend&, Matrix)>& op) {
    Random random(options_.seed);
    std::vector<float> got = RandomFloats(16 * kCols, random);
    std::vector<float> want = got;
    RETURN_IF_ERROR(op(*cpu_, View(got, 16, kCols)));
    RETURN_IF_ERROR(op(*ref_, View(want, 16, kCols)));
    VerifyRow row = NewRow(name, "F32");
    for (size_t i = 0; i < got.size(); ++i) {
      Note(row, got[i], want[i], relative * std::fabs(want[i]) + absolute + 1e-30);
    }
    rows_.push_back(row);
    return absl::OkStatus();
  }

  // The tolerances are derived where these operators are tested (tests/ops/elementwise_test.cc).
  absl::Status Elementwise() {
    Random random(options_.seed + 1);
    std::vector<float> other = RandomFloats(16 * kCols, random);
    const Vector weight = {other.data(), kCols};
    const double eps = kFloatEps;
    RETURN_IF_ERROR(Compare("rms_norm", (kCols / 2 + 8) * eps, 0,
                            [&](Backend& b, Matrix x) { return b.RmsNorm(x, weight, 1e-6f, x); }));
    RETURN_IF_ERROR(Compare("rms_norm heads", (64 + 8) * eps, 0, [&](Backend& b, Matrix x) {
      return b.RmsNormHeads(x, 4, {other.data(), 128}, 1e-6f);
    }));
    RETURN_IF_ERROR(Compare("silu x up", 12 * eps, 0, [&](Backend& b, Matrix x) {
      return b.Glu(Activation::kSilu, x, View(other, 16, kCols), x);
    }));
    RETURN_IF_ERROR(Compare("gelu x up", 300 * eps, 0, [&](Backend& b, Matrix x) {
      return b.Glu(Activation::kGeluTanh, x, View(other, 16, kCols), x);
    }));
    RETURN_IF_ERROR(
        Compare("softcap", 16 * eps, 0, [&](Backend& b, Matrix x) { return b.Softcap(x, 2.0f); }));
    RETURN_IF_ERROR(Compare(
        "add", 0, 0, [&](Backend& b, Matrix x) { return b.Add(x, View(other, 16, kCols)); }));
    std::vector<int32_t> positions(16);
    for (int32_t i = 0; i < 16; ++i) positions[static_cast<size_t>(i)] = i * 997;
    BatchRows batch;
    batch.rows = 16;
    batch.positions = positions;
    RopeParams params;
    params.dim = 128;
    for (const RopeKind kind : {RopeKind::kHalves, RopeKind::kAdjacent}) {
      params.kind = kind;
      RETURN_IF_ERROR(Compare(
          kind == RopeKind::kHalves ? "rope halves" : "rope adjacent", 0, 3 * 1.42 * 4 * eps,
          [&](Backend& b, Matrix x) { return b.Rope(x, 4, 128, batch, params); }));
    }
    return absl::OkStatus();
  }

  absl::Status Attention(KvDType dtype) {
    constexpr int32_t kTokens = 150, kHeads = 4, kKvHeads = 2, kDim = 64;
    Random random(options_.seed);
    std::vector<float> q = RandomFloats(kTokens * kHeads * kDim, random);
    std::vector<float> k = RandomFloats(kTokens * kKvHeads * kDim, random);
    std::vector<float> v = RandomFloats(kTokens * kKvHeads * kDim, random);
    std::vector<float> got(q.size()), want(q.size());
    const KvGeometry geometry = {1, kKvHeads, kDim, kDim, dtype};
    std::vector<float> memory((kTokens / kKvBlockTokens + 1) * geometry.block_bytes() / 4);
    std::vector<std::byte*> blocks;
    for (size_t i = 0; i * kKvBlockTokens < kTokens; ++i) {
      blocks.push_back(reinterpret_cast<std::byte*>(memory.data()) + i * geometry.block_bytes());
    }
    SequenceRows sequence;
    sequence.rows = kTokens;
    sequence.blocks = blocks;
    BatchRows batch;
    batch.rows = kTokens;
    batch.sequences = {&sequence, 1};
    AttentionParams params;
    params.heads = kHeads;
    params.scale = 0.125f;
    RETURN_IF_ERROR(ref_->StoreKv(View(k, kTokens, kKvHeads * kDim),
                                  View(v, kTokens, kKvHeads * kDim), 0, geometry, batch));
    const Matrix queries = View(q, kTokens, kHeads * kDim);
    RETURN_IF_ERROR(
        ref_->Attention(queries, params, geometry, batch, View(want, kTokens, kHeads * kDim)));
    RETURN_IF_ERROR(
        cpu_->Attention(queries, params, geometry, batch, View(got, kTokens, kHeads * kDim)));
    VerifyRow row = NewRow("attention", dtype == KvDType::kF16  ? "F16"
                                        : dtype == KvDType::kI8 ? "I8"
                                                                : "F32");
    const float tolerance = AttentionTolerance(kDim, kTokens, params.scale, 0, 3, 3, 3,
                                               CpuAttendsInTiles(variant_, geometry, kTokens));
    for (size_t i = 0; i < got.size(); ++i) Note(row, got[i], want[i], tolerance);
    rows_.push_back(row);
    return absl::OkStatus();
  }

  const VerifyOptions& options_;
  ThreadTeam* const team_;
  std::string variant_;
  std::unique_ptr<Backend> ref_;
  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<LargeBuffer> read_;
  std::unique_ptr<LargeBuffer> weights_;
  MachineLimits limits_;
  std::vector<VerifyRow> rows_;
};

}  // namespace

absl::StatusOr<std::vector<VerifyRow>> VerifyOps(const VerifyOptions& options, ThreadTeam* team) {
  Verifier verifier(options, team);
  RETURN_IF_ERROR(verifier.Prepare());
  if (!options.variant.empty()) {
    RETURN_IF_ERROR(verifier.Variant(options.variant));
    return verifier.TakeRows();
  }
  for (const CpuVariant& variant : CpuVariants()) {
    if (variant.supported) RETURN_IF_ERROR(verifier.Variant(variant.name));
  }
  return verifier.TakeRows();
}

}  // namespace terrace::ops
