// Mixture-of-experts FFN: which tokens go to which expert, and the shapes that Backend::ExpertFfn
// takes. Routing runs on the host and is pure.
#ifndef TERRACE_OPS_MOE_H_
#define TERRACE_OPS_MOE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ops/types.h"

namespace terrace::ops {

// `count` matrices of one shape: one `stride` bytes after the other, or each where `places` says
// (null for those that are not in memory now).
struct WeightStack {
  Weight first;
  int32_t count = 0;
  uint64_t stride = 0;
  const std::byte* const* places = nullptr;  // [count], or null
  // REQUIRES: 0 <= i < count, and matrix i is in memory.
  Weight at(int32_t i) const {
    Weight weight = first;
    weight.data = places != nullptr ? places[i] : first.data + stride * static_cast<uint64_t>(i);
    return weight;
  }
};

// How a token's experts and their shares follow from its router scores.
struct RouterParams {
  enum class Gate : uint8_t {
    kSoftmax,  // over all experts; with `normalize`, the same as over the chosen alone
    kSigmoid,  // of each score by itself
  };
  Gate gate = Gate::kSoftmax;
  int32_t used = 1;  // experts a token goes to
  // Experts fall into `groups` runs of equal size; only those of the `groups_used` best groups may
  // be chosen. A group is as good as its best expert (kSoftmax) or its two best together
  // (kSigmoid).
  int32_t groups = 1;
  int32_t groups_used = 1;
  bool normalize = false;  // shares are divided by their sum
  float scale = 1.0f;      // multiplies shares last
};

// Tokens grouped by expert: expert e computes rows[first[e] .. first[e + 1]), ascending, and its
// result for rows[i] counts shares[i].
struct ExpertRouting {
  std::vector<int32_t> first;  // [experts + 1]
  std::vector<int32_t> rows;
  std::vector<float> shares;
  bool add = false;  // to what the result holds already: the rest of a routing done in parts
};

// The part of `whole` that goes to experts [first_expert, end_expert), ascending. The parts of a
// routing one after the other, all but the first with `add`, give what the whole gives.
ExpertRouting PartOf(const ExpertRouting& whole, int32_t first_expert, int32_t end_expert);

// InvalidArgument unless `experts` can be routed by `params`.
absl::Status CheckRouter(const RouterParams& params, int32_t experts);

// Routes each row of `scores` [rows, experts] (host memory). `selection_bias` [experts], if there,
// is added to the gated scores for the choice only, not for the shares. Of equal scores the lower
// expert wins. Scores that are not numbers give shares that are not numbers, never a bad index.
absl::Status RouteTokens(Matrix scores, Vector selection_bias, const RouterParams& params,
                         ExpertRouting* routing);

// gate = min(gate, limit), up = clamp(up, -limit, limit);
// result = gate * sigmoid(alpha * gate) * (up + 1). A limit of 0 means: not clamped at all, the
// plain activation(gate) * up.
struct GluClamp {
  float alpha = 1.702f;
  float limit = 0.0f;
};

struct ExpertWeights {
  WeightStack gate, up;                  // [experts][ffn, in]
  WeightStack down;                      // [experts][out, ffn]
  Vector gate_bias, up_bias, down_bias;  // [experts * rows of a matrix] or absent
  Activation activation = Activation::kSilu;
  GluClamp clamp;
};

// Room for intermediate results; each has max(rows of x, experts a token goes to) rows.
struct ExpertScratch {
  Matrix gathered;  // [., in]
  Matrix gate, up;  // [., ffn]
  Matrix down;      // [., out]
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_MOE_H_
