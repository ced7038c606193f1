// A model's weights for the engine: named tensors in segments, held by the tier manager, read from
// an image on disk or, while the image is still being written, straight from the source file.
#ifndef TERRACE_WEIGHTS_MODEL_WEIGHTS_H_
#define TERRACE_WEIGHTS_MODEL_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "format/model_source.h"
#include "ops/backend.h"
#include "ops/types.h"
#include "tier/tier_manager.h"

namespace terrace {
class Clock;
}
namespace terrace::storage {
class DiskBudget;
}

namespace terrace::weights {

// One tensor's place in its segment and its form there.
struct TensorPlace {
  std::string name;  // "blk.0.attn_q.weight"
  uint32_t segment = 0;
  uint64_t offset = 0;  // in the segment; 64-byte aligned
  uint64_t bytes = 0;
  DType dtype = DType::kF32;
  ops::Layout layout = ops::Layout::kPlain;
  std::vector<int64_t> shape;  // row-major, [out, in] for a matrix
  // The matrices of a stack lie in segments of their own: the first in `segment`, each further one
  // in the next, all at `offset`; `bytes` are those of one matrix then.
  bool spread = false;
};

struct OpenOptions {
  std::string name;  // model name for the ledger, e.g. "qwen3@1"
  std::string tenant;
  // A GGUF file (any part of a split set starts from part 1), or the URL of one in an object store
  // (weights/object_source.h), whose file then comes to `object_folder` while it is served.
  std::string source_path;
  std::string object_folder;
  int64_t object_patience_us = 10'000'000;  // ObjectSourceOptions::patience_us
  std::string sha256;                       // what the object's must be; empty: not checked
  std::function<std::string(std::string_view)> environment;  // of s3: sources
  const Clock* clock = nullptr;                              // of object stores; must outlive it
  std::string image_folder;  // images live here, one folder each; created if absent
  int64_t hot_keep_us = 0;
  double sla_weight = 1.0;  // this and history: see tier::ModelSpec
  tier::UseHistory history;
  // Makes of the opened source what is to be served of it, e.g. one device's share; empty: all of
  // it.
  std::function<absl::StatusOr<format::ModelSource>(format::ModelSource)> part;
  bool write_image = true;  // false: always read from the source (diagnosis)
  // See weights/importer.h.
  storage::DiskBudget* disk = nullptr;
  std::function<void(const std::string&)> notice;
};

// Opened weights. Thread-safe after Open. Unregisters from the manager when destroyed (no pin may
// be left then).
class ModelWeights {
 public:
  // Reads the headers (checked in full, see A01 to A05), finds or starts the image for the
  // backend's layouts, registers the segments. Reads no tensor data beyond that. `backend` and
  // `manager` must outlive the result.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Open(const OpenOptions& options,
                                                            const ops::Backend* backend,
                                                            tier::TierManager* manager);
  virtual ~ModelWeights() = default;

  virtual const Metadata& metadata() const = 0;
  virtual const std::string& fingerprint() const = 0;  // of source identity and layouts, hex
  virtual tier::ModelId tier_id() const = 0;

  // Segments in execution order: for each layer "blk.N.attn", "blk.N.ffn" and, for layers with
  // experts, "blk.N.exp.E" for each, then "embed" (first if it holds more than the embedding of
  // tokens, of which a pass needs few rows), then "head". A segment without tensors is left out.
  virtual const std::vector<tier::SegmentSpec>& segments() const = 0;
  virtual const TensorPlace* Find(std::string_view tensor) const = 0;
  virtual uint64_t total_bytes() const = 0;

  // True once the image is complete on disk; until then segments are produced from the source.
  virtual bool image_complete() const = 0;
  // Waits until the image is complete or has failed (then its status; serving goes on without it).
  virtual absl::Status WaitForImage() = 0;
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_MODEL_WEIGHTS_H_
