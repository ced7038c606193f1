// Traces of requests: W3C trace context in and out, the last requests kept with the times of their
// parts, and all of them as Chrome/Perfetto JSON.
// Formats: W3C Trace Context level 1; the Trace Event Format of Chrome's tracing.
#ifndef TERRACE_OBS_TRACE_H_
#define TERRACE_OBS_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace terrace {

struct TraceContext {
  std::string trace_id;   // 32 hex digits
  std::string parent_id;  // the caller's span, 16 hex digits; empty: none
  std::string span_id;    // ours, 16 hex digits

  bool valid() const { return !trace_id.empty(); }
  // The value of `traceparent` for an answer, or for calls made on the request's behalf.
  std::string Header() const { return "00-" + trace_id + "-" + span_id + "-01"; }

  // Continues the trace of a `traceparent` header, or begins one if it is absent or not
  // well-formed. Ids come from `seed` and `number`, which must not repeat.
  static TraceContext Continue(std::string_view traceparent, uint64_t seed, uint64_t number);
};

// Times in microseconds on the clock of whoever records.
struct RequestTrace {
  TraceContext context;
  std::string request_id;
  std::string name;  // the path
  std::string model;
  int status = 0;
  int64_t start_us = 0;
  int64_t end_us = 0;
  int64_t queue_us = 0;
  int64_t swap_us = 0;  // within prefill
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

// The last requests. Thread-safe.
class TraceBuffer {
 public:
  explicit TraceBuffer(size_t keep) : keep_(keep) {}

  void Add(RequestTrace trace);
  // All that are kept, oldest first; of one trace if `trace_id` is not empty.
  std::string PerfettoJson(std::string_view trace_id = "") const;
  size_t size() const;

 private:
  const size_t keep_;
  mutable absl::Mutex mutex_;
  std::deque<RequestTrace> traces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace

#endif  // TERRACE_OBS_TRACE_H_
