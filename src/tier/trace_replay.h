// What a policy would have made of a trace of requests: the policies themselves, the history of use
// and partial residency, over devices and links that are only counted. For choosing a policy and a
// size before buying it, at any scale; says nothing of kernels and schedulers.
//
// Each device serves one request after the other. A request's weights come over the device's link
// while it computes, so that its first token is there after max(bytes / link, prefill).
#ifndef TERRACE_TIER_TRACE_REPLAY_H_
#define TERRACE_TIER_TRACE_REPLAY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::tier {

struct TraceRequest {
  int64_t at_us = 0;
  uint32_t model = 0;
  int64_t prefill_us = 0;  // to the first token, with all weights there
  int64_t decode_us = 0;   // from there to the end
};

// Requests in order of time, and what their models are called.
struct Trace {
  std::vector<std::string> models;
  std::vector<TraceRequest> requests;
};

// Lines "seconds,model,prefill_ms,decode_ms"; a first line that begins with a letter is a heading.
// InvalidArgument names the line.
absl::StatusOr<Trace> ParseTrace(std::string_view text);

struct TraceShape {
  uint32_t models = 20;
  double zipf = 1.0;  // the k-th model is asked for in proportion to k^-zipf
  double requests_per_s = 1;
  double seconds = 3600;
  int64_t prefill_us = 100'000;  // means; each request's own is exponential
  int64_t decode_us = 200'000;
  uint64_t seed = 1;
};
// Poisson arrivals.
Trace MakeTrace(const TraceShape& shape);

struct ReplayOptions {
  std::string policy = "cost";  // of tier/policy.h, or "static": models stay where they are bound
  uint32_t devices = 1;
  uint64_t budget_bytes = 0;  // of each device, for weights
  uint64_t model_bytes = 0;
  uint32_t segments = 16;  // of a model
  double link_bytes_per_s = 0;
  int64_t ttft_goal_us = 0;  // a request whose first token comes later is not good
};

struct ReplayResult {
  std::string policy;
  uint64_t requests = 0;
  uint64_t good = 0;      // first token within the goal
  uint64_t switches = 0;  // found weights missing
  uint64_t refused = 0;   // "static": the model is bound nowhere
  double moved_bytes = 0;
  double useful_share = 0;  // of the budgets, over time: bytes of models' weights
  double goodput = 0;       // good requests a second
  int64_t ttft_p50_us = 0, ttft_p95_us = 0, ttft_p99_us = 0;  // of those that were served
};

// InvalidArgument for an unknown policy or a model that does not fit a device.
absl::StatusOr<ReplayResult> Replay(const Trace& trace, const ReplayOptions& options);

}  // namespace terrace::tier

#endif  // TERRACE_TIER_TRACE_REPLAY_H_
