// Picks the next token of one sequence from its logits: bias, penalties, constraint, then greedy or
// temperature, top-k, typical, top-p and min-p, in that order. The same seed and logits give the
// same tokens whatever else runs in the batch. Used by one thread at a time.
#ifndef TERRACE_ENGINE_SAMPLER_H_
#define TERRACE_ENGINE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/random.h"
#include "request/request.h"

namespace terrace::engine {

class Sampler {
 public:
  // `seed` is used as it is; `params` must outlive the sampler. `prompt` counts for the repetition
  // penalty only.
  Sampler(const SamplingParams* params, std::span<const int32_t> prompt, uint64_t seed);

  // Picks from `logits` [vocab], which it changes, and remembers the choice. Log probabilities are
  // of the distribution before temperature and truncation, with bias, penalties and constraint
  // applied. The token is -1 if the constraint leaves none. REQUIRES: at least one finite logit.
  TokenEvent Sample(std::span<float> logits, TokenConstraint* constraint);

  // The report of `token` as it comes after `logits` [vocab] without bias, penalties or constraint.
  TokenEvent Score(std::span<const float> logits, int32_t token);

 private:
  struct Candidate {
    int32_t token;
    float weight;  // relative to the best token's
  };
  struct Count {
    int32_t in_prompt = 0;
    int32_t in_output = 0;
  };
  void Adjust(std::span<float> logits, TokenConstraint* constraint) const;
  int32_t Pick(std::span<const float> logits);
  // The tokens whose weight in weights_, which sums to `total`, lets them be chosen at all.
  std::vector<Candidate> Candidates(double total) const;
  void KeepTypical(std::vector<Candidate>* kept) const;
  static bool ByWeight(const Candidate& a, const Candidate& b);
  static double Sum(const std::vector<Candidate>& candidates);
  void FillLogprobs(std::span<const float> logits, TokenEvent* event);

  const SamplingParams* params_;
  Random random_;
  absl::flat_hash_map<int32_t, Count> counts_;
  std::vector<float> weights_;  // [vocab], kept between calls
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_SAMPLER_H_
