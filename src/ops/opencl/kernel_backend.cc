#include "ops/opencl/kernel_backend.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "ops/check.h"
#include "ops/cpu/packing.h"
#include "ops/opencl/angle_tables.h"
#include "ops/opencl/kernel_sources.h"
#include "ops/opencl/library_matmul.h"
#include "ops/opencl/upload_ring.h"

namespace terrace::ops {
namespace {

using device::KernelArgument;
using device::LaunchShape;

constexpr uint32_t kGroupRows = 16;     // of a weight matrix
constexpr uint32_t kElementItems = 64;  // a work-group of the elementwise kernels has
constexpr uint32_t kSlices = 8;         // items that share a row's columns (matmul.cl)
constexpr int32_t kManyRows = 8;        // rows of x that matmul_8 takes at once
// The tile product takes 64 rows of x by 64 of a matrix at once; fewer rows are better off without.
constexpr int32_t kTileRows = 64;
constexpr int32_t kTileColumns = 32;  // a matrix has a multiple of them
constexpr int32_t kFewestForTiles = 16;
constexpr uint64_t kRingBytes = 4 << 20;

KernelArgument At(const void* address) { return KernelArgument::Memory(address); }
template <typename T>
KernelArgument Of(T value) {
  return KernelArgument::Value(value);
}

LaunchShape Elements(int64_t count) {
  const auto groups = static_cast<uint32_t>((count + kElementItems - 1) / kElementItems);
  return {{groups, 1, 1}, {kElementItems, 1, 1}};
}

class KernelBackend final : public Backend {
 public:
  KernelBackend(device::Device* device, std::unique_ptr<device::Stream> stream,
                const KernelOptions& options)
      : device_(device),
        deterministic_(options.deterministic),
        name_(device->info().kind),
        stream_(std::move(stream)),
        ring_(device, stream_.get()),
        angles_(&ring_),
        library_(device, stream_.get(), options.deterministic ? 0 : options.library_rows,
                 options.tell,
                 [this](const char* name, const std::string& defines, const LaunchShape& shape,
                        std::span<const KernelArgument> arguments) {
                   const char* source = defines.empty() ? kElementwiseSource : kMatMulSource;
                   return Run(name, source, defines, shape, arguments);
                 }) {}
  ~KernelBackend() override { stream_->Synchronize().IgnoreError(); }

  absl::Status Prepare() { return ring_.Grow(kRingBytes); }

