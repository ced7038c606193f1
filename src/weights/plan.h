// Decides how a model's tensors lie in segments and in which form: what the image will hold, before
// any tensor data is read.
#ifndef TERRACE_WEIGHTS_PLAN_H_
#define TERRACE_WEIGHTS_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "format/image.h"
#include "format/model_source.h"
#include "ops/backend.h"
#include "weights/model_weights.h"

namespace terrace::weights {

inline constexpr uint64_t kTensorAlignment = 64;

// What is done to a tensor's rows on their way into the image.
enum class Conversion : uint8_t {
  kFloats,  // dequantised to float32: vectors, biases, norms
  kPack,    // backend->Pack of each matrix
  kCopy,    // bytes as they are: shapes that no operator takes
};

// A tensor's place and how its bytes come about. The tensor is `matrices` runs of `rows` source
// rows; groups of `group_rows` rows turn into `group_bytes` bytes each, independent of one another,
// so that any byte range can be made from a few rows.
struct PlannedTensor {
  TensorPlace place;
  uint32_t source = 0;  // index into ModelSource::tensors
  Conversion conversion = Conversion::kCopy;
  uint64_t matrices = 0;
  uint64_t rows = 0;  // of one matrix
  int32_t cols = 0;   // elements of a row (kPack)
  uint64_t source_row_bytes = 0;
  uint64_t group_rows = 1;
  uint64_t group_bytes = 0;   // of a full group
  uint64_t matrix_bytes = 0;  // packed; the last group takes what full ones leave
};

struct PlannedSegment {
  std::string name;
  int32_t expert = -1;            // which one, of a segment that holds one expert of a layer
  uint64_t bytes = 0;             // a multiple of 4 KiB
  std::vector<uint32_t> tensors;  // by offset
};

struct ImagePlan {
  std::vector<PlannedTensor> tensors;
  std::vector<PlannedSegment> segments;  // in execution order
  std::string fingerprint;  // 32 hex digits: of the source's identity and of all places
  uint64_t total_bytes = 0;
};

// The segment that a tensor of this name belongs to: "blk.N.attn", "blk.N.ffn", "embed" or "head".
// Stacks of experts ("blk.N.ffn_up_exps.weight") do not: each matrix lies in "blk.N.exp.E".
std::string SegmentOf(std::string_view tensor);

// Packing must work on groups of 16 rows one after the other, or else take whole matrices: then one
// matrix at a time is in memory. InvalidArgument for a matrix with more than 2^31 - 1 rows or
// columns.
absl::StatusOr<ImagePlan> MakePlan(const format::ModelSource& source, const ops::Backend& backend);

// The manifest that the plan leads to, its checksums zero.
format::ImageManifest ManifestOf(const ImagePlan& plan, const format::ModelSource& source);

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_PLAN_H_
