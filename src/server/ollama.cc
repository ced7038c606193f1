#include "server/ollama.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"
#include "server/json_fields.h"
#include "server/json_text.h"
#include "server/ollama_translate.h"
#include "server/relay_exchange.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

std::string DetailsJson(const ModelFacts* facts) {
  const std::string family = facts != nullptr ? facts->architecture : "";
  return fmt::format(
      "{{\"parent_model\":\"\",\"format\":\"gguf\",\"family\":{0},\"families\":[{0}],"
      "\"parameter_size\":{1},\"quantization_level\":{2}}}",
      JsonString(ToValidUtf8(family)),
      JsonString(ToValidUtf8(facts != nullptr ? facts->size_label : "")),
      JsonString(facts != nullptr ? facts->quantization : ""));
}

void Answer(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  exchange->access().error_code = error.code;
  exchange->Respond(OllamaError(error));
}

// The body as an object and its field "model" (or, as old clients say, "name").
std::optional<ApiError> ReadBody(Exchange* exchange, json::value* body, std::string* model) {
  if (auto error = ParseObject(exchange->request().body, body)) return error;
  exchange->request().body = std::string();
  const json::object& object = body->get_object();
  JsonFields fields(object);
  if (object.contains("name") && !object.contains("model")) {
    fields.RequiredString("name", model);
  } else {
    fields.RequiredString("model", model);
  }
  return fields.TakeError();
}

// The answer of /v1/embeddings as Ollama's: `single`: of the older /api/embeddings.
class EmbedReceiver final : public AnswerReceiver {
 public:
  EmbedReceiver(std::shared_ptr<Exchange> exchange, std::string asked, bool single)
      : exchange_(std::move(exchange)), asked_(std::move(asked)), single_(single) {}

  void OnWhole(const HttpResponse& response) override {
    json::error_code ec;
    json::value parsed = json::parse(response.body, ec);
    if (response.status != 200 || ec || !parsed.is_object()) {
      ApiError error{.status = response.status, .code = "failed", .message = "It failed."};
      if (!ec && parsed.is_object() && parsed.get_object().contains("error")) {
        const json::value& told = parsed.at("error");
        if (told.is_object() && told.get_object().contains("message")) {
          error.message = std::string(told.at("message").as_string());
        }
      }
      return Answer(exchange_, error);
    }
    json::array vectors;
    for (json::value& each : parsed.at("data").as_array()) {
      vectors.push_back(std::move(each.at("embedding")));
    }
    json::object out = {{"model", json::string(asked_.data(), asked_.size())}};
    if (single_) {
      out = {{"embedding", vectors.empty() ? json::value(json::array()) : vectors[0]}};
    } else {
      out["embeddings"] = std::move(vectors);
      out["prompt_eval_count"] = parsed.at("usage").at("prompt_tokens");
    }
    exchange_->Respond({.body = json::serialize(out)});
  }
  bool OnEvent(std::string_view) override { return false; }
  void OnEnd(bool) override {}

 private:
  const std::shared_ptr<Exchange> exchange_;
  const std::string asked_;
  const bool single_;
};

}  // namespace

std::string OllamaApi::Served(std::string_view name) {
  constexpr std::string_view kTag = ":latest";
  const std::vector<ModelListing> models = deps_.models->List();
  auto has = [&](std::string_view wanted) {
    return std::any_of(models.begin(), models.end(),
                       [&](const ModelListing& model) { return model.name == wanted; });
  };
  if (!has(name) && name.ends_with(kTag)) {
    const std::string_view bare = name.substr(0, name.size() - kTag.size());
    if (has(bare)) return std::string(bare);
  }
  return std::string(name);
}

