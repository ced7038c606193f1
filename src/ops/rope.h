// Angles of rotary embeddings, shared by backends: the one place that knows linear and YaRN
// scaling.
#ifndef TERRACE_OPS_ROPE_H_
#define TERRACE_OPS_ROPE_H_

#include <vector>

#include "ops/types.h"

namespace terrace::ops {

// cos and sin of each pair's angle, for one set of parameters. Not thread-safe while it is built,
// freely shared after that.
class RopeTable {
 public:
  // REQUIRES: params.dim is even and positive; frequency_factors, if present, are host memory.
  explicit RopeTable(const RopeParams& params);

  // Writes dim / 2 cosines and sines, scaled by the YaRN magnitude.
  void Angles(int32_t position, float* cosines, float* sines) const;

 private:
  std::vector<double> frequency_;  // radians a position, by pair
  double magnitude_ = 1.0;
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_ROPE_H_
