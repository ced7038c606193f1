// Cosines and sines of rows' positions, on the device once for all layers that turn alike.
#ifndef TERRACE_OPS_OPENCL_ANGLE_TABLES_H_
#define TERRACE_OPS_OPENCL_ANGLE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/opencl/upload_ring.h"
#include "ops/types.h"

namespace terrace::ops {

class AngleTables {
 public:
  // `ring` must outlive this.
  explicit AngleTables(UploadRing* ring) : ring_(ring) {}
  // The device address of [positions][dim] floats: of each row the cosines, then the sines.
  absl::StatusOr<const std::byte*> Get(std::span<const int32_t> positions,
                                       const RopeParams& params);

 private:
  struct Table {
    RopeParams params;
    std::vector<float> factors;
    std::vector<int32_t> positions;
    const std::byte* data = nullptr;
    uint64_t generation = 0;
  };
  UploadRing* const ring_;
  std::vector<Table> tables_;  // few: layers with and without a window differ
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_OPENCL_ANGLE_TABLES_H_
