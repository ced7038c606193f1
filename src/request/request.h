// A generation request as the scheduler and the engine see it: token ids and parameters, no text
// and no protocol. Plain structs, checked at the door (server/) before they get here.
#ifndef TERRACE_REQUEST_REQUEST_H_
#define TERRACE_REQUEST_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace terrace {

enum class SlaClass : uint8_t { kRealtime, kStandard, kBatch };

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;  // over prompt and output (Keskar et al. 2019)
  float presence_penalty = 0.0f;    // over output, as OpenAI defines them
  float frequency_penalty = 0.0f;
  std::optional<uint64_t> seed;  // absent: the scheduler draws one
  std::vector<std::pair<int32_t, float>> logit_bias;
  // Alternatives reported with each token (0: only the token's own logprob); absent: none computed.
  std::optional<int32_t> top_logprobs;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
};

struct TokenEvent {
  int32_t token = 0;
  float logprob = 0.0f;           // of `token`, before temperature, if asked for
  std::vector<TokenLogprob> top;  // best first
};

enum class FinishReason : uint8_t {
  kStop,    // an end token, or the sink said stop
  kLength,  // max_tokens or the context's end
  kCancelled,
  kError,
};

struct Timings {
  int64_t queue_us = 0;    // from Submit to the first step that includes the request
  int64_t swap_us = 0;     // of that step's time spent waiting for weights
  int64_t prefill_us = 0;  // until the first token
  int64_t decode_us = 0;   // from the first token to the last
};

struct FinishInfo {
  FinishReason reason = FinishReason::kStop;
  absl::Status status;  // why, for kError
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;      // of the prompt, taken from the KV cache on any tier
  int32_t restored_tokens = 0;    // of those, brought back from below device memory
  std::string kv_choice;          // why KV was loaded or recomputed; empty if there was no choice
  int32_t completion_tokens = 0;  // an end token is not counted
  int32_t guessed_tokens = 0;     // ahead of the model (speculation)
  int32_t accepted_tokens = 0;    // of those, the ones that were right
  uint64_t moved_bytes = 0;       // of weights, for this request's share of its steps
  Timings timings;
};

// Receives a request's tokens. Called on the scheduler's thread, one call at a time, so it must not
// block. End tokens are not passed on.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // False ends the request with kStop (a stop string was found); `event` counts as generated.
  virtual bool OnToken(const TokenEvent& event) = 0;
  // Before any token, for requests with prompt_logprobs: each token of the prompt from the second
  // on, in order.
  virtual void OnPromptToken(const TokenEvent& /*event*/) {}
  // Instead of tokens, for requests that embed: the last token's state behind the final norm
  // [width]; valid during the call.
  virtual void OnEmbedding(std::span<const float> /*state*/) {}
  // The last call, always made exactly once after a successful Submit.
  virtual void OnFinish(const FinishInfo& info) = 0;
};

// Restricts which tokens may follow (grammar, schema, tool calls). Called on the scheduler's
// thread.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Sets the logits of forbidden tokens to -infinity. `logits` [vocab]. If none is left the request
  // fails.
  virtual void Mask(std::span<float> logits) = 0;
  virtual void Accept(int32_t token) = 0;
  // The text is complete and nothing may follow: generation ends here with kStop.
  virtual bool Finished() const = 0;
};

// What a request accepts when its model is not at hand.
struct SwapContract {
  int64_t max_wait_us = -1;  // in the queue, swap included; -1: as long as it takes
  bool warm_only = false;    // refused at once unless the weights are in device memory
};

struct Request {
  std::string id;     // "chatcmpl-..." : unique, for logs and traces
  std::string model;  // registered name
  std::string tenant;
  SlaClass sla = SlaClass::kStandard;
  SwapContract swap;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  bool embed = false;  // the prompt's embedding is wanted, no tokens
  // What is computed must not depend on what else the server has to do
  // (engine::StepEntry::uniform), so that the same text always gets the same vector or score.
  bool uniform = false;
  // The prompt's tokens are reported with their log probabilities after those before them, of the
  // model's own distribution. sampling.top_logprobs says how many alternatives.
  bool prompt_logprobs = false;
  int32_t max_tokens = 0;           // > 0; the context's end may come earlier
  std::vector<int32_t> end_tokens;  // generation ends with kStop at any of them
  std::unique_ptr<TokenConstraint> constraint;
  std::unique_ptr<TokenSink> sink;
};

}  // namespace terrace

#endif  // TERRACE_REQUEST_REQUEST_H_
