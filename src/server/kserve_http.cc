#include "server/kserve_http.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/text.h"
#include "server/json_text.h"
#include "server/kserve_json.h"

namespace terrace::server::kserve {
namespace {

constexpr std::string_view kPrefix = "/v2";

ApiError UnknownPath(std::string_view path) {
  return {.status = 404,
          .code = "unknown_path",
          .message = fmt::format("There is nothing at {}; the protocol's paths are /v2/health/..., "
                                 "/v2/models/... and /v2/repository/....",
                                 ToValidUtf8(path))};
}

std::string TensorsJson(std::span<const TensorInfo> tensors) {
  std::string out;
  for (const TensorInfo& each : tensors) {
    out += fmt::format("{}{{\"name\":\"{}\",\"datatype\":\"{}\",\"shape\":[{}]}}",
                       out.empty() ? "" : ",", each.name, each.datatype, each.is_list ? -1 : 1);
  }
  return out;
}

std::string ConfigTensorsJson(std::span<const TensorInfo> tensors) {
  std::string out;
  for (const TensorInfo& each : tensors) {
    const std::string_view type = each.datatype == "BYTES" ? "STRING" : each.datatype;
    out += fmt::format("{}{{\"name\":\"{}\",\"data_type\":\"TYPE_{}\",\"dims\":[{}]}}",
                       out.empty() ? "" : ",", each.name, type, each.is_list ? -1 : 1);
  }
  return out;
}

std::string StatisticsJson(const ModelStatistics& line) {
  auto part = [](std::string_view name, uint64_t count, uint64_t ns) {
    return fmt::format("\"{}\":{{\"count\":{},\"ns\":{}}}", name, count, ns);
  };
  return fmt::format(
      "{{\"name\":{},\"version\":\"{}\",\"last_inference\":{},\"inference_count\":{},"
      "\"execution_count\":{},\"inference_stats\":{{{},{},{},{},{},{}}},\"batch_stats\":[]}}",
      JsonString(line.model), line.version, line.last_inference_ms, line.successes, line.successes,
      part("success", line.successes, line.success_ns),
      part("fail", line.failures, line.failure_ns), part("queue", line.successes, line.queue_ns),
      part("compute_input", line.successes, 0),
      part("compute_infer", line.successes, line.infer_ns),
      part("compute_output", line.successes, 0));
}

// The answer of /infer and of /generate.
class WholeCall final : public InferCall {
 public:
  WholeCall(std::shared_ptr<Exchange> exchange, OutputForm form, bool generate)
      : exchange_(std::move(exchange)), form_(std::move(form)), generate_(generate) {}
  bool OnResponse(InferResponse response) override {
    exchange_->Respond(generate_ ? HttpResponse{.body = GenerateJson(response)}
                                 : InferHttp(response, form_));
    return true;
  }
  void OnEnd() override {}
  void OnError(const ApiError& error) override {
    exchange_->access().error_code = error.code;
    exchange_->Respond(ErrorHttp(error));
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
  const OutputForm form_;
  const bool generate_;
};

// The answer of /generate_stream.
class StreamCall final : public InferCall {
 public:
  explicit StreamCall(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  bool OnResponse(InferResponse response) override {
    Begin();
    return exchange_->Write("data: " + GenerateJson(response) + "\n\n");
  }
  void OnEnd() override {
    Begin();
    exchange_->EndStream(false);
  }
  void OnError(const ApiError& error) override {
    exchange_->access().error_code = error.code;
    if (!begun_) return exchange_->Respond(ErrorHttp(error));
    exchange_->Write("data: " + ErrorHttp(error).body + "\n\n");
    exchange_->EndStream(true);
  }

 private:
  void Begin() {
    if (!begun_) exchange_->BeginStream("text/event-stream; charset=utf-8");
    begun_ = true;
  }
  const std::shared_ptr<Exchange> exchange_;
  bool begun_ = false;
};

}  // namespace

void HttpApi::Answer(const ExchangePtr& exchange, const ApiError& error) {
  exchange->access().error_code = error.code;
  exchange->Respond(ErrorHttp(error));
}

void HttpApi::Handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  std::string_view rest = std::string_view(request.path).substr(kPrefix.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  constexpr std::string_view kModels = "/models/", kRepository = "/repository/";
  if (rest.starts_with(kRepository)) return Repository(exchange, rest.substr(kRepository.size()));
  if (rest == "/models/stats") return Statistics(exchange, {});
  if (rest.starts_with(kModels)) return Models(exchange, Split(rest.substr(kModels.size())));
  if (request.method != "GET") return Answer(exchange, UnknownPath(request.path));
  if (rest.empty()) {
    std::string extensions;
    for (const std::string& each : Service::Extensions()) {
      extensions += fmt::format("{}\"{}\"", extensions.empty() ? "" : ",", each);
    }
    return exchange->Respond(
        {.body = fmt::format("{{\"name\":\"terrace\",\"version\":\"{}\",\"extensions\":[{}]}}",
                             TERRACE_VERSION, extensions)});
  }
  if (rest == "/health/live") return exchange->Respond({.body = "{\"live\":true}"});
  if (rest == "/health/ready") {
    const bool ready = service_->ServerReady();
    return exchange->Respond(
        {.status = ready ? 200 : 400, .body = fmt::format("{{\"ready\":{}}}", ready)});
  }
  Answer(exchange, UnknownPath(request.path));
}

HttpApi::ModelPath HttpApi::Split(std::string_view rest) {
  static constexpr std::array<std::string_view, 7> kVerbs = {
      "infer", "generate", "generate_stream", "ready", "config", "stats", "metadata"};
  ModelPath path;
  for (const std::string_view verb : kVerbs) {
    if (rest.size() > verb.size() && rest.ends_with(verb) &&
        rest[rest.size() - verb.size() - 1] == '/') {
      path.verb = verb;
      rest.remove_suffix(verb.size() + 1);
      break;
    }
  }
  constexpr std::string_view kVersions = "/versions/";
  if (const size_t at = rest.rfind(kVersions); at != std::string_view::npos) {
    path.version = rest.substr(at + kVersions.size());
    rest = rest.substr(0, at);
  }
  path.model = rest;
  return path;
}

void HttpApi::Models(const ExchangePtr& exchange, const ModelPath& path) {
  const std::string& method = exchange->request().method;
  const bool posts = path.verb == "infer" || path.verb.starts_with("generate");
  if (posts != (method == "POST")) {
    return Answer(exchange,
                  {.status = 405,
                   .code = "method_not_allowed",
                   .message = fmt::format("This path takes {} only.", posts ? "POST" : "GET")});
  }
  if (path.verb == "infer") return Infer(exchange, path);
  if (posts) return Generate(exchange, path, path.verb == "generate_stream");
  if (path.verb == "stats") return Statistics(exchange, path);
  if (path.verb == "ready") {
    const bool ready = service_->ModelReady(path.model, path.version);
    return exchange->Respond(
        {.status = ready ? 200 : 400, .body = fmt::format("{{\"ready\":{}}}", ready)});
  }
  Metadata(exchange, path, path.verb == "config");
}

void HttpApi::Metadata(const ExchangePtr& exchange, const ModelPath& path, bool config) {
  ModelListing model;
  if (auto error = service_->Find(path.model, path.version, &model)) {
    return Answer(exchange, *error);
  }
  const std::string name = JsonString(path.model);
  if (config) {
    return exchange->Respond(
        {.body = fmt::format(
             "{{\"name\":{},\"platform\":\"terrace\",\"backend\":\"terrace\",\"max_batch_size\":0,"
             "\"version_policy\":{{\"latest\":{{\"num_versions\":1}}}},\"input\":[{}],\"output\":"
             "[{}],\"model_transaction_policy\":{{\"decoupled\":true}}}}",
             name, ConfigTensorsJson(InputTensors()), ConfigTensorsJson(OutputTensors()))});
  }
  exchange->Respond(
      {.body = fmt::format("{{\"name\":{},\"versions\":[\"{}\"],\"platform\":\"terrace\","
                           "\"inputs\":[{}],\"outputs\":[{}]}}",
                           name, path.version.empty() ? "1" : path.version,
                           TensorsJson(InputTensors()), TensorsJson(OutputTensors()))});
}

void HttpApi::Statistics(const ExchangePtr& exchange, const ModelPath& path) {
  std::vector<ModelStatistics> lines;
  if (auto error = service_->Statistics(path.model, path.version, &lines)) {
    return Answer(exchange, *error);
  }
  std::string body = "{\"model_stats\":[";
  for (const ModelStatistics& line : lines) {
    if (body.back() == '}') body.push_back(',');
    body += StatisticsJson(line);
  }
  exchange->Respond({.body = body + "]}"});
}

void HttpApi::Repository(const ExchangePtr& exchange, std::string_view rest) {
  const HttpRequest& request = exchange->request();
  if (request.method != "POST") {
    return Answer(exchange, {.status = 405,
                             .code = "method_not_allowed",
                             .message = "The repository's paths take POST only."});
  }
  if (rest == "index") {
    const bool ready_only = request.body.find("\"ready\": true") != std::string::npos ||
                            request.body.find("\"ready\":true") != std::string::npos;
    std::string body = "[";
    for (const IndexEntry& entry : service_->Index(ready_only)) {
      if (body.back() == '}') body.push_back(',');
      body += fmt::format("{{\"name\":{},\"version\":{},\"state\":\"{}\",\"reason\":{}}}",
                          JsonString(entry.name), JsonString(entry.version), entry.state,
                          JsonString(ToValidUtf8(entry.reason)));
    }
    return exchange->Respond({.body = body + "]"});
  }
  constexpr std::string_view kModels = "models/", kLoad = "/load", kUnload = "/unload";
  auto done = [this, exchange](const absl::Status& status) {
    if (!status.ok()) return Answer(exchange, FromStatus(status));
    exchange->Respond({.body = "{}"});
  };
  if (rest.starts_with(kModels) && rest.ends_with(kUnload)) {
    rest = rest.substr(kModels.size(), rest.size() - kModels.size() - kUnload.size());
    return service_->Unload(rest, done);
  }
  if (rest.starts_with(kModels) && rest.ends_with(kLoad)) {
    rest = rest.substr(kModels.size(), rest.size() - kModels.size() - kLoad.size());
    return service_->Load(rest, done);
  }
  Answer(exchange, UnknownPath(request.path));
}

void HttpApi::Infer(const ExchangePtr& exchange, const ModelPath& path) {
  HttpRequest& request = exchange->request();
  InferRequest infer{.model = path.model, .version = path.version};
  OutputForm form;
  const std::string_view length = request.Header("inference-header-content-length");
  if (auto error = ParseInfer(request.body, length, &infer, &form)) {
    return Answer(exchange, *error);
  }
  request.body = std::string();
  service_->Infer(std::move(infer), false, request, exchange,
                  std::make_shared<WholeCall>(exchange, std::move(form), false));
}

void HttpApi::Generate(const ExchangePtr& exchange, const ModelPath& path, bool stream) {
  HttpRequest& request = exchange->request();
  InferRequest infer{.model = path.model, .version = path.version};
  if (auto error = ParseGenerate(request.body, stream, &infer)) return Answer(exchange, *error);
  request.body = std::string();
  std::shared_ptr<InferCall> call;
  if (stream) {
    call = std::make_shared<StreamCall>(exchange);
  } else {
    call = std::make_shared<WholeCall>(exchange, OutputForm(), true);
  }
  service_->Infer(std::move(infer), stream, request, exchange, std::move(call));
}

}  // namespace terrace::server::kserve
