// The API of Ollama, for tools that speak only that: /api/chat, generate, embed, tags, show, ps and
// version. Requests become requests of the OpenAI API and its answers are rewritten, so that both
// are checked, limited and queued alike. Thread-safe.
//
// Where the two differ: options that size the runner (num_ctx, num_gpu, num_thread ...) are read
// and have no effect, since the server's configuration decides; keep_alive matters only as 0 with
// nothing to say, which gives the model's memory back. Pulling and making models is not done here.
#ifndef TERRACE_SERVER_OLLAMA_H_
#define TERRACE_SERVER_OLLAMA_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/exchange.h"
#include "server/model_control.h"
#include "server/model_source.h"
#include "tier/tier_manager.h"

namespace terrace {
class Clock;
}

namespace terrace::server {

struct OllamaDeps {
  HttpHandler* api = nullptr;  // of the OpenAI API
  ModelSource* models = nullptr;
  ModelControl* control = nullptr;
  const Clock* clock = nullptr;
  std::function<tier::TierSnapshot()> tiers;  // may be empty: then /api/ps lists nothing
};

class OllamaApi final : public HttpHandler {
 public:
  // All of `deps` must outlive it.
  explicit OllamaApi(OllamaDeps deps) : deps_(std::move(deps)) {}

  // REQUIRES: the path begins with /api/.
  void Handle(std::shared_ptr<Exchange> exchange) override;

 private:
  using ExchangePtr = std::shared_ptr<Exchange>;

  void Ask(const ExchangePtr& exchange, bool chat);
  void Embed(const ExchangePtr& exchange, bool single);
  // A request that says nothing: brings the model, or with keep_alive 0 gives its memory back.
  void LoadOnly(const ExchangePtr& exchange, const std::string& asked, const std::string& served,
                bool chat, bool evict);
  void Tags(const ExchangePtr& exchange);
  void Show(const ExchangePtr& exchange);
  void Running(const ExchangePtr& exchange);
  // The configured model that `name` means: itself, or without the tag ":latest".
  std::string Served(std::string_view name);

  const OllamaDeps deps_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OLLAMA_H_
