#include "server/api_handler.h"

#include <fmt/format.h>

#include <array>
#include <exception>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/status.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "server/chat_translation.h"
#include "server/json_text.h"
#include "server/messages_writer.h"
#include "server/openai_plan.h"
#include "server/responses_writer.h"

namespace terrace::server {
namespace {

constexpr std::string_view kModelPath = "/v1/models/";

void AppendModel(const ModelListing& model, std::string* out) {
  *out += "{\"id\":";
  AppendJsonString(model.name, out);
  *out +=
      fmt::format(",\"object\":\"model\",\"created\":{},\"owned_by\":\"terrace\",\"state\":\"{}\"",
                  model.created, StateName(model.state));
  if (model.max_context > 0) *out += fmt::format(",\"max_model_len\":{}", model.max_context);
  if (!model.reason.empty()) {
    *out += ",\"reason\":";
    AppendJsonString(model.reason, out);
  }
  *out += "}";
}

}  // namespace

ApiHandler::ApiHandler(ApiOptions options, ApiDeps deps)
    : options_(options), deps_(std::move(deps)), pool_(options.worker_threads) {}

template <typename F>
void ApiHandler::Guard(const std::shared_ptr<Exchange>& exchange, F&& task) {
  // Libraries may throw, for want of memory if nothing else; that must cost one request only.
  try {
    task();
  } catch (const std::exception& e) {
    deps_.runtime_log->Error("a request failed", {{"id", exchange->request().id},
                                                  {"error", std::string_view(e.what())}});
    Answer(exchange, {.status = 500,
                      .code = "internal_error",
                      .message = "The server failed to prepare this request; its log says more."});
  }
}

void ApiHandler::Handle(std::shared_ptr<Exchange> exchange) {
  Guard(exchange, [&] { Dispatch(exchange); });
}

ApiHandler::Route ApiHandler::FindRoute(const HttpRequest& request,
                                        std::string_view* allowed) const {
  struct Entry {
    std::string_view path;
    std::string_view method;
    Route route;
    bool on_metrics_door;
  };
  static constexpr std::array<Entry, 12> kRoutes = {{
      {"/v1/chat/completions", "POST", &ApiHandler::Chat, false},
      {"/v1/completions", "POST", &ApiHandler::Complete, false},
      {"/v1/responses", "POST", &ApiHandler::Responses, false},
      {"/v1/messages", "POST", &ApiHandler::Messages, false},
      {"/v1/embeddings", "POST", &ApiHandler::Embeddings, false},
      {"/v1/rerank", "POST", &ApiHandler::Rerank, false},
      {"/v1/models", "GET", &ApiHandler::ListModels, false},
      {"/tokenize", "POST", &ApiHandler::Tokenize, false},
      {"/detokenize", "POST", &ApiHandler::Detokenize, false},
      {"/health", "GET", &ApiHandler::Health, true},
      {"/ready", "GET", &ApiHandler::Ready, true},
      {"/metrics", "GET", &ApiHandler::MetricsText, true},
  }};
  const bool metrics_door = request.door == Door::kMetrics;
  for (const Entry& entry : kRoutes) {
    if (entry.path != request.path || (metrics_door && !entry.on_metrics_door)) continue;
    if (entry.path == "/metrics" && !metrics_door && !options_.metrics_on_api_port) continue;
    *allowed = entry.method;
    return entry.method == request.method ? entry.route : nullptr;
  }
  if (!metrics_door && request.path.starts_with(kModelPath)) {
    *allowed = "GET";
    return request.method == "GET" ? &ApiHandler::ShowModel : nullptr;
  }
  return nullptr;
}

void ApiHandler::Dispatch(const std::shared_ptr<Exchange>& exchange) {
  std::string_view allowed;
  const HttpRequest& request = exchange->request();
  if (Route route = FindRoute(request, &allowed)) return (this->*route)(exchange);
  ApiError error;
  if (allowed.empty()) {
    error = {.status = 404,
             .code = "unknown_path",
             .message = fmt::format("There is nothing at {}; the API is at /v1/chat/completions, "
                                    "/v1/completions and /v1/models.",
                                    request.path)};
  } else {
    error = {.status = 405,
             .code = "method_not_allowed",
             .message = fmt::format("{} takes {} only.", request.path, allowed)};
  }
  exchange->access().error_code = error.code;
  HttpResponse response = ErrorResponse(error);
  if (!allowed.empty()) response.headers.emplace_back("Allow", allowed);
  exchange->Respond(std::move(response));
}

void ApiHandler::Answer(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  exchange->access().error_code = error.code;
  const bool messages = exchange->request().path == "/v1/messages";
  exchange->Respond(messages ? MessagesError(error) : ErrorResponse(error));
}

void ApiHandler::Health(const std::shared_ptr<Exchange>& exchange) {
  exchange->Respond({.body = "{\"status\":\"ok\"}"});
}

bool ApiHandler::ready() const {
  if (draining_.load()) return false;
  for (const ModelListing& model : deps_.models->List()) {
    if (model.state != ModelStateKind::kFailed && model.state != ModelStateKind::kUnloaded) {
      return true;
    }
  }
  return false;
}

void ApiHandler::Ready(const std::shared_ptr<Exchange>& exchange) {
  size_t usable = 0, failed = 0;
  for (const ModelListing& model : deps_.models->List()) {
    if (model.state == ModelStateKind::kUnloaded) continue;
    ++(model.state == ModelStateKind::kFailed ? failed : usable);
  }
  const bool draining = draining_.load();
  const bool ready = !draining && usable > 0;
  exchange->Respond({.status = ready ? 200 : 503,
                     .body = fmt::format("{{\"status\":\"{}\",\"models\":{},\"failed_models\":{}}}",
                                         draining ? "draining"
                                         : ready  ? "ready"
                                                  : "no model can be served",
                                         usable, failed)});
}

void ApiHandler::MetricsText(const std::shared_ptr<Exchange>& exchange) {
  if (deps_.on_scrape) {
    absl::MutexLock lock(&scrape_mutex_);
    deps_.on_scrape();
  }
  exchange->Respond(
      {.content_type = std::string(Metrics::kContentType), .body = deps_.metrics->Render()});
}

void ApiHandler::ListModels(const std::shared_ptr<Exchange>& exchange) {
  std::string body = "{\"object\":\"list\",\"data\":[";
  bool first = true;
  for (const ModelListing& model : deps_.models->List()) {
    if (!first) body.push_back(',');
    first = false;
    AppendModel(model, &body);
  }
  body += "]}";
  exchange->Respond({.body = std::move(body)});
}

void ApiHandler::ShowModel(const std::shared_ptr<Exchange>& exchange) {
  const std::string name = exchange->request().path.substr(kModelPath.size());
  std::string names;
  for (const ModelListing& model : deps_.models->List()) {
    if (model.name == name) {
      std::string body;
      AppendModel(model, &body);
      return exchange->Respond({.body = std::move(body)});
    }
    names += (names.empty() ? "" : ", ") + model.name;
  }
  Answer(exchange,
         {.status = 404,
          .code = "model_not_found",
          .message = fmt::format("There is no model \"{}\"; this server has: {}.", name, names),
          .param = "model"});
}

void ApiHandler::Prepare(const std::shared_ptr<Exchange>& exchange, std::function<void()> step) {
  if (exchange->request().body.size() <= options_.inline_body_bytes) return step();
  OnPool(exchange, std::move(step));
}

void ApiHandler::OnPool(const std::shared_ptr<Exchange>& exchange, std::function<void()> step) {
  pool_.Post([this, exchange, step = std::move(step)] {
    if (!exchange->gone()) Guard(exchange, step);  // else the client gave up while waiting
  });
}

void ApiHandler::WithModel(const std::shared_ptr<Exchange>& exchange, const std::string& asked,
                           std::function<void(std::shared_ptr<const ServedModel>)> next) {
  const std::string name = deps_.route ? deps_.route(exchange->request(), asked) : asked;
  if (auto model = deps_.models->TryGet(name)) {
    exchange->access().model = model->name();
    return next(std::move(model));
  }
  using Opened = absl::StatusOr<std::shared_ptr<const ServedModel>>;
  deps_.models->Open(name, [this, exchange, next = std::move(next)](const Opened& opened) {
    if (!opened.ok()) {
      ApiError error = FromStatus(opened.status());
      if (opened.status().code() != absl::StatusCode::kNotFound) {
        error.status = 503;
        error.code = "model_unavailable";
      }
      error.param = "model";
      return Answer(exchange, error);
    }
    pool_.Post([this, exchange, next, model = *opened] {
      if (exchange->gone()) return;
      exchange->access().model = model->name();
      Guard(exchange, [&] { next(model); });
    });
  });
}

// Parses the body of `exchange` with `parse` into a Body, or answers what is wrong with it.
template <typename Body, typename Parse>
std::shared_ptr<Body> ApiHandler::Parsed(const std::shared_ptr<Exchange>& exchange,
                                         const Parse& parse) {
  auto request = std::make_shared<Body>();
  const std::optional<ApiError> error = parse(exchange->request().body, request.get());
  exchange->request().body = std::string();  // it may be large
  if (!error) return request;
  Answer(exchange, *error);
  return nullptr;
}

void ApiHandler::Chat(const std::shared_ptr<Exchange>& exchange) {
  ChatAs(exchange, Api::kChat, ParseChatRequest);
}
void ApiHandler::Responses(const std::shared_ptr<Exchange>& exchange) {
  ChatAs(exchange, Api::kResponses, ParseResponsesRequest);
}
void ApiHandler::Messages(const std::shared_ptr<Exchange>& exchange) {
  ChatAs(exchange, Api::kMessages, ParseMessagesRequest);
}

void ApiHandler::ChatAs(const std::shared_ptr<Exchange>& exchange, Api api,
                        std::optional<ApiError> (*parse)(std::string_view, ChatRequest*)) {
  Prepare(exchange, [this, exchange, api, parse] {
    auto request = Parsed<ChatRequest>(exchange, parse);
    if (request == nullptr) return;
    WithModel(exchange, request->params.model, [this, exchange, api, request](auto model) {
      auto start = [this, exchange, api, request, model] {
        StartChat(exchange, api, std::move(*request), model);
      };
      const bool grammar = request->params.format.kind != AnswerFormat::Kind::kText ||
                           request->tools.choice != ToolChoice::kNone;
      grammar ? OnPool(exchange, start) : start();
    });
  });
}

void ApiHandler::Complete(const std::shared_ptr<Exchange>& exchange) {
  Prepare(exchange, [this, exchange] {
    auto request = Parsed<CompletionRequest>(exchange, ParseCompletionRequest);
    if (request == nullptr) return;
    WithModel(exchange, request->params.model, [this, exchange, request](auto model) {
      auto start = [this, exchange, request, model] {
        StartCompletion(exchange, std::move(*request), model);
      };
      const bool grammar = request->params.format.kind != AnswerFormat::Kind::kText;
      grammar ? OnPool(exchange, start) : start();
    });
  });
}

void ApiHandler::Embeddings(const std::shared_ptr<Exchange>& exchange) {
  Embed(exchange, ParseEmbeddingRequest);
}
void ApiHandler::Rerank(const std::shared_ptr<Exchange>& exchange) {
  Embed(exchange, ParseRerankRequest);
}

void ApiHandler::Embed(const std::shared_ptr<Exchange>& exchange,
                       std::optional<ApiError> (*parse)(std::string_view, EmbeddingRequest*)) {
  Prepare(exchange, [this, exchange, parse] {
    auto request = Parsed<EmbeddingRequest>(exchange, parse);
    if (request == nullptr) return;
    WithModel(exchange, request->model, [this, exchange, request](auto model) {
      if (draining_.load()) return AnswerDraining(exchange);
      StartEmbedding(std::move(*request), std::move(model), NewId(Api::kEmbedding), deps_.scheduler,
                     exchange);
    });
  });
}

void ApiHandler::AnswerDraining(const std::shared_ptr<Exchange>& exchange) {
  Answer(exchange, {.status = 503,
                    .code = "shutting_down",
                    .message = "The server is shutting down; send the request again soon.",
                    .retry_after_s = 5});
}

void ApiHandler::Tokenize(const std::shared_ptr<Exchange>& exchange) {
  Prepare(exchange, [this, exchange] {
    auto request = Parsed<TokenizeRequest>(exchange, ParseTokenizeRequest);
    if (request == nullptr) return;
    WithModel(exchange, request->model, [this, exchange, request](const auto& model) {
      AnswerTokenize(exchange, *request, *model);
    });
  });
}

void ApiHandler::Detokenize(const std::shared_ptr<Exchange>& exchange) {
  Prepare(exchange, [this, exchange] {
    auto request = Parsed<DetokenizeRequest>(exchange, ParseDetokenizeRequest);
    if (request == nullptr) return;
    WithModel(exchange, request->model, [this, exchange, request](const auto& model) {
      AnswerDetokenize(exchange, *request, *model);
    });
  });
}

void ApiHandler::StartChat(const std::shared_ptr<Exchange>& exchange, Api api, ChatRequest request,
                           std::shared_ptr<const ServedModel> model) {
  GenerationPlan plan;
  std::unique_ptr<AnswerWriter> writer;
  const std::string id = NewId(api);
  if (api == Api::kResponses) {
    writer = std::make_unique<ResponsesWriter>(id, deps_.clock->WallUs() / 1'000'000, model->name(),
                                               request);
  }
  if (auto error = PlanChat(std::move(request), std::move(model), &plan)) {
    return Answer(exchange, *error);
  }
  if (api == Api::kMessages) {
    writer = std::make_unique<MessagesWriter>(id, plan.model->name(),
                                              static_cast<int32_t>(plan.prompts[0].size()));
  }
  Generate(exchange, api, std::move(plan), std::move(writer));
}

void ApiHandler::StartCompletion(const std::shared_ptr<Exchange>& exchange,
                                 CompletionRequest request,
                                 std::shared_ptr<const ServedModel> model) {
  GenerationPlan plan;
  if (auto error = PlanCompletion(std::move(request), std::move(model), &plan)) {
    return Answer(exchange, *error);
  }
  Generate(exchange, Api::kCompletion, std::move(plan), nullptr);
}

void ApiHandler::Generate(const std::shared_ptr<Exchange>& exchange, Api api, GenerationPlan plan,
                          std::unique_ptr<AnswerWriter> writer) {
  if (draining_.load()) return AnswerDraining(exchange);
  if (writer == nullptr) {
    writer = std::make_unique<ResponseWriter>(
        api, NewId(api), deps_.clock->WallUs() / 1'000'000, plan.model->name(),
        plan.params.sampling.top_logprobs.has_value(), plan.params.include_usage);
  }
  Generation::Start(std::move(plan), std::move(writer), deps_.scheduler, exchange);
}

void ApiHandler::AnswerTokenize(const std::shared_ptr<Exchange>& exchange,
                                const TokenizeRequest& request, const ServedModel& model) {
  absl::StatusOr<std::vector<int32_t>> ids;
  if (request.chat) {
    auto prompt = model.EncodeChat(*request.chat);
    ids = prompt.ok() ? std::move(prompt->ids)
                      : absl::StatusOr<std::vector<int32_t>>(prompt.status());
  } else {
    ids = model.EncodeText(request.text, request.add_special, request.parse_special);
  }
  if (!ids.ok()) {
    return Answer(exchange, PromptError(ids.status(), request.chat ? "messages" : "prompt"));
  }
  exchange->Respond({.body = fmt::format("{{\"tokens\":[{}],\"count\":{},\"max_model_len\":{}}}",
                                         fmt::join(*ids, ","), ids->size(), model.max_context())});
}

void ApiHandler::AnswerDetokenize(const std::shared_ptr<Exchange>& exchange,
                                  const DetokenizeRequest& request, const ServedModel& model) {
  if (auto error = CheckIds(request.ids, "tokens", model.vocab_size())) {
    return Answer(exchange, *error);
  }
  std::string body = "{\"prompt\":";
  AppendJsonString(Decode(model.tokenizer(), request.ids, {.render_special = true}), &body);
  body += "}";
  exchange->Respond({.body = std::move(body)});
}

std::string ApiHandler::NewId(Api api) {
  const uint64_t number = next_id_.fetch_add(1, std::memory_order_relaxed);
  static constexpr std::array<std::string_view, 5> kPrefixes = {"chatcmpl-", "cmpl-", "resp_",
                                                                "msg_", "embd-"};
  return fmt::format("{}{:016x}{:08x}", kPrefixes[static_cast<size_t>(api)],
                     Hash64(&number, sizeof(number), options_.id_seed), number & 0xffffffffu);
}

}  // namespace terrace::server