  std::string_view name() const override { return name_; }
  bool host_addressable() const override { return false; }
  bool asynchronous() const override { return true; }

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
                         Matrix out) override;
  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override {
    RETURN_IF_ERROR(CheckNorm(x, weight, out));
    return Norm(x, 1, weight, eps, out);
  }
  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override {
    RETURN_IF_ERROR(CheckNormHeads(x, heads, weight));
    return Norm(x, heads, weight, eps, x);
  }
  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override;
  absl::Status Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                    const RopeParams& params) override;
  absl::Status StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                       const BatchRows& batch) override;
  absl::Status Attention(Matrix q, const AttentionParams& params, const KvGeometry& geometry,
                         const BatchRows& batch, Matrix out) override;
  absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) override {
    return RunGlu("Glu", activation == Activation::kSilu ? 0 : 1, {}, gate, up, out);
  }
  absl::Status GluClamped(const GluClamp& clamp, Matrix gate, Matrix up, Matrix out) override {
    return RunGlu("GluClamped", 2, clamp, gate, up, out);
  }
  absl::Status Add(Matrix x, Matrix y) override;
  absl::Status Scale(Matrix x, float scale) override {
    RETURN_IF_ERROR(CheckMatrix("Scale", "input", x));
    return ScaleOrCap(x, scale, 0.0f);
  }
  absl::Status Softcap(Matrix x, float cap) override {
    RETURN_IF_ERROR(CheckMatrix("Softcap", "input", x));
    if (!(cap > 0)) return absl::InvalidArgumentError("Softcap: the cap must be positive");
    return ScaleOrCap(x, 1.0f, cap);
  }
  absl::Status Zero(Matrix x) override;
  absl::Status GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) override;
  absl::Status AddScaledRows(Matrix x, std::span<const int32_t> rows, std::span<const float> shares,
                             Matrix out) override;
  absl::Status ScaleBySigmoid(Matrix x, Vector gate, Matrix out) override;
  absl::Status LayerNorm(Matrix x, Vector weight, Vector bias, float eps) override;
  absl::Status GeluErf(Matrix x) override;
  absl::Status AttendAll(Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                         const BatchRows& batch, Matrix out) override;
  absl::Status Pool(Matrix x, const BatchRows& batch, bool mean, bool normalize,
                    Matrix out) override;
  absl::Status Read(Matrix x, std::span<float> out) override;
  absl::Status Write(std::span<const float> in, Matrix x) override;

  absl::Status Synchronize() override {
    absl::Status status = stream_->Synchronize();
    // What failed is told once; what comes after is not to fail for it.
    if (!status.ok()) stream_->ClearError();
    idle_ = true;
    marks_.clear();
    return status;
  }
  absl::StatusOr<uint64_t> Mark() override;
  absl::Status WaitFor(uint64_t mark) override;

 private:
  absl::StatusOr<device::Kernel*> Get(const char* name, const char* source,
                                      const std::string& defines);
  absl::Status Run(const char* name, const char* source, const std::string& defines,
                   const LaunchShape& shape, std::span<const KernelArgument> arguments) {
    ASSIGN_OR_RETURN(device::Kernel * kernel, Get(name, source, defines));
    idle_ = false;
    return stream_->Launch(*kernel, shape, arguments);
  }
  absl::Status RunElementwise(const char* name, const LaunchShape& shape,
                              std::span<const KernelArgument> arguments) {
    return Run(name, kElementwiseSource, "", shape, arguments);
  }
  // One group a row and head.
  absl::Status RunRows(const char* name, int32_t rows, int32_t heads,
                       std::span<const KernelArgument> arguments) {
    if (rows == 0) return absl::OkStatus();
    const LaunchShape shape = {{static_cast<uint32_t>(rows), static_cast<uint32_t>(heads), 1},
                               {kElementItems, 1, 1}};
    return RunElementwise(name, shape, arguments);
  }
  absl::Status Norm(const Matrix& x, int32_t heads, const Vector& weight, float eps,
                    const Matrix& out);
  absl::Status RunGlu(const char* op, int32_t kind, const GluClamp& clamp, Matrix gate, Matrix up,
                      Matrix out);
  absl::Status ScaleOrCap(Matrix x, float scale, float cap);
  // Whether the product runs on the chip's circuits for tiles. They round x to bfloat16, as the
  // processor's do, so not where rounding must not depend on the number of rows.
  bool TakesTiles(const Matrix& x, const Weight& w) const {
    return device_->info().tile_product && !uniform_ && !deterministic_ &&
           x.rows >= kFewestForTiles && w.cols % kTileColumns == 0 && w.dtype != DType::kF32;
  }
  absl::Status MultiplyOne(const Matrix& x, const MatMulTarget& target);
  // A batch's block addresses and rows as kernels read them, uploaded once for all layers.
  absl::Status PrepareTables(const BatchRows& batch, int32_t rows);
  std::string KvDefines(const KvGeometry& geometry) const {
    return fmt::format("KEY_DIM={} VALUE_DIM={} KV_KIND={}", geometry.key_dim, geometry.value_dim,
                       static_cast<int>(geometry.dtype));
  }

  device::Device* const device_;
  const bool deterministic_;
  const std::string name_;
  std::unique_ptr<device::Stream> stream_;
  UploadRing ring_;
  std::map<std::string, std::unique_ptr<device::Kernel>> kernels_;  // by name and macros

  AngleTables angles_;
  LibraryMatMul library_;
  std::vector<uint64_t> blocks_;
  std::vector<int32_t> rows_;  // where a row's blocks begin, and its position
  const std::byte* blocks_data_ = nullptr;
  const std::byte* rows_data_ = nullptr;
  uint64_t tables_generation_ = 0;

  bool idle_ = false;  // nothing was queued since all that was has run
  uint64_t last_mark_ = 0;
  std::deque<std::pair<uint64_t, std::unique_ptr<device::Event>>> marks_;
};

absl::StatusOr<device::Kernel*> KernelBackend::Get(const char* name, const char* source,
                                                   const std::string& defines) {
  std::string key = fmt::format("{} {}", name, defines);
  if (auto found = kernels_.find(key); found != kernels_.end()) return found->second.get();
  ASSIGN_OR_RETURN(std::unique_ptr<device::Kernel> kernel,
                   device_->CreateKernel({name, nullptr, source, defines}));
  return kernels_.emplace(std::move(key), std::move(kernel)).first->second.get();
}

