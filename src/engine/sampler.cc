#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace terrace::engine {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// log(sum(exp(logits))), in double so that a large vocabulary's sum loses nothing.
double LogSumExp(std::span<const float> logits, float max) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return static_cast<double>(max) + std::log(sum);
}

}  // namespace

Sampler::Sampler(const SamplingParams* params, std::span<const int32_t> prompt, uint64_t seed)
    : params_(params), random_(seed) {
  if (params_->repetition_penalty == 1.0f) return;
  for (int32_t token : prompt) ++counts_[token].in_prompt;
}

void Sampler::Adjust(std::span<float> logits, TokenConstraint* constraint) const {
  const auto vocab = static_cast<int32_t>(logits.size());
  for (const auto& [token, count] : counts_) {
    if (token < 0 || token >= vocab) continue;
    float& logit = logits[static_cast<size_t>(token)];
    if (params_->repetition_penalty != 1.0f) {
      logit = logit > 0 ? logit / params_->repetition_penalty : logit * params_->repetition_penalty;
    }
    if (count.in_output > 0) {
      logit -= params_->presence_penalty;
      logit -= params_->frequency_penalty * static_cast<float>(count.in_output);
    }
  }
  for (const auto& [token, bias] : params_->logit_bias) {
    if (token >= 0 && token < vocab) logits[static_cast<size_t>(token)] += bias;
  }
  if (constraint != nullptr) constraint->Mask(logits);
}

int32_t Sampler::Pick(std::span<const float> logits) {
  const SamplingParams& p = *params_;
  const int32_t best = ArgMax(logits);
  const float max = logits[static_cast<size_t>(best)];
  if (p.temperature <= 0.0f || max == kForbidden) return best;
  const double inverse_temperature = 1.0 / static_cast<double>(p.temperature);
  auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - max) * inverse_temperature);
  };
  const bool use_top_k = p.top_k > 0 && static_cast<size_t>(p.top_k) < logits.size();
  const bool use_typical = p.typical_p < 1.0f;
  const bool use_top_p = p.top_p < 1.0f;

  // Tokens that can be chosen at all, with their weights relative to the best one's.
  std::vector<Candidate> kept;
  std::vector<double> weights;
  double total = 0;
  for (float logit : logits) total += weight(logit);
  // With top-p alone, tokens under (1 - p) / vocab hold less than 1 - p together, so the nucleus is
  // among the others; with min-p, tokens under min_p of the best are out by definition (it scales
  // with the best one's weight, 1).
  double floor = static_cast<double>(p.min_p);
  if (use_top_p && !use_top_k && !use_typical) {
    floor = std::max(floor, (1.0 - p.top_p) / static_cast<double>(logits.size()) * total);
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kForbidden) continue;
    if (floor > 0 && weight(logits[i]) < floor) continue;
    kept.push_back({static_cast<int32_t>(i), logits[i]});
  }
  auto by_logit = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (use_top_k && kept.size() > static_cast<size_t>(p.top_k)) {
    std::nth_element(kept.begin(), kept.begin() + p.top_k, kept.end(), by_logit);
    kept.resize(static_cast<size_t>(p.top_k));
  }
  if (use_top_k || use_typical || use_top_p) std::sort(kept.begin(), kept.end(), by_logit);
  auto refresh = [&] {
    weights.resize(kept.size());
    total = 0;
    for (size_t i = 0; i < kept.size(); ++i) total += weights[i] = weight(kept[i].logit);
  };
  const double full_total = total;
  refresh();
  if (use_typical) {
    // Locally typical sampling (Meister et al. 2022): nearest to the entropy first.
    double entropy = 0;
    for (double w : weights) {
      if (w > 0) entropy -= w / total * std::log(w / total);
    }
    std::vector<size_t> order(kept.size());
    std::iota(order.begin(), order.end(), size_t{0});
    auto distance = [&](size_t i) { return std::abs(-std::log(weights[i] / total) - entropy); };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return distance(a) < distance(b); });
    std::vector<Candidate> typical;
    double mass = 0;
    for (size_t i : order) {
      typical.push_back(kept[i]);
      mass += weights[i] / total;
      if (mass >= p.typical_p) break;
    }
    kept = std::move(typical);
    std::sort(kept.begin(), kept.end(), by_logit);
    refresh();
  }
  if (use_top_p) {
    // Nucleus sampling (Holtzman et al. 2020): the fewest tokens whose mass reaches top_p of the
    // distribution that the steps before left.
    const double reference = use_top_k || use_typical || p.min_p > 0 ? total : full_total;
    double mass = 0;
    size_t count = 0;
    while (count < kept.size() && mass < p.top_p * reference) mass += weights[count++];
    kept.resize(std::max<size_t>(count, 1));
    refresh();
  }
  double target = random_.Uniform() * total;
  for (size_t i = 0; i < kept.size(); ++i) {
    target -= weights[i];
    if (target < 0) return kept[i].token;
  }
  return kept.back().token;
}

void Sampler::FillLogprobs(std::span<const float> logits, TokenEvent* event) const {
  const float max = *std::max_element(logits.begin(), logits.end());
  const double log_sum = LogSumExp(logits, max);
  auto logprob = [&](int32_t token) {
    return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  };
  event->logprob = logprob(event->token);
  const size_t wanted = std::min(static_cast<size_t>(std::max(*params_->top_logprobs, 0)),
                                 logits.size());
  if (wanted == 0) return;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(wanted), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float la = logits[static_cast<size_t>(a)];
                      const float lb = logits[static_cast<size_t>(b)];
                      return la != lb ? la > lb : a < b;
                    });
  for (size_t i = 0; i < wanted; ++i) event->top.push_back({order[i], logprob(order[i])});
}

TokenEvent Sampler::Sample(std::span<float> logits, TokenConstraint* constraint) {
  Adjust(logits, constraint);
  TokenEvent event;
  event.token = Pick(logits);
  if (params_->top_logprobs.has_value()) FillLogprobs(logits, &event);
  if (constraint != nullptr) constraint->Accept(event.token);
  const SamplingParams& p = *params_;
  if (p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f) {
    ++counts_[event.token].in_output;
  }
  return event;
}

}  // namespace terrace::engine
