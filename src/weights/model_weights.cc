#include "weights/model_weights.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "format/gguf.h"
#include "format/model_set.h"
#include "weights/importer.h"
#include "weights/object_source.h"
#include "weights/sha256.h"

namespace terrace::weights {
namespace {

class ModelWeightsImpl final : public ModelWeights {
 public:
  ModelWeightsImpl(std::shared_ptr<Importer> importer, tier::TierManager* manager)
      : importer_(std::move(importer)), manager_(manager) {
    for (const PlannedSegment& segment : importer_->plan().segments) {
      segments_.push_back({segment.name, segment.bytes, segment.expert >= 0});
    }
    for (const PlannedTensor& tensor : importer_->plan().tensors) {
      places_.emplace(tensor.place.name, &tensor.place);
    }
  }

  ~ModelWeightsImpl() override {
    // Unregistering waits for loads that still read through the importer.
    if (registered_) manager_->Unregister(tier_id_).IgnoreError();
    importer_->Stop();
  }

  absl::Status Register(const OpenOptions& options) {
    tier::ModelSpec spec;
    spec.name = options.name;
    spec.tenant = options.tenant;
    spec.hot_keep_us = options.hot_keep_us;
    spec.sla_weight = options.sla_weight;
    spec.history = options.history;
    spec.segments = segments_;
    spec.source = importer_;
    ASSIGN_OR_RETURN(tier_id_, manager_->Register(std::move(spec)));
    registered_ = true;
    importer_->Start();
    return absl::OkStatus();
  }

  const Metadata& metadata() const override { return importer_->source().metadata; }
  const std::string& fingerprint() const override { return importer_->plan().fingerprint; }
  tier::ModelId tier_id() const override { return tier_id_; }
  const std::vector<tier::SegmentSpec>& segments() const override { return segments_; }
  const TensorPlace* Find(std::string_view tensor) const override {
    auto it = places_.find(tensor);
    return it == places_.end() ? nullptr : it->second;
  }
  uint64_t total_bytes() const override { return importer_->plan().total_bytes; }
  bool image_complete() const override { return importer_->image_complete(); }
  absl::Status WaitForImage() override { return importer_->WaitForImage(); }

 private:
  // Shared with the manager, which may finish a load after this object is gone.
  std::shared_ptr<Importer> importer_;
  tier::TierManager* manager_;
  tier::ModelId tier_id_ = 0;
  bool registered_ = false;
  std::vector<tier::SegmentSpec> segments_;
  std::unordered_map<std::string_view, const TensorPlace*> places_;  // names live in the plan
};

}  // namespace

namespace {

// Each is a fetch with connections of its own.
constexpr size_t kMaxUrls = 64;

// The URLs of the set that `url` belongs to.
std::vector<std::string> SetUrls(const std::string& url) {
  const std::optional<format::PartName> name = format::ParsePartName(url);
  if (!name) return {url};
  std::vector<std::string> urls;
  for (uint32_t part = 1; part <= name->count; ++part) {
    urls.push_back(format::PartPath(name->base, part, name->count));
  }
  return urls;
}

absl::StatusOr<format::ModelSource> OpenSource(const OpenOptions& options) {
  if (!IsObject(options.source_path)) return format::OpenModel(options.source_path);
  const std::vector<std::string> urls = SetUrls(options.source_path);
  if (urls.size() > kMaxUrls) {
    return absl::InvalidArgumentError(
        fmt::format("a set of {} parts, at most {} are read", urls.size(), kMaxUrls));
  }
  ObjectSourceOptions object;
  object.folder = options.object_folder;
  object.disk = options.disk;
  object.patience_us = options.object_patience_us;
  if (!options.sha256.empty()) {
    if (urls.size() != 1) {
      return absl::InvalidArgumentError("a SHA-256 can be given for a single file only");
    }
    ASSIGN_OR_RETURN(object.sha256, ParseSha256(options.sha256));
  }
  object.notice = options.notice;
  std::vector<std::unique_ptr<format::ByteSource>> files;
  for (const std::string& url : urls) {
    ASSIGN_OR_RETURN(ObjectPlace place, FindObject(url, options.environment, *options.clock));
    ASSIGN_OR_RETURN(std::unique_ptr<format::ByteSource> file, OpenObject(place, object));
    files.push_back(std::move(file));
  }
  return format::OpenGguf(std::move(files), urls);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Open(const OpenOptions& options,
                                                                 const ops::Backend* backend,
                                                                 tier::TierManager* manager) {
  std::string context = fmt::format("opening model '{}'", options.name);
  auto source = OpenSource(options);
  if (source.ok() && options.part) source = options.part(*std::move(source));
  if (!source.ok()) return WithContext(source.status(), context);
  ImporterOptions importing;
  importing.image_folder = options.image_folder;
  importing.write_image = options.write_image;
  importing.disk = options.disk;
  importing.notice = options.notice;
  auto importer = Importer::Create(*std::move(source), backend, importing);
  if (!importer.ok()) return WithContext(importer.status(), context);
  auto weights = std::make_unique<ModelWeightsImpl>(*std::move(importer), manager);
  absl::Status status = weights->Register(options);
  if (!status.ok()) return WithContext(status, context);
  return weights;
}

}  // namespace terrace::weights