void OllamaApi::Handle(std::shared_ptr<Exchange> exchange) {
  struct Route {
    std::string_view path;
    std::string_view method;
    void (*call)(OllamaApi*, const ExchangePtr&);
  };
  static constexpr Route kRoutes[] = {
      {"/api/chat", "POST", [](OllamaApi* self, const ExchangePtr& e) { self->Ask(e, true); }},
      {"/api/generate", "POST", [](OllamaApi* self, const ExchangePtr& e) { self->Ask(e, false); }},
      {"/api/embed", "POST", [](OllamaApi* self, const ExchangePtr& e) { self->Embed(e, false); }},
      {"/api/embeddings", "POST",
       [](OllamaApi* self, const ExchangePtr& e) { self->Embed(e, true); }},
      {"/api/show", "POST", [](OllamaApi* self, const ExchangePtr& e) { self->Show(e); }},
      {"/api/tags", "GET", [](OllamaApi* self, const ExchangePtr& e) { self->Tags(e); }},
      {"/api/ps", "GET", [](OllamaApi* self, const ExchangePtr& e) { self->Running(e); }},
      {"/api/version", "GET",
       [](OllamaApi*, const ExchangePtr& e) {
         e->Respond({.body = fmt::format("{{\"version\":\"{}\"}}", TERRACE_VERSION)});
       }},
  };
  const HttpRequest& request = exchange->request();
  for (const Route& route : kRoutes) {
    if (route.path != request.path) continue;
    if (route.method == request.method) return route.call(this, exchange);
    return Answer(exchange,
                  {.status = 405,
                   .code = "method_not_allowed",
                   .message = fmt::format("{} takes {} only.", route.path, route.method)});
  }
  Answer(exchange,
         {.status = 404,
          .code = "unknown_path",
          .message = fmt::format("There is nothing at {}; of Ollama's API there are chat, "
                                 "generate, embed, tags, show, ps and version.",
                                 ToValidUtf8(request.path))});
}

void OllamaApi::Ask(const ExchangePtr& exchange, bool chat) {
  json::value body;
  std::string asked;
  if (auto error = ReadBody(exchange.get(), &body, &asked)) return Answer(exchange, *error);
  const json::object& object = body.get_object();
  const std::string served = Served(asked);
  OllamaJob job;
  auto error = chat ? TranslateOllamaChat(object, served, &job)
                    : TranslateOllamaGenerate(object, served, &job);
  if (error) return Answer(exchange, *error);
  if (job.empty) {
    const json::value* keep = object.if_contains("keep_alive");
    const bool evict = keep != nullptr && ((keep->is_int64() && keep->get_int64() == 0) ||
                                           (keep->is_double() && keep->get_double() == 0) ||
                                           (keep->is_string() && (*keep == "0" || *keep == "0s")));
    return LoadOnly(exchange, asked, served, chat, evict);
  }
  auto receiver = MakeOllamaReceiver(exchange, deps_.clock, std::move(asked), chat);
  deps_.api->Handle(std::make_shared<RelayExchange>(
      RelayRequest(exchange->request(), std::move(job.path), std::move(job.body)),
      std::move(receiver), exchange));
}

void OllamaApi::LoadOnly(const ExchangePtr& exchange, const std::string& asked,
                         const std::string& served, bool chat, bool evict) {
  auto answer = [exchange, asked, chat, evict, clock = deps_.clock](const absl::Status& status) {
    if (!status.ok()) return Answer(exchange, FromStatus(status));
    exchange->Respond(
        {.body = fmt::format(
             "{{\"model\":{},\"created_at\":\"{}\",{},\"done\":true,"
             "\"done_reason\":\"{}\"}}",
             JsonString(ToValidUtf8(asked)), OllamaTime(clock->WallUs()),
             chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"\"}" : "\"response\":\"\"",
             evict ? "unload" : "load")});
  };
  if (evict) return answer(deps_.control->Evict(served));
  deps_.control->Load(served, answer);
}

