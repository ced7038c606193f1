// An adapter's matrices for the engine: packed for the backend in segments that the tier manager
// holds like those of any model, one for the attention and one for the FFN of each layer. They are
// small, so they have no image: what was evicted is made again from the file.
#ifndef TERRACE_WEIGHTS_ADAPTER_WEIGHTS_H_
#define TERRACE_WEIGHTS_ADAPTER_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "ops/backend.h"
#include "ops/types.h"
#include "tier/tier_manager.h"

namespace terrace::weights {

struct AdapterOptions {
  std::string name;  // for the ledger; unique among models and adapters
  std::string source_path;
  int64_t hot_keep_us = 0;
  double sla_weight = 1.0;
};

// Thread-safe after Open. Unregisters from the manager when destroyed (no pin may be left then).
class AdapterWeights {
 public:
  // One adapted matrix: where its two factors lie and what they look like (data null).
  struct Pair {
    std::string tensor;
    uint32_t segment = 0;
    uint64_t a_offset = 0, b_offset = 0;  // in the segment
    ops::Weight a;                        // [rank, in]
    ops::Weight b;                        // [out, rank]
    float scale = 1.0f;
  };
  // The base's shape of a matrix that can be adapted ([out, in]); null for any other tensor.
  using ShapeOf = std::function<const std::vector<int64_t>*(std::string_view tensor)>;

  // Reads the headers and registers the segments; reads no matrix. InvalidArgument for what does
  // not fit the base (names the tensor and both shapes), and as format/adapter.h. `backend` and
  // `manager` must outlive the result.
  static absl::StatusOr<std::unique_ptr<AdapterWeights>> Open(const AdapterOptions& options,
                                                              const Metadata& base,
                                                              const ShapeOf& shape_of,
                                                              const ops::Backend* backend,
                                                              tier::TierManager* manager);
  ~AdapterWeights();

  const std::vector<Pair>& pairs() const { return pairs_; }
  tier::ModelId tier_id() const { return tier_id_; }
  size_t segments() const { return segments_; }
  uint64_t total_bytes() const { return total_bytes_; }
  int32_t max_rank() const { return max_rank_; }
  // Of the files' identity and the scales, hex: KV computed with another adapter has another root.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  explicit AdapterWeights(tier::TierManager* manager) : manager_(manager) {}

  tier::TierManager* const manager_;
  std::vector<Pair> pairs_;
  tier::ModelId tier_id_ = 0;
  bool registered_ = false;
  size_t segments_ = 0;
  uint64_t total_bytes_ = 0;
  int32_t max_rank_ = 0;
  std::string fingerprint_;
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_ADAPTER_WEIGHTS_H_
