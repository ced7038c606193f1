// What is kept of a request once it is over: metrics, the access log, its trace.
#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "server/http_connection.h"

namespace terrace::server {

void HttpConnection::RecordTrace(int status, bool gone) const {
  if (shared_->deps.traces == nullptr || !exchange_) return;
  const HttpRequest& request = exchange_->request();
  if (request.method != "POST") return;  // what is asked by GET is not worth a place
  RequestTrace trace{.context = trace_,
                     .request_id = request.id,
                     .name = request.path,
                     .status = status,
                     .start_us = started_us_,
                     .end_us = shared_->deps.clock->NowUs()};
  if (!gone) {
    const AccessRecord& record = exchange_->access();
    trace.model = record.model;
    trace.queue_us = record.queue_us;
    trace.swap_us = record.swap_us;
    trace.prefill_us = record.prefill_us;
    trace.decode_us = record.decode_us;
    trace.prompt_tokens = record.prompt_tokens;
    trace.completion_tokens = record.completion_tokens;
  }
  shared_->deps.traces->Add(std::move(trace));
}

void HttpConnection::FinishExchange() {
  if (!exchange_) return;
  const HttpDeps& deps = shared_->deps;
  const bool gone = exchange_->gone() || aborted_;
  exchange_->MarkGone();  // later calls do nothing
  // 499: the client left before the answer was complete.
  const int status = gone ? 499 : status_;
  const int64_t took_us = deps.clock->NowUs() - started_us_;
  RecordTrace(status, gone);
  const AccessRecord& record = exchange_->access();
  const HttpRequest& request = exchange_->request();
  if (!gone && deps.on_done) deps.on_done(record, status);
  const std::string status_text = fmt::format("{}", status);
  // The handler of a client that has gone may still be at work on its record.
  if (request.caller.ticket != nullptr) {
    request.caller.ticket->OnDone(gone ? AccessRecord() : record);
  }
  if (!gone && !record.model.empty()) {
    deps.metrics->Observe(MetricId::kRequestSeconds, {record.model},
                          static_cast<double>(took_us) * 1e-6);
  }
  deps.metrics->Count(MetricId::kRequests, {gone ? "" : record.model, status_text});
  if (!gone && !record.error_code.empty()) {
    deps.metrics->Count(MetricId::kErrors, {record.error_code});
  }
  if (gone) {
    deps.access_log->Info("request", {{"id", request.id},
                                      {"peer", request.peer},
                                      {"method", log_method_},
                                      {"path", request.path},
                                      {"status", status},
                                      {"bytes", sent_bytes_},
                                      {"total_us", took_us},
                                      {"trace", trace_.trace_id}});
  } else {
    deps.access_log->Info("request", {{"id", request.id},
                                      {"peer", request.peer},
                                      {"method", log_method_},
                                      {"path", request.path},
                                      {"status", status},
                                      {"bytes", sent_bytes_},
                                      {"total_us", took_us},
                                      {"key", request.caller.key},
                                      {"model", record.model},
                                      {"error", record.error_code},
                                      {"prompt_tokens", record.prompt_tokens},
                                      {"completion_tokens", record.completion_tokens},
                                      {"cached_tokens", record.cached_tokens},
                                      {"restored_tokens", record.restored_tokens},
                                      {"kv", record.kv},
                                      {"queue_us", record.queue_us},
                                      {"swap_us", record.swap_us},
                                      {"moved_bytes", record.moved_bytes},
                                      {"prefill_us", record.prefill_us},
                                      {"decode_us", record.decode_us},
                                      {"trace", trace_.trace_id}});
  }
  exchange_.reset();
  sent_bytes_ = 0;
  status_ = 0;
  shared_->ExchangeEnds();
}

}  // namespace terrace::server
