#include "server/admin.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "obs/log_ring.h"
#include "obs/trace.h"
#include "os/process_memory.h"
#include "server/api_error.h"
#include "server/web_assets.h"
#include "tier/ledger.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kModels = "/admin/models/";

json::string Text(std::string_view text) {
  const std::string valid = ToValidUtf8(text);
  return json::string(valid.data(), valid.size());
}

int64_t CountFiles(const char* folder) {
  int64_t count = 0;
  if (DIR* open = opendir(folder)) {
    while (readdir(open) != nullptr) ++count;
    closedir(open);
  }
  return std::max<int64_t>(0, count - 2);  // . and ..
}

json::object ProcessJson(int64_t up_us) {
  json::object out = {{"pid", getpid()},
                      {"uptime_s", up_us / 1'000'000},
                      {"descriptors", CountFiles("/proc/self/fd")},
                      {"threads", CountFiles("/proc/self/task")}};
  if (auto memory = os::ReadProcessMemory(); memory.ok()) {
    out["rss_bytes"] = memory->rss_bytes;
    out["peak_rss_bytes"] = memory->peak_rss_bytes;
  }
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    out["cpu_s"] = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return out;
}

json::object ModelJson(const ModelListing& model, const tier::TierSnapshot& tiers,
                       const scheduler::SchedulerState& queue) {
  json::object out = {{"name", Text(model.name)},
                      {"state", Text(StateName(model.state))},
                      {"reason", Text(model.reason)},
                      {"max_context", model.max_context}};
  if (model.facts != nullptr) {
    out["architecture"] = Text(model.facts->architecture);
    out["quantization"] = Text(model.facts->quantization);
    out["fingerprint"] = Text(model.facts->fingerprint);
    out["bytes"] = model.facts->weight_bytes;
  }
  for (const tier::ModelState& state : tiers.models) {
    if (state.name != model.name) continue;
    out["bytes"] = state.bytes;
    out["resident_bytes"] = state.resident_bytes;
    out["host_bytes"] = state.host_bytes;
    out["loads"] = state.loads;
    out["evictions"] = state.evictions;
    out["last_used_us"] = state.last_used_us;
    if (!state.awaited.name.empty()) {
      out["awaits"] =
          json::object{{"store", Text(state.awaited.name)}, {"still_us", state.awaited.still_us}};
    }
    json::array segments;
    for (const tier::SegmentState& segment : state.segments) {
      const int now = segment.loading ? 1 : segment.pins > 0 ? 3 : segment.resident ? 2 : 0;
      segments.push_back(json::array{Text(segment.name), segment.bytes, now});
    }
    out["segments"] = std::move(segments);
  }
  for (const scheduler::ModelQueueState& state : queue.models) {
    if (state.model != model.name) continue;
    out["waiting"] = state.waiting;
    out["running"] = state.running;
  }
  return out;
}

json::array TiersJson(const tier::TierSnapshot& tiers) {
  constexpr std::string_view kNames[] = {"device", "host", "disk", "object", "remote"};
  json::array out;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    uint64_t used = 0;
    json::array lines;
    for (const tier::LedgerLine& line : tiers.ledger) {
      if (static_cast<size_t>(line.tier) != i) continue;
      used += line.bytes;
      lines.push_back(json::object{{"model", Text(line.owner.model)},
                                   {"tenant", Text(line.owner.tenant)},
                                   {"kind", Text(tier::Name(line.owner.kind))},
                                   {"bytes", line.bytes}});
    }
    const uint64_t budget = i == 0   ? tiers.device_budget_bytes
                            : i == 1 ? tiers.host_budget_bytes
                                     : 0;
    out.push_back(json::object{{"tier", Text(kNames[i])},
                               {"budget_bytes", budget},
                               {"used_bytes", used},
                               {"lines", std::move(lines)}});
  }
  return out;
}

json::array TenantsJson(const scheduler::SchedulerState& queue) {
  json::array out;
  for (const scheduler::TenantQueueState& tenant : queue.tenants) {
    out.push_back(json::object{{"tenant", Text(tenant.tenant.empty() ? "default" : tenant.tenant)},
                               {"waiting", tenant.waiting},
                               {"running", tenant.running},
                               {"computed_us", tenant.computed_us}});
  }
  return out;
}

std::string QueryValue(std::string_view query, std::string_view name) {
  for (const std::string_view part : Split(query, '&')) {
    const size_t equals = part.find('=');
    if (equals != std::string_view::npos && part.substr(0, equals) == name) {
      return std::string(part.substr(equals + 1));
    }
  }
  return "";
}

void Answer(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  exchange->access().error_code = error.code;
  exchange->Respond(ErrorResponse(error));
}

}  // namespace

Admin::Admin(AdminDeps deps) : deps_(std::move(deps)), started_us_(deps_.clock->NowUs()) {}