absl::Status KernelBackend::EmbedRows(const Weight& table, std::span<const int32_t> ids,
                                      float scale, Matrix out) {
  RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  const std::string defines = MatMulDefines(table.dtype);
  if (table.layout != Layout::kRows16 || defines.empty()) {
    return absl::UnimplementedError(fmt::format("EmbedRows: {} does not take {} in layout {}",
                                                name_, Info(table.dtype).name,
                                                LayoutName(table.layout)));
  }
  if (ids.empty()) return absl::OkStatus();
  // Steps begin here. If their tables come to lie where those of the last step did, their launches
  // are the same, and the device may hand them to its driver as one.
  if (idle_) ring_.Rewind();
  ASSIGN_OR_RETURN(const std::byte* uploaded, ring_.UploadArray(ids));
  const KernelArgument arguments[] = {
      At(table.data),
      At(uploaded),
      At(out.data),
      Of(scale),
      Of(out.rows),
      Of(table.cols),
      Of(static_cast<int64_t>(cpu::PackedGroupBytes(table.dtype, table.cols))),
      Of(out.stride)};
  return Run("embed", kMatMulSource, defines, Elements(int64_t{out.rows} * table.cols), arguments);
}

absl::Status KernelBackend::Norm(const Matrix& x, int32_t heads, const Vector& weight, float eps,
                                 const Matrix& out) {
  if (x.rows == 0) return absl::OkStatus();
  const KernelArgument arguments[] = {At(x.data),   At(weight.data), At(out.data),
                                      Of(heads),    Of(weight.size), Of(eps),
                                      Of(x.stride), Of(out.stride)};
  const auto groups = static_cast<uint32_t>(x.rows * heads);
  return RunElementwise("rms_norm", {{groups, 1, 1}, {kElementItems, 1, 1}}, arguments);
}

absl::Status KernelBackend::MatMul(Matrix x, std::span<const MatMulTarget> targets) {
  RETURN_IF_ERROR(CheckMatMul(x, targets));
  for (const MatMulTarget& target : targets) {
    const Weight& w = target.weight;
    if (w.layout != Layout::kRows16 || !cpu::Packable(w.dtype)) {
      return absl::UnimplementedError(fmt::format("MatMul: {} does not take {} in layout {}", name_,
                                                  Info(w.dtype).name, LayoutName(w.layout)));
    }
  }
  if (x.rows == 0) return absl::OkStatus();
  bool first = true;  // of those that the library takes
  for (const MatMulTarget& target : targets) {
    if (!uniform_ && library_.Takes(x, target.weight)) {
      const bool done = library_.Multiply(x, target, first);
      first = false;
      if (done) continue;
    }
    RETURN_IF_ERROR(MultiplyOne(x, target));
  }
  return absl::OkStatus();
}

absl::Status KernelBackend::MultiplyOne(const Matrix& x, const MatMulTarget& target) {
  const Weight& w = target.weight;
  const bool has_bias = target.bias.data != nullptr;
  const KernelArgument arguments[] = {
      At(w.data),
      At(x.data),
      At(has_bias ? static_cast<const void*>(target.bias.data) : w.data),
      At(target.out.data),
      Of(int32_t{has_bias}),
      Of(w.rows),
      Of(w.cols),
      Of(x.rows),
      Of(static_cast<int64_t>(cpu::PackedGroupBytes(w.dtype, w.cols))),
      Of(x.stride),
      Of(target.out.stride)};
  if (TakesTiles(x, w)) {
    const LaunchShape tiles = {{(static_cast<uint32_t>(w.rows) + kTileRows - 1) / kTileRows,
                                static_cast<uint32_t>((x.rows + kTileRows - 1) / kTileRows), 1},
                               {32, kTileRows / kGroupRows, 1}};
    return Run("matmul_tiles", kMatMulSource, MatMulDefines(w.dtype) + " TILE_PRODUCT=1", tiles,
               arguments);
  }
  const int32_t tile = x.rows == 1 && !uniform_ ? 1 : kManyRows;
  LaunchShape shape;
  shape.groups = {(static_cast<uint32_t>(w.rows) + kGroupRows - 1) / kGroupRows,
                  static_cast<uint32_t>((x.rows + tile - 1) / tile), 1};
  if (!device_->info().vector_items) shape.items = {kGroupRows, kSlices, 1};
  return Run(tile == 1 ? "matmul_1" : "matmul_8", kMatMulSource, MatMulDefines(w.dtype), shape,
             arguments);
}

