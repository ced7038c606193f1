#include "server/front.h"

#include <fmt/format.h>

#include <charconv>
#include <exception>
#include <utility>

#include "base/text.h"
#include "obs/log.h"
#include "server/api_keys.h"
#include "server/failure.h"

namespace terrace::server {
namespace {

bool Under(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::optional<ApiError> ReadContract(std::string_view text, Caller* caller) {
  constexpr std::string_view kWait = "wait:", kEquivalent = "equivalent:";
  if (text.empty() || text == "swap") return std::nullopt;
  if (text == "warm-only") {
    caller->swap.warm_only = true;
    return std::nullopt;
  }
  if (text.starts_with(kWait)) {
    const std::string_view digits = text.substr(kWait.size());
    int32_t seconds = -1;
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
    if (ec == std::errc() && end == digits.data() + digits.size() && seconds >= 0 &&
        seconds <= 86'400) {
      caller->swap.max_wait_us = int64_t{seconds} * 1'000'000;
      return std::nullopt;
    }
  }
  if (text.starts_with(kEquivalent) && text.size() > kEquivalent.size()) {
    caller->equivalent = text.substr(kEquivalent.size());
    return std::nullopt;
  }
  return BadField("x-terrace-swap",
                  "X-Terrace-Swap is swap, warm-only, wait:SECONDS or equivalent:MODEL.");
}

}  // namespace

Front::Front(FrontOptions options, FrontDeps deps)
    : options_(std::move(options)), deps_(deps), pool_(options_.worker_threads) {}

Front::Need Front::NeedOf(const HttpRequest& request) {
  const std::string_view path = request.path;
  if (path == "/health" || path == "/ready" || Under(path, "/v2/health")) return Need::kNothing;
  if (request.door == Door::kMetrics) return Need::kNothing;
  if (request.door == Door::kAdmin) {
    // The console's own files; what they show is asked for with a key.
    return Under(path, "/admin") || Under(path, "/v1") || path == "/metrics" ? Need::kAdmin
                                                                             : Need::kNothing;
  }
  constexpr std::string_view kRepository = "/v2/repository/models/";
  if (path.starts_with(kRepository)) return Need::kAdmin;
  return Need::kInfer;
}

std::optional<ApiError> Front::CheckAddress(const HttpRequest& request) const {
  const CidrList& list = request.door == Door::kAdmin     ? options_.admin_allow
                         : request.door == Door::kMetrics ? options_.metrics_allow
                                                          : options_.allow;
  if (list.Allows(request.peer)) return std::nullopt;
  return ApiError{.status = 403,
                  .code = "address_not_allowed",
                  .message = "Requests from this address are not allowed."};
}

std::optional<ApiError> Front::Admit(bool needs_admin, HttpRequest* request) {
  if (auto error = CheckAddress(*request)) return error;
  const bool needed =
      options_.keys_needed == KeysNeeded::kAlways ||
      (options_.keys_needed == KeysNeeded::kAuto && deps_.keys != nullptr && !deps_.keys->empty());
  if (needed) {
    if (auto error = deps_.keys->Admit(needs_admin, request)) return error;
  } else {
    request->caller.admin = true;
    request->caller.sla = SlaClass::kRealtime;
  }
  return ReadService(request);
}

std::optional<ApiError> ReadService(HttpRequest* request) {
  const SlaClass best = request->caller.sla;
  const std::string_view asked = request->Header("x-terrace-sla");
  // Who does not say gets the usual class, or the key's if that is lower.
  SlaClass sla = std::max(best, SlaClass::kStandard);
  if (!request->caller.key.empty()) sla = best;
  if (!asked.empty()) {
    const std::optional<SlaClass> known = ParseSla(asked);
    if (!known) return BadField("x-terrace-sla", "X-Terrace-SLA is realtime, standard or batch.");
    if (*known < best) {
      return ApiError{.status = 403,
                      .code = "not_allowed",
                      .message = fmt::format("The API key's class is {}; it cannot ask for {}.",
                                             SlaName(best), asked)};
    }
    sla = *known;
  }
  request->caller.sla = sla;
  return ReadContract(request->Header("x-terrace-swap"), &request->caller);
}

HttpHandler* Front::HandlerOf(const HttpRequest& request) const {
  if (request.door == Door::kAdmin && deps_.admin != nullptr) return deps_.admin;
  if (request.door == Door::kApi) {
    if (Under(request.path, "/v2")) return deps_.kserve;
    if (Under(request.path, "/api")) return deps_.ollama;
  }
  return deps_.openai;
}

void Front::Handle(std::shared_ptr<Exchange> exchange) {
  HttpRequest& request = exchange->request();
  const Need need = NeedOf(request);
  std::optional<ApiError> error = CheckAddress(request);
  if (!error && need != Need::kNothing) error = Admit(need == Need::kAdmin, &request);
  if (error) return Refuse(exchange, *error);
  HttpHandler* handler = HandlerOf(request);
  // The OpenAI handler has a pool of its own.
  if (handler == deps_.openai || request.body.size() <= options_.inline_body_bytes) {
    return Run(handler, exchange);
  }
  pool_.Post([this, handler, exchange] {
    if (!exchange->gone()) Run(handler, exchange);
  });
}

void Front::Run(HttpHandler* handler, const std::shared_ptr<Exchange>& exchange) {
  try {
    handler->Handle(exchange);
  } catch (const std::exception& e) {
    deps_.runtime_log->Error("a request failed", {{"id", exchange->request().id},
                                                  {"error", std::string_view(e.what())}});
    Refuse(exchange, {.status = 500,
                      .code = "internal_error",
                      .message = "The server failed to prepare this request; its log says more."});
  }
}

void Front::Refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  HttpResponse response = FailureResponse(exchange->request().path, error);
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  exchange->access().error_code = error.code;
  exchange->Respond(std::move(response));
}

}  // namespace terrace::server
