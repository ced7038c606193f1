// The HTTP API: routes requests, checks them, turns them into requests to the scheduler, and shows
// models, health and metrics.
//
// Thread-safe. Small requests are prepared on the IO thread that read them; larger ones, and those
// whose model is not open yet, on a small pool, so that /health answers quickly whatever else is
// sent.
#ifndef TERRACE_SERVER_API_HANDLER_H_
#define TERRACE_SERVER_API_HANDLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "scheduler/scheduler.h"
#include "server/api_error.h"
#include "server/embeddings.h"
#include "server/exchange.h"
#include "server/generation.h"
#include "server/model_source.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/worker_pool.h"

namespace terrace {
class Clock;
class Logger;
class Metrics;
}  // namespace terrace

namespace terrace::server {

struct ApiOptions {
  int32_t worker_threads = 2;
  size_t inline_body_bytes = 4096;  // bodies up to this are prepared on the IO thread
  bool metrics_on_api_port = true;
  uint64_t id_seed = 0;  // for the ids of answers
};

struct ApiDeps {
  ModelSource* models = nullptr;
  scheduler::Scheduler* scheduler = nullptr;
  const Clock* clock = nullptr;
  Metrics* metrics = nullptr;
  Logger* runtime_log = nullptr;
  // The model that answers a request for `name`: itself, or another version or an equivalent; may
  // be empty.
  std::function<std::string(const HttpRequest& request, const std::string& name)> route;
  // Called before metrics are read, by one thread at a time, to bring gauges up to date; may be
  // empty. Must be quick.
  std::function<void()> on_scrape;
};

class ApiHandler final : public HttpHandler {
 public:
  // All of `deps` must outlive the handler; the handler must outlive the HTTP server that calls it.
  ApiHandler(ApiOptions options, ApiDeps deps);

  void Handle(std::shared_ptr<Exchange> exchange) override;

  // From now on /ready says no and generation is refused with 503; what runs goes on.
  void BeginDrain() { draining_.store(true); }
  // Whether a request for some model would be taken: what /ready tells.
  bool ready() const;

 private:
  using Route = void (ApiHandler::*)(const std::shared_ptr<Exchange>&);

  void Dispatch(const std::shared_ptr<Exchange>& exchange);
  Route FindRoute(const HttpRequest& request, std::string_view* allowed) const;
  // Runs `task` and answers with 500 if it throws.
  template <typename F>
  void Guard(const std::shared_ptr<Exchange>& exchange, F&& task);

  void Health(const std::shared_ptr<Exchange>& exchange);
  void Ready(const std::shared_ptr<Exchange>& exchange);
  void MetricsText(const std::shared_ptr<Exchange>& exchange);
  void ListModels(const std::shared_ptr<Exchange>& exchange);
  void ShowModel(const std::shared_ptr<Exchange>& exchange);
  void Chat(const std::shared_ptr<Exchange>& exchange);
  void Responses(const std::shared_ptr<Exchange>& exchange);
  void Messages(const std::shared_ptr<Exchange>& exchange);
  // A chat whose body `parse` reads, answered in the shape of `api`.
  void ChatAs(const std::shared_ptr<Exchange>& exchange, Api api,
              std::optional<ApiError> (*parse)(std::string_view, ChatRequest*));
  void Complete(const std::shared_ptr<Exchange>& exchange);
  void Embeddings(const std::shared_ptr<Exchange>& exchange);
  void Rerank(const std::shared_ptr<Exchange>& exchange);
  void Embed(const std::shared_ptr<Exchange>& exchange,
             std::optional<ApiError> (*parse)(std::string_view, EmbeddingRequest*));
  void AnswerDraining(const std::shared_ptr<Exchange>& exchange);
  void Tokenize(const std::shared_ptr<Exchange>& exchange);
  void Detokenize(const std::shared_ptr<Exchange>& exchange);

  template <typename Body, typename Parse>
  std::shared_ptr<Body> Parsed(const std::shared_ptr<Exchange>& exchange, const Parse& parse);
  // Runs `step` at once if the body is small, else on the pool.
  void Prepare(const std::shared_ptr<Exchange>& exchange, std::function<void()> step);
  // Runs `step` on the pool, unless the client has gone by then: for what takes long, such as
  // compiling a grammar.
  void OnPool(const std::shared_ptr<Exchange>& exchange, std::function<void()> step);
  // Calls `next` with the model, at once if it is ready, else on the pool once it is; or answers
  // why there is none.
  void WithModel(const std::shared_ptr<Exchange>& exchange, const std::string& asked,
                 std::function<void(std::shared_ptr<const ServedModel>)> next);
  void StartChat(const std::shared_ptr<Exchange>& exchange, Api api, ChatRequest request,
                 std::shared_ptr<const ServedModel> model);
  void StartCompletion(const std::shared_ptr<Exchange>& exchange, CompletionRequest request,
                       std::shared_ptr<const ServedModel> model);
  void AnswerTokenize(const std::shared_ptr<Exchange>& exchange, const TokenizeRequest& request,
                      const ServedModel& model);
  void AnswerDetokenize(const std::shared_ptr<Exchange>& exchange, const DetokenizeRequest& request,
                        const ServedModel& model);
  // `writer`: null for the shape of chat and text completions.
  void Generate(const std::shared_ptr<Exchange>& exchange, Api api, GenerationPlan plan,
                std::unique_ptr<AnswerWriter> writer);
  void Answer(const std::shared_ptr<Exchange>& exchange, const ApiError& error);
  std::string NewId(Api api);

  const ApiOptions options_;
  const ApiDeps deps_;
  std::atomic<bool> draining_{false};
  std::atomic<uint64_t> next_id_{0};
  absl::Mutex scrape_mutex_;
  WorkerPool pool_;  // last: its threads use the rest
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_API_HANDLER_H_
