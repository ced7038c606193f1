#include "obs/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/text.h"

namespace terrace {
namespace {

bool IsHex(std::string_view text, size_t length) {
  const bool digits = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  // All zeros is no id.
  return digits && text.size() == length && text.find_first_not_of('0') != std::string_view::npos;
}

std::string Id(uint64_t seed, uint64_t number, uint64_t salt) {
  const uint64_t hash = Hash64(&number, sizeof number, seed ^ (salt * 0x9e3779b97f4a7c15u));
  return fmt::format("{:016x}", hash == 0 ? 1 : hash);
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : ToValidUtf8(text)) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

// One complete event ("ph": "X").
void Span(std::string_view name, size_t track, int64_t start_us, int64_t took_us,
          std::string_view arguments, std::string* out) {
  if (out->back() == '}') out->push_back(',');
  *out += fmt::format(
      "\n{{\"name\":{},\"cat\":\"request\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{},\"dur\":{}{}"
      "}}",
      Quoted(name), track, start_us, std::max<int64_t>(took_us, 0), arguments);
}

}  // namespace

TraceContext TraceContext::Continue(std::string_view traceparent, uint64_t seed, uint64_t number) {
  TraceContext context;
  context.span_id = Id(seed, number, 1);
  // version "-" trace id "-" parent id "-" flags; later versions may add more behind.
  const bool formed =
      traceparent.size() >= 55 && traceparent[2] == '-' && traceparent[35] == '-' &&
      traceparent[52] == '-' && traceparent.substr(0, 2) != "ff" &&
      (traceparent.size() == 55 || (traceparent[55] == '-' && traceparent.substr(0, 2) != "00"));
  if (formed && IsHex(traceparent.substr(3, 32), 32) && IsHex(traceparent.substr(36, 16), 16)) {
    context.trace_id = traceparent.substr(3, 32);
    context.parent_id = traceparent.substr(36, 16);
  } else {
    context.trace_id = Id(seed, number, 2) + Id(seed, number, 3);
  }
  return context;
}

void TraceBuffer::Add(RequestTrace trace) {
  absl::MutexLock lock(&mutex_);
  traces_.push_back(std::move(trace));
  while (traces_.size() > keep_) traces_.pop_front();
}

size_t TraceBuffer::size() const {
  absl::MutexLock lock(&mutex_);
  return traces_.size();
}

std::string TraceBuffer::PerfettoJson(std::string_view trace_id) const {
  absl::MutexLock lock(&mutex_);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  size_t track = 0;
  for (const RequestTrace& trace : traces_) {
    if (!trace_id.empty() && trace.context.trace_id != trace_id) continue;
    ++track;  // each request has a line of its own
    const std::string arguments = fmt::format(
        ",\"args\":{{\"request_id\":{},\"trace_id\":\"{}\",\"span_id\":\"{}\",\"parent_id\":\"{}\","
        "\"model\":{},\"status\":{},\"prompt_tokens\":{},\"completion_tokens\":{}}}",
        Quoted(trace.request_id), trace.context.trace_id, trace.context.span_id,
        trace.context.parent_id, Quoted(trace.model), trace.status, trace.prompt_tokens,
        trace.completion_tokens);
    Span(trace.name, track, trace.start_us, trace.end_us - trace.start_us, arguments, &out);
    // The parts end with the request: what was before them is the time to read and prepare it.
    int64_t at = trace.end_us - trace.decode_us - trace.prefill_us - trace.queue_us;
    at = std::max(at, trace.start_us);
    if (trace.queue_us > 0) Span("queue", track, at, trace.queue_us, "", &out);
    at += trace.queue_us;
    if (trace.prefill_us > 0) Span("prefill", track, at, trace.prefill_us, "", &out);
    if (trace.swap_us > 0) {
      Span("swap", track, at, std::min(trace.swap_us, trace.prefill_us), "", &out);
    }
    at += trace.prefill_us;
    if (trace.decode_us > 0) Span("decode", track, at, trace.decode_us, "", &out);
  }
  return out + "\n]}\n";
}

}  // namespace terrace
