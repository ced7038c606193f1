// The KServe v2 protocol over HTTP: everything below /v2. Thread-safe.
#ifndef TERRACE_SERVER_KSERVE_HTTP_H_
#define TERRACE_SERVER_KSERVE_HTTP_H_

#include <memory>
#include <string>
#include <string_view>

#include "server/exchange.h"
#include "server/kserve.h"

namespace terrace::server::kserve {

class HttpApi final : public HttpHandler {
 public:
  // `service` must outlive it.
  explicit HttpApi(Service* service) : service_(service) {}

  // REQUIRES: the path is /v2 or below it.
  void Handle(std::shared_ptr<Exchange> exchange) override;

 private:
  using ExchangePtr = std::shared_ptr<Exchange>;
  // A path below /v2/models.
  struct ModelPath {
    std::string model;
    std::string version;
    std::string verb;  // "infer", "ready" ...; empty: the model itself
  };
  static ModelPath Split(std::string_view rest);

  void Models(const ExchangePtr& exchange, const ModelPath& path);
  void Metadata(const ExchangePtr& exchange, const ModelPath& path, bool config);
  void Statistics(const ExchangePtr& exchange, const ModelPath& path);
  void Repository(const ExchangePtr& exchange, std::string_view rest);
  void Infer(const ExchangePtr& exchange, const ModelPath& path);
  void Generate(const ExchangePtr& exchange, const ModelPath& path, bool stream);
  void Answer(const ExchangePtr& exchange, const ApiError& error);

  Service* const service_;
};

}  // namespace terrace::server::kserve

#endif  // TERRACE_SERVER_KSERVE_HTTP_H_
