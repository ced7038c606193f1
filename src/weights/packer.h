// Makes any byte range of a segment from the source file: reads the rows it needs, converts or
// packs them, zeroes what lies between tensors. The same range always gives the same bytes.
#ifndef TERRACE_WEIGHTS_PACKER_H_
#define TERRACE_WEIGHTS_PACKER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "format/model_source.h"
#include "ops/backend.h"
#include "weights/plan.h"

namespace terrace::weights {

// Thread-safe: each caller brings its own Scratch. Source, plan and backend must outlive it.
class Packer {
 public:
  // Memory reused from call to call; grows to about 4 MiB (more only for rows larger than that).
  struct Scratch {
    std::vector<std::byte> source;
    std::vector<std::byte> group;
  };

  Packer(const format::ModelSource* source, const ImagePlan* plan, const ops::Backend* backend)
      : source_(source), plan_(plan), backend_(backend) {}

  // Fills `out` with bytes [begin, begin + out.size()) of `segment`.
  absl::Status Fill(uint32_t segment, uint64_t begin, std::span<std::byte> out,
                    Scratch* scratch) const;

 private:
  absl::Status FillTensor(const PlannedTensor& tensor, uint64_t begin, std::span<std::byte> out,
                          Scratch* scratch) const;
  absl::Status FillMatrix(const PlannedTensor& tensor, uint64_t matrix, uint64_t begin,
                          std::span<std::byte> out, Scratch* scratch) const;
  absl::Status ConvertRows(const PlannedTensor& tensor, uint64_t first_row, uint64_t rows,
                           std::span<std::byte> out, Scratch* scratch) const;

  const format::ModelSource* source_;
  const ImagePlan* plan_;
  const ops::Backend* backend_;
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_PACKER_H_
