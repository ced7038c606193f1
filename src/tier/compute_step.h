// What the manager is told of computing on its device, so that weights of other models do not come
// at its cost.
#ifndef TERRACE_TIER_COMPUTE_STEP_H_
#define TERRACE_TIER_COMPUTE_STEP_H_

#include <cstdint>
#include <string>

#include "tier/types.h"

namespace terrace::tier {

// A step of a model in which streams decode, or that is computed for somebody in a hurry.
struct ComputeStep {
  ModelId model = 0;
  // Of the streams. Steps of one model with as many rows take as long; 0: like no other, because
  // prompts are read in it or tokens are guessed.
  int32_t rows = 0;
  // Whoever waits for weights is more urgent than the streams, or has waited long enough: nothing
  // is held back.
  bool gives_way = false;
  // Somebody in a hurry is computed for: until the step ends no load begins that nobody waits for.
  bool hurries = false;
};

// How long weights of one model had to wait for the sake of another one's streams.
struct HeldLoads {
  std::string model;
  std::string by;
  int64_t us = 0;  // since start
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_COMPUTE_STEP_H_