void OllamaApi::Embed(const ExchangePtr& exchange, bool single) {
  json::value body;
  std::string asked;
  if (auto error = ReadBody(exchange.get(), &body, &asked)) return Answer(exchange, *error);
  const std::string served = Served(asked);
  const json::object& object = body.get_object();
  const json::value* input = object.if_contains(single ? "prompt" : "input");
  json::object ask = {{"model", json::string(served.data(), served.size())}};
  if (input != nullptr) ask["input"] = *input;
  if (const json::value* dimensions = object.if_contains("dimensions")) {
    ask["dimensions"] = *dimensions;
  }
  deps_.api->Handle(std::make_shared<RelayExchange>(
      RelayRequest(exchange->request(), "/v1/embeddings", json::serialize(ask)),
      std::make_shared<EmbedReceiver>(exchange, std::move(asked), single), exchange));
}

void OllamaApi::Tags(const ExchangePtr& exchange) {
  std::string body = "{\"models\":[";
  for (const ModelListing& model : deps_.models->List()) {
    if (body.back() == '}') body.push_back(',');
    const ModelFacts* facts = model.facts.get();
    body += fmt::format(
        "{{\"name\":{0},\"model\":{0},\"modified_at\":\"{1}\",\"size\":{2},\"digest\":{3},"
        "\"details\":{4}}}",
        JsonString(model.name), OllamaTime(model.created * 1'000'000),
        facts != nullptr ? facts->weight_bytes : 0,
        JsonString(facts != nullptr ? facts->fingerprint : ""), DetailsJson(facts));
  }
  exchange->Respond({.body = body + "]}"});
}

void OllamaApi::Show(const ExchangePtr& exchange) {
  json::value body;
  std::string asked;
  if (auto error = ReadBody(exchange.get(), &body, &asked)) return Answer(exchange, *error);
  const std::string served = Served(asked);
  for (const ModelListing& model : deps_.models->List()) {
    if (model.name != served) continue;
    const ModelFacts* facts = model.facts.get();
    std::string info;
    if (facts != nullptr) {
      for (const auto& [key, value] : facts->metadata) {
        info += fmt::format("{}{}:{}", info.empty() ? "" : ",", JsonString(key), value);
      }
    }
    const std::string text = facts != nullptr ? ToValidUtf8(facts->chat_template) : "";
    const bool tools = text.find("tools") != std::string::npos;
    return exchange->Respond(
        {.body = fmt::format("{{\"modelfile\":\"\",\"parameters\":\"\",\"template\":{},"
                             "\"modified_at\":\"{}\",\"details\":{},\"model_info\":{{{}}},"
                             "\"capabilities\":[\"completion\"{}]}}",
                             JsonString(text), OllamaTime(model.created * 1'000'000),
                             DetailsJson(facts), info, tools ? ",\"tools\"" : "")});
  }
  Answer(exchange, {.status = 404,
                    .code = "model_not_found",
                    .message = fmt::format("model '{}' not found", ToValidUtf8(asked))});
}

void OllamaApi::Running(const ExchangePtr& exchange) {
  std::string body = "{\"models\":[";
  const tier::TierSnapshot snapshot = deps_.tiers ? deps_.tiers() : tier::TierSnapshot();
  for (const ModelListing& model : deps_.models->List()) {
    for (const tier::ModelState& state : snapshot.models) {
      if (state.name != model.name || state.resident_bytes == 0) continue;
      if (body.back() == '}') body.push_back(',');
      // It stays until somebody needs its place: no time is known.
      body += fmt::format(
          "{{\"name\":{0},\"model\":{0},\"size\":{1},\"size_vram\":{2},\"digest\":{3},"
          "\"details\":{4},\"context_length\":{5},\"expires_at\":\"{6}\"}}",
          JsonString(model.name), state.bytes, state.resident_bytes,
          JsonString(model.facts != nullptr ? model.facts->fingerprint : ""),
          DetailsJson(model.facts.get()), model.max_context, "9999-12-31T23:59:59Z");
    }
  }
  exchange->Respond({.body = body + "]}"});
}

}  // namespace terrace::server
