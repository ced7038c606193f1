#include "weights/adapter_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"
#include "format/adapter.h"
#include "weights/plan.h"

namespace terrace::weights {
namespace {

// One factor of a pair in its segment.
struct Factor {
  size_t pair = 0;
  bool is_b = false;
  uint64_t offset = 0;
};

// Makes segments from the adapter's file.
class AdapterReader final : public tier::SegmentSource {
 public:
  AdapterReader(format::AdapterSource source, const ops::Backend* backend)
      : source_(std::move(source)), backend_(backend) {}

  const format::AdapterSource& source() const { return source_; }
  void Add(uint32_t segment, Factor factor, const ops::Weight& form) {
    if (segments_.size() <= segment) segments_.resize(segment + 1);
    segments_[segment].push_back({factor, form});
  }

  OnDisk Locate(uint32_t) const override { return {}; }

  absl::Status Produce(uint32_t segment, std::span<std::byte> out,
                       const tier::CancelFlag* cancel) override {
    RETURN_IF_ERROR(source_.CheckUnchanged());
    std::fill(out.begin(), out.end(), std::byte{0});
    std::vector<std::byte> stored;
    for (const auto& [factor, form] : segments_[segment]) {
      if (cancel != nullptr && cancel->cancelled) {
        return absl::CancelledError("loading an adapter was given up");
      }
      const format::AdapterPair& pair = source_.pairs[factor.pair];
      stored.resize(static_cast<uint64_t>(form.rows) *
                    RowBytes(form.dtype, static_cast<uint64_t>(form.cols)));
      RETURN_IF_ERROR(factor.is_b ? source_.ReadB(pair, stored) : source_.ReadA(pair, stored));
      RETURN_IF_ERROR(backend_->Pack(form.layout, form.dtype, form.rows, form.cols, stored,
                                     out.subspan(factor.offset)));
    }
    return absl::OkStatus();
  }

 private:
  const format::AdapterSource source_;
  const ops::Backend* const backend_;
  std::vector<std::vector<std::pair<Factor, ops::Weight>>> segments_;
};

absl::Status CheckFits(const format::AdapterPair& pair, const std::vector<int64_t>* shape) {
  if (shape == nullptr) {
    return absl::InvalidArgumentError(fmt::format(
        "it adapts '{}', which is no matrix of the base that can be adapted", pair.tensor));
  }
  if (shape->size() != 2 || (*shape)[0] != pair.out || (*shape)[1] != pair.in) {
    return absl::InvalidArgumentError(
        fmt::format("it adapts '{}' as [{}, {}], but the base's is [{}]", pair.tensor, pair.out,
                    pair.in, fmt::join(*shape, ", ")));
  }
  return absl::OkStatus();
}

ops::Weight FormOf(const ops::Backend& backend, DType dtype, int32_t rows, int32_t cols) {
  ops::Weight form;
  form.dtype = dtype;
  form.layout = backend.PreferredLayout(dtype, rows, cols);
  form.rows = rows;
  form.cols = cols;
  return form;
}

std::string Fingerprint(const format::AdapterSource& source) {
  std::string text = "terrace-adapter-1";
  for (const format::FileIdentity& file : source.identity) {
    text +=
        fmt::format("\n{} {} {} {:016x}", file.path, file.bytes, file.mtime_ns, file.header_hash);
  }
  return fmt::format("{:016x}{:016x}", Hash64(text, 1), Hash64(text, 2));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterWeights>> AdapterWeights::Open(const AdapterOptions& options,
                                                                     const Metadata& base,
                                                                     const ShapeOf& shape_of,
                                                                     const ops::Backend* backend,
                                                                     tier::TierManager* manager) {
  const std::string context = fmt::format("opening adapter '{}'", options.name);
  absl::StatusOr<format::AdapterSource> source = format::OpenAdapter(options.source_path, base);
  if (!source.ok()) return WithContext(source.status(), context);
  std::unique_ptr<AdapterWeights> out(new AdapterWeights(manager));
  out->fingerprint_ = Fingerprint(*source);
  auto reader = std::make_shared<AdapterReader>(*std::move(source), backend);
  const std::vector<format::AdapterPair>& pairs = reader->source().pairs;
  std::vector<tier::SegmentSpec> segments;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const format::AdapterPair& pair = pairs[i];
    if (absl::Status status = CheckFits(pair, shape_of(pair.tensor)); !status.ok()) {
      return WithContext(status, context);
    }
    const std::string name = SegmentOf(pair.tensor);
    auto segment = std::find_if(segments.begin(), segments.end(),
                                [&](const auto& known) { return known.name == name; });
    if (segment == segments.end()) segment = segments.insert(segment, {name, 0, false});
    const auto index = static_cast<uint32_t>(segment - segments.begin());
    auto place = [&](bool is_b, const ops::Weight& form) {
      const uint64_t offset = AlignUp(segment->bytes, kTensorAlignment);
      segment->bytes = offset + backend->PackedBytes(form.layout, form.dtype, form.rows, form.cols);
      reader->Add(index, {i, is_b, offset}, form);
      return offset;
    };
    Pair planned;
    planned.tensor = pair.tensor;
    planned.segment = index;
    planned.a = FormOf(*backend, pair.a_dtype, pair.rank, pair.in);
    planned.b = FormOf(*backend, pair.b_dtype, pair.out, pair.rank);
    planned.a_offset = place(false, planned.a);
    planned.b_offset = place(true, planned.b);
    planned.scale = pair.scale;
    out->max_rank_ = std::max(out->max_rank_, pair.rank);
    out->pairs_.push_back(std::move(planned));
  }
  tier::ModelSpec spec;
  spec.name = options.name;
  spec.hot_keep_us = options.hot_keep_us;
  spec.sla_weight = options.sla_weight;
  for (tier::SegmentSpec& segment : segments) {
    segment.bytes = AlignUp(segment.bytes, tier::kBlockAlignment);
    out->total_bytes_ += segment.bytes;
  }
  out->segments_ = segments.size();
  spec.segments = std::move(segments);
  spec.source = std::move(reader);
  absl::StatusOr<tier::ModelId> id = manager->Register(std::move(spec));
  if (!id.ok()) return WithContext(id.status(), context);
  out->tier_id_ = *id;
  out->registered_ = true;
  return out;
}

AdapterWeights::~AdapterWeights() {
  if (registered_) manager_->Unregister(tier_id_).IgnoreError();
}

}  // namespace terrace::weights