std::string Admin::StateJson() const {
  const tier::TierSnapshot tiers = deps_.tiers();
  const scheduler::SchedulerState queue = deps_.queue();
  json::array models, links;
  const std::vector<std::pair<Trial, bool>> trials = deps_.versions->Trials();
  for (const ModelListing& model : deps_.models->List()) {
    json::object about = ModelJson(model, tiers, queue);
    for (const auto& [trial, rolled_back] : trials) {
      if (trial.model != model.name) continue;
      about["traffic"] = rolled_back ? 0 : trial.traffic;
      about["rolled_back"] = rolled_back;
    }
    models.push_back(std::move(about));
  }
  for (const tier::LinkState& link : tiers.links) {
    links.push_back(json::object{{"name", Text(link.name)},
                                 {"bytes", link.bytes},
                                 {"transfers", link.transfers},
                                 {"queued", link.queued},
                                 {"bytes_per_s", link.bandwidth_bytes_per_s},
                                 {"latency_us", link.latency_us}});
  }
  const int64_t now_us = deps_.clock->NowUs();
  const json::object state = {
      {"time_us", deps_.clock->WallUs()},
      {"clock_us", now_us},
      {"version", TERRACE_VERSION},
      {"device", Text(deps_.device)},
      {"draining", queue.draining},
      {"process", ProcessJson(now_us - started_us_)},
      {"models", std::move(models)},
      {"tiers", TiersJson(tiers)},
      {"links", std::move(links)},
      {"totals", json::object{{"prompt_tokens", queue.prompt_tokens},
                              {"generated_tokens", queue.generated_tokens},
                              {"model_switches", queue.model_switches},
                              {"checksum_failures", tiers.checksum_failures}}},
      {"last_step_us", queue.last_step_us},
      {"tenants", TenantsJson(queue)},
      {"sensors", json::parse(SensorJson(deps_.sensors()))},
      {"traces", deps_.traces->size()}};
  return json::serialize(state);
}

void Admin::Logs(const ExchangePtr& exchange) const {
  const std::string after = QueryValue(exchange->request().query, "after");
  uint64_t number = 0, last = 0;
  std::from_chars(after.data(), after.data() + after.size(), number);
  const std::vector<std::string> lines = deps_.log->Lines(number, &last);
  exchange->Respond(
      {.body = fmt::format("{{\"last\":{},\"lines\":[{}]}}", last, fmt::join(lines, ","))});
}

void Admin::Act(const ExchangePtr& exchange, std::string_view rest) {
  const size_t slash = rest.rfind('/');
  const std::string_view name = rest.substr(0, slash);
  const std::string_view verb = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  auto done = [exchange](const absl::Status& status) {
    if (!status.ok()) return Answer(exchange, FromStatus(status));
    exchange->Respond({.body = "{\"status\":\"ok\"}"});
  };
  if (verb == "load") return deps_.control->Load(name, done);
  if (verb == "unload") return deps_.control->Unload(name, done);
  if (verb == "evict") return done(deps_.control->Evict(name));
  Answer(exchange, {.status = 404,
                    .code = "unknown_path",
                    .message = "A model can be asked to load, unload and evict."});
}

void Admin::Pages(const ExchangePtr& exchange) const {
  const std::string query(exchange->request().query);
  const std::string cells = QueryValue(query, "cells");
  size_t count = 64;
  if (!cells.empty()) std::from_chars(cells.data(), cells.data() + cells.size(), count);
  absl::StatusOr<std::string> body = deps_.pages
                                         ? deps_.pages(QueryValue(query, "model"), count)
                                         : absl::UnimplementedError("pages are not counted here");
  if (!body.ok()) return Answer(exchange, FromStatus(body.status()));
  exchange->Respond({.body = *std::move(body)});
}

void Admin::File(const ExchangePtr& exchange) {
  std::string_view path = exchange->request().path;
  if (path == "/") path = "/index.html";
  for (const WebAsset& asset : WebAssets()) {
    if (asset.path != path) continue;
    HttpResponse response;
    response.content_type = path.ends_with(".html")  ? "text/html; charset=utf-8"
                            : path.ends_with(".css") ? "text/css; charset=utf-8"
                                                     : "text/javascript; charset=utf-8";
    response.body.assign(reinterpret_cast<const char*>(asset.data), asset.bytes);
    response.headers = {{"Cache-Control", "no-cache"},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Content-Security-Policy",
                         "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "
                         "data:; frame-ancestors 'none'"}};
    return exchange->Respond(std::move(response));
  }
  Answer(exchange, {.status = 404,
                    .code = "unknown_path",
                    .message = "There is nothing here; the console is at /."});
}

void Admin::Handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const std::string_view path = request.path;
  if (path.starts_with("/v1/") || path == "/metrics" || path == "/health" || path == "/ready") {
    return deps_.openai->Handle(std::move(exchange));
  }
  const bool posts = request.method == "POST";
  if (!path.starts_with("/admin/")) {
    if (!posts) return File(exchange);
  } else if (posts) {
    if (path.starts_with(kModels)) return Act(exchange, path.substr(kModels.size()));
    if (path == "/admin/reload") {
      if (absl::Status status = deps_.reload(); !status.ok()) {
        return Answer(exchange, FromStatus(status));
      }
      return exchange->Respond({.body = "{\"status\":\"ok\"}"});
    }
  } else {
    if (path == "/admin/state") return exchange->Respond({.body = StateJson()});
    if (path == "/admin/logs") return Logs(exchange);
    if (path == "/admin/pages") return Pages(exchange);
    if (path == "/admin/traces") {
      HttpResponse response{.body = deps_.traces->PerfettoJson(QueryValue(request.query, "trace"))};
      response.headers.emplace_back("Content-Disposition",
                                    "attachment; filename=\"terrace-trace.json\"");
      return exchange->Respond(std::move(response));
    }
  }
  Answer(exchange, {.status = 404,
                    .code = "unknown_path",
                    .message = fmt::format("There is nothing at {}.", ToValidUtf8(path))});
}

}  // namespace terrace::server