absl::Status KernelBackend::Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                                 const RopeParams& params) {
  RETURN_IF_ERROR(CheckRope(x, heads, head_dim, batch, params));
  if (x.rows == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::byte* angles, angles_.Get(batch.positions, params));
  const int32_t pairs = params.dim / 2;
  const KernelArgument arguments[] = {At(x.data), At(angles),
                                      Of(heads),  Of(head_dim),
                                      Of(pairs),  Of(int32_t{params.kind == RopeKind::kHalves}),
                                      Of(x.rows), Of(x.stride)};
  return RunElementwise("rope", Elements(int64_t{x.rows} * pairs), arguments);
}

absl::Status KernelBackend::PrepareTables(const BatchRows& batch, int32_t rows) {
  std::vector<uint64_t> blocks;
  std::vector<int32_t> of_rows(2 * static_cast<size_t>(rows), -1);
  for (const SequenceRows& s : batch.sequences) {
    const auto first = static_cast<int32_t>(blocks.size());
    for (int32_t r = 0; r < s.rows; ++r) {
      const size_t at = 2 * static_cast<size_t>(s.first_row + r);
      of_rows[at] = first;
      of_rows[at + 1] = s.start + r;
    }
    const int32_t used = (s.start + s.rows + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int32_t i = 0; i < used; ++i) {
      // Blocks that no window reaches any more may be gone.
      const std::byte* block = s.blocks[static_cast<size_t>(i)];
      blocks.push_back(block == nullptr ? 0 : device_->KernelAddress(block));
    }
  }
  if (tables_generation_ == ring_.generation() && blocks == blocks_ && of_rows == rows_) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(blocks_data_, ring_.UploadArray(std::span<const uint64_t>(blocks)));
  const uint64_t generation = ring_.generation();
  ASSIGN_OR_RETURN(rows_data_, ring_.UploadArray(std::span<const int32_t>(of_rows)));
  if (ring_.generation() != generation) {
    // The second pushed the first out; now there is room for both.
    ASSIGN_OR_RETURN(blocks_data_, ring_.UploadArray(std::span<const uint64_t>(blocks)));
  }
  blocks_ = std::move(blocks);
  rows_ = std::move(of_rows);
  tables_generation_ = ring_.generation();
  return absl::OkStatus();
}

