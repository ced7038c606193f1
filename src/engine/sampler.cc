#include "engine/sampler.h"

#include <algorithm>
#include <bit>
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

// e^x for x <= 0, within 2e-7 relative for x > -87 and 0 below: 2^n times a polynomial of degree 6
// (Taylor of 2^f on [-0.5, 0.5], remainder under 1.6e-8, plus float rounding). Branch-free, so that
// compilers vectorise the loops over a vocabulary.
inline float ExpNegative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float scaled = clamped * 1.44269504f;
  const float rounded = static_cast<float>(static_cast<int32_t>(scaled - 0.5f));
  // Cody and Waite: the product with ln 2 in two parts loses nothing.
  const float r = (clamped - rounded * 0.693359375f) - rounded * -2.12194440e-4f;
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(rounded) + 127) << 23;
  const float result = p * std::bit_cast<float>(bits);
  return x < -87.0f ? 0.0f : result;
}

// weights[i] = e^((logits[i] - max) * scale); returns their sum.
double ExpAll(std::span<const float> logits, float max, float scale, std::vector<float>* weights) {
  weights->resize(logits.size());
  float* out = weights->data();
  for (size_t i = 0; i < logits.size(); ++i) out[i] = ExpNegative((logits[i] - max) * scale);
  // In double so that the sum of a large vocabulary loses nothing.
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += out[i];
  return sum;
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
  const double total = ExpAll(logits, max, 1.0f / p.temperature, &weights_);
  const bool use_top_k = p.top_k > 0 && static_cast<size_t>(p.top_k) < logits.size();
  if (!use_top_k && p.typical_p >= 1.0f && p.top_p >= 1.0f && p.min_p <= 0.0f) {
    double target = random_.Uniform() * total;
    for (size_t i = 0; i < weights_.size(); ++i) {
      target -= weights_[i];
      if (target < 0) return static_cast<int32_t>(i);
    }
    return best;
  }
  std::vector<Candidate> kept = Candidates(total);
  if (use_top_k && kept.size() > static_cast<size_t>(p.top_k)) {
    std::nth_element(kept.begin(), kept.begin() + p.top_k, kept.end(), ByWeight);
    kept.resize(static_cast<size_t>(p.top_k));
  }
  std::sort(kept.begin(), kept.end(), ByWeight);
  if (p.typical_p < 1.0f) KeepTypical(&kept);
  if (p.top_p < 1.0f) {
    // Nucleus sampling (Holtzman et al. 2020): the fewest tokens whose mass reaches top_p of the
    // distribution that the steps before left.
    const bool whole = !use_top_k && p.typical_p >= 1.0f && p.min_p <= 0.0f;
    const double wanted = p.top_p * (whole ? total : Sum(kept));
    double mass = 0;
    size_t count = 0;
    while (count < kept.size() && mass < wanted) mass += kept[count++].weight;
    kept.resize(std::max<size_t>(count, 1));
  }
  double target = random_.Uniform() * Sum(kept);
  for (const Candidate& candidate : kept) {
    target -= candidate.weight;
    if (target < 0) return candidate.token;
  }
  return kept.back().token;
}

bool Sampler::ByWeight(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

double Sampler::Sum(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

std::vector<Sampler::Candidate> Sampler::Candidates(double total) const {
  const SamplingParams& p = *params_;
  // min-p is relative to the best token, whose weight is 1. With top-p alone, tokens under
  // (1 - p) / vocab hold less than 1 - p together, so the nucleus is among the others.
  double floor = static_cast<double>(p.min_p);
  if (p.top_p < 1.0f && p.top_k <= 0 && p.typical_p >= 1.0f) {
    floor = std::max(floor, (1.0 - p.top_p) / static_cast<double>(weights_.size()) * total);
  }
  const auto least = static_cast<float>(floor);
  std::vector<Candidate> kept;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] >= least && weights_[i] > 0) {
      kept.push_back({static_cast<int32_t>(i), weights_[i]});
    }
  }
  return kept;
}

void Sampler::KeepTypical(std::vector<Candidate>* kept) const {
  // Locally typical sampling (Meister et al. 2022): nearest to the entropy first.
  const double total = Sum(*kept);
  double entropy = 0;
  for (const Candidate& candidate : *kept) {
    entropy -= candidate.weight / total * std::log(candidate.weight / total);
  }
  auto distance = [&](const Candidate& candidate) {
    return std::abs(-std::log(candidate.weight / total) - entropy);
  };
  std::stable_sort(kept->begin(), kept->end(), [&](const Candidate& a, const Candidate& b) {
    return distance(a) < distance(b);
  });
  double mass = 0;
  size_t count = 0;
  while (count < kept->size() && mass < params_->typical_p * total) {
    mass += (*kept)[count++].weight;
  }
  kept->resize(std::max<size_t>(count, 1));
  std::sort(kept->begin(), kept->end(), ByWeight);
}

void Sampler::FillLogprobs(std::span<const float> logits, TokenEvent* event) {
  const float max = *std::max_element(logits.begin(), logits.end());
  const double log_sum = max + std::log(ExpAll(logits, max, 1.0f, &weights_));
  auto logprob = [&](int32_t token) {
    return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum);
  };
  event->logprob = logprob(event->token);
  const size_t wanted =
      std::min(static_cast<size_t>(std::max(params_->top_logprobs.value_or(0), 0)), logits.size());
  if (wanted == 0) return;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(wanted), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float la = logits[static_cast<size_t>(a)];
                      const float lb = logits[static_cast<size_t>(b)];
                      return la != lb ? la > lb : a < b;
                    });
  for (size_t i = 0; i < wanted; ++i) {
    if (logits[static_cast<size_t>(order[i])] == kForbidden) break;
    event->top.push_back({order[i], logprob(order[i])});
  }
}

TokenEvent Sampler::Score(std::span<const float> logits, int32_t token) {
  TokenEvent event;
  event.token = token;
  FillLogprobs(logits, &event);
  return event;
}

TokenEvent Sampler::Sample(std::span<float> logits, TokenConstraint* constraint) {
  Adjust(logits, constraint);
  TokenEvent event;
  event.token = Pick(logits);
  if (logits[static_cast<size_t>(event.token)] == kForbidden) {
    event.token = -1;
    return event;
  }
  if (params_->top_logprobs.has_value()) FillLogprobs(logits, &event);
  if (constraint != nullptr) constraint->Accept(event.token);
  const SamplingParams& p = *params_;
  if (p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f) {
    ++counts_[event.token].in_output;
  }
  return event;
}

}  // namespace terrace::engine
