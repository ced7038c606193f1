#include "server/kserve.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace terrace::server::kserve {
namespace {

constexpr std::string_view kOnlyVersion = "1";

std::string_view StateOf(ModelStateKind state) {
  if (state == ModelStateKind::kReady) return "READY";
  return state == ModelStateKind::kOpening ? "LOADING" : "UNAVAILABLE";
}

// The name under which version `version` of `name` is served.
std::string ServedName(std::string_view name, std::string_view version) {
  if (version.empty() || version == kOnlyVersion) return std::string(name);
  return fmt::format("{}@{}", name, version);
}

}  // namespace

// Turns the answers of the OpenAI API into tensors.
class Service::Receiver final : public AnswerReceiver {
 public:
  Receiver(Service* service, InferRequest request, std::shared_ptr<InferCall> call,
           int64_t started_us)
      : service_(service),
        request_(std::move(request)),
        call_(std::move(call)),
        started_us_(started_us) {}

  // The exchange owns the receiver; it is there as long as calls come.
  void set_exchange(RelayExchange* exchange) { exchange_ = exchange; }

  void OnWhole(const HttpResponse& response) override {
    InferResponse answer;
    std::optional<ApiError> error;
    if (response.status == 200) {
      error = ReadWhole(request_, response.body, &answer);
    } else {
      error = ReadError(response.status, response.body);
      for (const auto& [name, value] : response.headers) {
        if (name != "Retry-After") continue;
        std::from_chars(value.data(), value.data() + value.size(), error->retry_after_s);
      }
    }
    service_->Count(request_, !error, started_us_, exchange_->access());
    if (error) return call_->OnError(*error);
    call_->OnResponse(std::move(answer));
    call_->OnEnd();
  }

  bool OnEvent(std::string_view data) override {
    InferResponse piece;
    if (!ReadEvent(request_, data, &piece, &error_)) return true;
    return call_->OnResponse(std::move(piece));
  }

  void OnEnd(bool) override {
    service_->Count(request_, !error_, started_us_, exchange_->access());
    if (error_) return call_->OnError(*error_);
    call_->OnEnd();
  }

 private:
  Service* const service_;
  const InferRequest request_;
  const std::shared_ptr<InferCall> call_;
  const int64_t started_us_;
  RelayExchange* exchange_ = nullptr;
  std::optional<ApiError> error_;
};

std::vector<std::string> Service::Extensions() {
  return {"binary_tensor_data", "model_repository", "statistics", "generate"};
}

std::optional<ApiError> Service::Find(std::string_view name, std::string_view version,
                                      ModelListing* out) {
  const std::string served = ServedName(name, version);
  std::string names;
  for (ModelListing& model : deps_.models->List()) {
    if (model.name == served) {
      *out = std::move(model);
      return std::nullopt;
    }
    names += (names.empty() ? "" : ", ") + model.name;
  }
  return ApiError{
      .status = 404,
      .code = "model_not_found",
      .message = fmt::format(
          "There is no model \"{}\"{}; this server has: {}.", ToValidUtf8(name),
          version.empty() ? "" : fmt::format(" at version {}", ToValidUtf8(version)), names)};
}

bool Service::ModelReady(std::string_view name, std::string_view version) {
  ModelListing model;
  return !Find(name, version, &model) && model.state == ModelStateKind::kReady;
}

std::vector<IndexEntry> Service::Index(bool ready_only) {
  std::vector<IndexEntry> out;
  for (ModelListing& model : deps_.models->List()) {
    if (ready_only && model.state != ModelStateKind::kReady) continue;
    // Served as name@version or as the only version of its name.
    const size_t at = model.name.rfind('@');
    const bool versioned = at != std::string::npos;
    out.push_back({versioned ? model.name.substr(0, at) : model.name,
                   versioned ? model.name.substr(at + 1) : std::string(kOnlyVersion),
                   std::string(StateOf(model.state)), std::move(model.reason)});
  }
  return out;
}

std::optional<ApiError> Service::Statistics(std::string_view name, std::string_view version,
                                            std::vector<ModelStatistics>* out) {
  ModelListing found;
  if (!name.empty()) {
    if (auto error = Find(name, version, &found)) return error;
  }
  for (const ModelListing& model : deps_.models->List()) {
    if (!name.empty() && model.name != found.name) continue;
    absl::MutexLock lock(&mutex_);
    const auto entry = statistics_.find(model.name);
    ModelStatistics line = entry == statistics_.end() ? ModelStatistics() : entry->second;
    line.model = model.name;
    line.version = kOnlyVersion;
    out->push_back(std::move(line));
  }
  return std::nullopt;
}

void Service::Load(std::string_view name, std::function<void(absl::Status)> done) {
  deps_.control->Load(name, std::move(done));
}

void Service::Unload(std::string_view name, std::function<void(absl::Status)> done) {
  deps_.control->Unload(name, std::move(done));
}

std::shared_ptr<RelayExchange> Service::Infer(InferRequest request, bool may_stream,
                                              const HttpRequest& from,
                                              std::shared_ptr<Exchange> parent,
                                              std::shared_ptr<InferCall> call) {
  const int64_t now_us = deps_.clock->NowUs();
  ModelListing model;
  Translation translation;
  std::optional<ApiError> error = Find(request.model, request.version, &model);
  if (!error) {
    InferRequest served = request;
    served.model = model.name;
    error = Translate(served, may_stream, &translation);
  }
  if (error) {
    call->OnError(*error);
    return nullptr;
  }
  auto receiver = std::make_shared<Receiver>(this, std::move(request), std::move(call), now_us);
  auto relay = std::make_shared<RelayExchange>(
      RelayRequest(from, std::move(translation.path), std::move(translation.body)), receiver,
      std::move(parent));
  receiver->set_exchange(relay.get());
  deps_.api->Handle(relay);
  return relay;
}

void Service::Count(const InferRequest& request, bool success, int64_t started_us,
                    const AccessRecord& record) {
  const auto took_ns = static_cast<uint64_t>(deps_.clock->NowUs() - started_us) * 1000;
  absl::MutexLock lock(&mutex_);
  ModelStatistics& line = statistics_[ServedName(request.model, request.version)];
  if (!success) {
    ++line.failures;
    line.failure_ns += took_ns;
    return;
  }
  line.last_inference_ms = deps_.clock->WallUs() / 1000;
  ++line.successes;
  line.success_ns += took_ns;
  line.queue_ns += static_cast<uint64_t>(record.queue_us) * 1000;
  line.infer_ns += static_cast<uint64_t>(record.prefill_us + record.decode_us) * 1000;
}

}  // namespace terrace::server::kserve