absl::Status KernelBackend::StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                                    const BatchRows& batch) {
  RETURN_IF_ERROR(CheckStoreKv(k, v, layer, geometry, batch));
  if (k.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(PrepareTables(batch, k.rows));
  const KernelArgument arguments[] = {At(k.data),
                                      At(v.data),
                                      At(blocks_data_),
                                      At(rows_data_),
                                      KernelArgument::Space(),
                                      Of(static_cast<int64_t>(geometry.key_offset(layer, 0))),
                                      Of(static_cast<int64_t>(geometry.head_bytes())),
                                      Of(static_cast<int64_t>(geometry.key_tile_bytes())),
                                      Of(k.stride),
                                      Of(v.stride)};
  LaunchShape shape;
  shape.groups = {static_cast<uint32_t>(k.rows), static_cast<uint32_t>(geometry.kv_heads), 1};
  if (!device_->info().vector_items) shape.items = {kElementItems, 1, 1};
  return Run("store_kv", kAttentionSource, KvDefines(geometry), shape, arguments);
}

absl::Status KernelBackend::Attention(Matrix q, const AttentionParams& params,
                                      const KvGeometry& geometry, const BatchRows& batch,
                                      Matrix out) {
  RETURN_IF_ERROR(CheckAttention(q, params, geometry, batch, out));
  if (q.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(PrepareTables(batch, q.rows));
  const bool has_sinks = params.sinks.data != nullptr;
  const KernelArgument arguments[] = {
      At(q.data),
      At(out.data),
      At(has_sinks ? params.sinks.data : q.data),
      At(blocks_data_),
      At(rows_data_),
      KernelArgument::Space(),
      Of(int32_t{has_sinks}),
      Of(params.heads / geometry.kv_heads),
      Of(params.window),
      Of(params.scale),
      Of(params.softcap),
      Of(static_cast<int64_t>(geometry.key_offset(params.layer, 0))),
      Of(static_cast<int64_t>(geometry.head_bytes())),
      Of(static_cast<int64_t>(geometry.key_tile_bytes())),
      Of(q.stride),
      Of(out.stride)};
  LaunchShape shape;
  shape.groups = {static_cast<uint32_t>(q.rows), static_cast<uint32_t>(params.heads), 1};
  if (!device_->info().vector_items) shape.items = {kElementItems, 1, 1};
  return Run("attention", kAttentionSource, KvDefines(geometry), shape, arguments);
}

absl::Status KernelBackend::RunGlu(const char* op, int32_t kind, const GluClamp& clamp, Matrix gate,
                                   Matrix up, Matrix out) {
  RETURN_IF_ERROR(CheckSameShape(op, gate, up));
  RETURN_IF_ERROR(CheckSameShape(op, gate, out));
  if (gate.rows == 0) return absl::OkStatus();
  const KernelArgument arguments[] = {At(gate.data),   At(up.data),    At(out.data),
                                      Of(kind),        Of(gate.rows),  Of(gate.cols),
                                      Of(gate.stride), Of(up.stride),  Of(out.stride),
                                      Of(clamp.alpha), Of(clamp.limit)};
  return RunElementwise("glu", Elements(int64_t{gate.rows} * gate.cols), arguments);
}

absl::Status KernelBackend::Add(Matrix x, Matrix y) {
  RETURN_IF_ERROR(CheckSameShape("Add", x, y));
  if (x.rows == 0) return absl::OkStatus();
  const KernelArgument arguments[] = {At(x.data), At(y.data),   Of(x.rows),
                                      Of(x.cols), Of(x.stride), Of(y.stride)};
  return RunElementwise("add", Elements(int64_t{x.rows} * x.cols), arguments);
}

absl::Status KernelBackend::ScaleOrCap(Matrix x, float scale, float cap) {
  if (x.rows == 0) return absl::OkStatus();
  const KernelArgument arguments[] = {At(x.data), Of(scale),  Of(cap),
                                      Of(x.rows), Of(x.cols), Of(x.stride)};
  return RunElementwise("scale_or_cap", Elements(int64_t{x.rows} * x.cols), arguments);
}

absl::Status KernelBackend::Zero(Matrix x) {
  RETURN_IF_ERROR(CheckMatrix("Zero", "output", x));
  if (x.rows == 0) return absl::OkStatus();
  const KernelArgument arguments[] = {At(x.data), Of(0.0f), Of(x.rows), Of(x.cols), Of(x.stride)};
  return RunElementwise("fill", Elements(int64_t{x.rows} * x.cols), arguments);
}

absl::Status KernelBackend::GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) {
  RETURN_IF_ERROR(CheckGather(x, rows, out));
  if (rows.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::byte* source, ring_.UploadArray(rows));
  const KernelArgument arguments[] = {
      At(x.data),   At(source),   At(out.data),  Of(static_cast<int32_t>(rows.size())),
      Of(out.cols), Of(x.stride), Of(out.stride)};
  return RunElementwise("gather_rows", Elements(static_cast<int64_t>(rows.size()) * out.cols),
                        arguments);
}

absl::Status KernelBackend::AddScaledRows(Matrix x, std::span<const int32_t> rows,
                                          std::span<const float> shares, Matrix out) {
  RETURN_IF_ERROR(CheckAddScaledRows(x, rows, shares, out));
  if (rows.empty()) return absl::OkStatus();
  // One upload for both, so that neither pushes the other out of the ring.
  std::vector<std::byte> both(rows.size() * 8);
  std::memcpy(both.data(), rows.data(), rows.size() * 4);
  std::memcpy(both.data() + rows.size() * 4, shares.data(), shares.size() * 4);
  ASSIGN_OR_RETURN(const std::byte* uploaded, ring_.Upload(both));
  const KernelArgument arguments[] = {At(x.data),
                                      At(uploaded),
                                      At(uploaded + rows.size() * 4),
                                      At(out.data),
                                      Of(static_cast<int32_t>(rows.size())),
                                      Of(out.cols),
                                      Of(x.stride),
                                      Of(out.stride)};
  return RunElementwise("add_scaled_rows", Elements(out.cols), arguments);
}

absl::Status KernelBackend::ScaleBySigmoid(Matrix x, Vector gate, Matrix out) {
  RETURN_IF_ERROR(CheckScaleBySigmoid(x, gate, out));
  const KernelArgument arguments[] = {At(x.data),   At(gate.data), At(out.data),  Of(x.cols),
                                      Of(out.cols), Of(x.stride),  Of(out.stride)};
  return RunRows("scale_by_sigmoid", x.rows, 1, arguments);
}

absl::Status KernelBackend::LayerNorm(Matrix x, Vector weight, Vector bias, float eps) {
  RETURN_IF_ERROR(CheckLayerNorm(x, weight, bias));
  const KernelArgument arguments[] = {At(x.data), At(weight.data), At(bias.data),
                                      Of(x.cols), Of(eps),         Of(x.stride)};
  return RunRows("layer_norm", x.rows, 1, arguments);
}

absl::Status KernelBackend::GeluErf(Matrix x) {
  RETURN_IF_ERROR(CheckMatrix("GeluErf", "input", x));
  if (x.rows == 0) return absl::OkStatus();
  const KernelArgument arguments[] = {At(x.data), Of(x.rows), Of(x.cols), Of(x.stride)};
  return RunElementwise("gelu_erf", Elements(int64_t{x.rows} * x.cols), arguments);
}

absl::Status KernelBackend::AttendAll(Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                                      const BatchRows& batch, Matrix out) {
  RETURN_IF_ERROR(CheckAttendAll(q, k, v, heads, batch, out));
  std::vector<int32_t> spans(2 * static_cast<size_t>(q.rows), 0);
  for (const SequenceRows& s : batch.sequences) {
    for (int32_t r = 0; r < s.rows; ++r) {
      const size_t at = 2 * static_cast<size_t>(s.first_row + r);
      spans[at] = s.first_row;
      spans[at + 1] = s.rows;
    }
  }
  if (spans.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::byte* uploaded, ring_.UploadArray(std::span<const int32_t>(spans)));
  const KernelArgument arguments[] = {At(q.data),   At(k.data),         At(v.data),    At(uploaded),
                                      At(out.data), Of(q.cols / heads), Of(scale),     Of(q.stride),
                                      Of(k.stride), Of(v.stride),       Of(out.stride)};
  return RunRows("attend_all", q.rows, heads, arguments);
}

absl::Status KernelBackend::Pool(Matrix x, const BatchRows& batch, bool mean, bool normalize,
                                 Matrix out) {
  RETURN_IF_ERROR(CheckPool(x, batch, out));
  std::vector<int32_t> spans;
  for (const SequenceRows& s : batch.sequences) spans.insert(spans.end(), {s.first_row, s.rows});
  if (spans.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::byte* uploaded, ring_.UploadArray(std::span<const int32_t>(spans)));
  const KernelArgument arguments[] = {At(x.data),        At(uploaded),           At(out.data),
                                      Of(int32_t{mean}), Of(int32_t{normalize}), Of(x.cols),
                                      Of(x.stride),      Of(out.stride)};
  return RunRows("pool", out.rows, 1, arguments);
}

absl::Status KernelBackend::Read(Matrix x, std::span<float> out) {
  RETURN_IF_ERROR(CheckRead(x, out));
  for (int32_t r = 0; r < x.rows; ++r) {
    RETURN_IF_ERROR(stream_->CopyAsync(
        device::CopyDirection::kDeviceToHost,
        reinterpret_cast<std::byte*>(out.data() + int64_t{r} * x.cols),
        reinterpret_cast<const std::byte*>(x.row(r)), static_cast<uint64_t>(x.cols) * 4));
  }
  return Synchronize();
}

absl::Status KernelBackend::Write(std::span<const float> in, Matrix x) {
  RETURN_IF_ERROR(CheckRead(x, in));
  for (int32_t r = 0; r < x.rows; ++r) {
    RETURN_IF_ERROR(stream_->CopyAsync(
        device::CopyDirection::kHostToDevice, reinterpret_cast<std::byte*>(x.row(r)),
        reinterpret_cast<const std::byte*>(in.data() + int64_t{r} * x.cols),
        static_cast<uint64_t>(x.cols) * 4));
  }
  return Synchronize();
}

absl::StatusOr<uint64_t> KernelBackend::Mark() {
  ASSIGN_OR_RETURN(std::unique_ptr<device::Event> event, device_->CreateEvent());
  RETURN_IF_ERROR(stream_->Record(event.get()));
  marks_.emplace_back(++last_mark_, std::move(event));
  return last_mark_;
}

absl::Status KernelBackend::WaitFor(uint64_t mark) {
  absl::Status status;
  while (!marks_.empty() && marks_.front().first <= mark) {
    status = marks_.front().second->Synchronize();
    marks_.pop_front();
  }
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateKernelBackend(device::Device* device,
                                                             KernelOptions options) {
  ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream, device->CreateStream());
  auto backend = std::make_unique<KernelBackend>(device, std::move(stream), options);
  RETURN_IF_ERROR(backend->Prepare());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace terrace::ops
