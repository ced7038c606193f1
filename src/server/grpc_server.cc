#include "server/grpc_server.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <atomic>
#include <deque>
#include <utility>

#include "base/clock.h"
#include "base/text.h"
#include "kserve.grpc.pb.h"
#include "server/grpc_call.h"

namespace terrace::server {
namespace {

using grpc::CallbackServerContext;
using kserve::InferCall;

// Requests of one stream that are answered at once; more wait to be read.
constexpr int kMaxInFlight = 32;
// Answers of a stream that wait for a client that reads slowly.
constexpr size_t kMaxUnsent = 4096;

grpc::Status ToGrpc(const ApiError& error) {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  switch (error.status) {
    case 400:
    case 413:
      code = grpc::StatusCode::INVALID_ARGUMENT;
      break;
    case 401:
      code = grpc::StatusCode::UNAUTHENTICATED;
      break;
    case 403:
      code = grpc::StatusCode::PERMISSION_DENIED;
      break;
    case 404:
      code = grpc::StatusCode::NOT_FOUND;
      break;
    case 429:
      code = grpc::StatusCode::RESOURCE_EXHAUSTED;
      break;
    case 501:
      code = grpc::StatusCode::UNIMPLEMENTED;
      break;
    case 503:
      code = grpc::StatusCode::UNAVAILABLE;
      break;
    case 504:
      code = grpc::StatusCode::DEADLINE_EXCEEDED;
      break;
    default:
      break;
  }
  return {code, ToValidUtf8(error.message)};
}

bool IsTrue(const kserve::Parameters& parameters, std::string_view name) {
  const auto found = parameters.find(name);
  const bool* flag = found == parameters.end() ? nullptr : std::get_if<bool>(&found->second);
  return flag != nullptr && *flag;
}

// ---- Calls ------------------------------------------------------------------------------------

// A call of ModelInfer. Its answer and its client's going race; whichever is first finishes the
// reactor, which deletes itself, so that both look for it through a shared state.
class UnaryInfer final : public grpc::ServerUnaryReactor {
 public:
  struct State {
    absl::Mutex mutex;
    UnaryInfer* reactor ABSL_GUARDED_BY(mutex) = nullptr;
    std::shared_ptr<RelayExchange> relay ABSL_GUARDED_BY(mutex);

    // The reactor, for the first who asks.
    UnaryInfer* Take() {
      absl::MutexLock lock(&mutex);
      return std::exchange(reactor, nullptr);
    }
  };

  explicit UnaryInfer(inference::ModelInferResponse* response) : response_(response) {
    absl::MutexLock lock(&state_->mutex);
    state_->reactor = this;
  }

  void Begin(kserve::Service* service, kserve::InferRequest request, CallLog log) {
    const HttpRequest from = log.request();
    auto state = state_;  // the reactor may be gone once Infer returns
    auto call = std::make_shared<Call>(state, std::move(log));
    auto relay = service->Infer(std::move(request), false, from, nullptr, std::move(call));
    bool cancelled = false;
    {
      absl::MutexLock lock(&state->mutex);
      state->relay = relay;
      cancelled = state->reactor == nullptr;
    }
    if (cancelled && relay != nullptr) relay->MarkGone();
  }

  void OnCancel() override {
    auto state = state_;
    UnaryInfer* self = state->Take();
    std::shared_ptr<RelayExchange> relay;
    {
      absl::MutexLock lock(&state->mutex);
      relay = state->relay;
    }
    if (relay != nullptr) relay->MarkGone();
    if (self != nullptr) self->Finish({grpc::StatusCode::CANCELLED, "cancelled by the client"});
  }
  void OnDone() override { delete this; }

 private:
  class Call final : public InferCall {
   public:
    Call(std::shared_ptr<State> state, CallLog log)
        : state_(std::move(state)), log_(std::move(log)) {}
    bool OnResponse(kserve::InferResponse response) override {
      UnaryInfer* reactor = state_->Take();
      log_.Ended(reactor == nullptr ? 499 : 200, "", true);
      if (reactor == nullptr) return false;
      WriteResponse(std::move(response), reactor->response_);
      reactor->Finish(grpc::Status::OK);
      return true;
    }
    void OnEnd() override {}
    void OnError(const ApiError& error) override {
      UnaryInfer* reactor = state_->Take();
      log_.Ended(reactor == nullptr ? 499 : error.status, error.code, error.status != 404);
      if (reactor != nullptr) reactor->Finish(ToGrpc(error));
    }

   private:
    const std::shared_ptr<State> state_;
    const CallLog log_;
  };

  inference::ModelInferResponse* const response_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A stream of requests, answered as their tokens come. Held by gRPC until OnDone and by the calls
// under way.
class StreamInfer final : public grpc::ServerBidiReactor<inference::ModelInferRequest,
                                                         inference::ModelStreamInferResponse>,
                          public std::enable_shared_from_this<StreamInfer> {
 public:
  StreamInfer(const GrpcDeps* deps, HttpRequest from) : deps_(deps), from_(std::move(from)) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      absl::MutexLock lock(&mutex_);
      reads_ended_ = true;
      GoOnLocked();
      return;
    }
    kserve::InferRequest request;
    std::optional<ApiError> error = ReadRequest(message_, &request);
    HttpRequest from = from_;
    from.id = fmt::format("{}-{}", from_.id, number_++);
    const bool marked = IsTrue(request.parameters, "triton_enable_empty_final_response");
    auto call = std::make_shared<Call>(shared_from_this(), CallLog(deps_, from, request.model),
                                       request, marked);
    {
      absl::MutexLock lock(&mutex_);
      ++in_flight_;
    }
    if (error) {
      call->OnError(*error);
    } else if (auto relay = deps_->service->Infer(std::move(request), true, from, nullptr, call)) {
      absl::MutexLock lock(&mutex_);
      std::erase_if(relays_, [](const auto& each) { return each.expired(); });
      relays_.push_back(relay);
      if (cancelled_) relay->MarkGone();
    }
    absl::MutexLock lock(&mutex_);
    if (finished_) return;  // no operation may begin after Finish
    if (in_flight_ < kMaxInFlight) {
      StartRead(&message_);
    } else {
      read_waits_ = true;
    }
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) cancelled_ = true;
    if (!unsent_.empty()) unsent_.pop_front();
    GoOnLocked();
  }

  void OnCancel() override {
    std::vector<std::weak_ptr<RelayExchange>> relays;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      relays.swap(relays_);
      GoOnLocked();
    }
    for (const auto& each : relays) {
      if (auto relay = each.lock()) relay->MarkGone();
    }
  }

  void OnDone() override { self_.reset(); }

 private:
  class Call final : public InferCall {
   public:
    Call(std::shared_ptr<StreamInfer> stream, CallLog log, const kserve::InferRequest& request,
         bool marked)
        : stream_(std::move(stream)), log_(std::move(log)), marked_(marked) {
      last_.model = request.model;
      last_.version = request.version.empty() ? "1" : request.version;
      last_.id = request.id;
    }
    bool OnResponse(kserve::InferResponse response) override {
      inference::ModelStreamInferResponse message;
      WriteResponse(std::move(response), message.mutable_infer_response());
      return stream_->Send(std::move(message), false);
    }
    void OnEnd() override {
      log_.Ended(200, "", true);
      inference::ModelStreamInferResponse message;
      if (!marked_) return stream_->End();
      last_.parameters["triton_final_response"] = true;
      WriteResponse(std::move(last_), message.mutable_infer_response());
      stream_->Send(std::move(message), true);
    }
    void OnError(const ApiError& error) override {
      log_.Ended(error.status, error.code, error.status != 404);
      inference::ModelStreamInferResponse message;
      message.set_error_message(ToValidUtf8(error.message));
      WriteResponse(std::move(last_), message.mutable_infer_response());
      stream_->Send(std::move(message), true);
    }

   private:
    const std::shared_ptr<StreamInfer> stream_;
    const CallLog log_;
    const bool marked_;
    kserve::InferResponse last_;
  };

  bool Send(inference::ModelStreamInferResponse message, bool last) {
    absl::MutexLock lock(&mutex_);
    if (last) --in_flight_;
    if (unsent_.size() >= kMaxUnsent) cancelled_ = true;
    if (!cancelled_) unsent_.push_back(std::move(message));
    GoOnLocked();
    return !cancelled_;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    --in_flight_;
    GoOnLocked();
  }

  void GoOnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (cancelled_ && !writing_) {
      finished_ = true;
      return Finish({grpc::StatusCode::CANCELLED, "cancelled, or read too slowly"});
    }
    if (!writing_ && !unsent_.empty()) {
      writing_ = true;
      StartWrite(&unsent_.front());
    }
    if (read_waits_ && in_flight_ < kMaxInFlight) {
      read_waits_ = false;
      StartRead(&message_);
    }
    if (reads_ended_ && in_flight_ == 0 && unsent_.empty()) {
      finished_ = true;
      Finish(grpc::Status::OK);
    }
  }

  const GrpcDeps* const deps_;
  const HttpRequest from_;
  std::shared_ptr<StreamInfer> self_;  // until gRPC is done with it
  inference::ModelInferRequest message_;
  int number_ = 0;

  absl::Mutex mutex_;
  std::deque<inference::ModelStreamInferResponse> unsent_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<RelayExchange>> relays_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_waits_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// ---- The service ------------------------------------------------------------------------------

class ServiceImpl final : public inference::GRPCInferenceService::CallbackService {
 public:
  void Start(GrpcDeps deps) {
    deps_ = std::move(deps);
    started_.store(true, std::memory_order_release);
  }

  grpc::ServerUnaryReactor* ServerLive(CallbackServerContext* context,
                                       const inference::ServerLiveRequest*,
                                       inference::ServerLiveResponse* response) override {
    response->set_live(true);
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* ServerReady(CallbackServerContext* context,
                                        const inference::ServerReadyRequest*,
                                        inference::ServerReadyResponse* response) override {
    response->set_ready(started() && deps_.service->ServerReady());
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* ModelReady(CallbackServerContext* context,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) override {
    response->set_ready(started() &&
                        deps_.service->ModelReady(request->name(), request->version()));
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* ServerMetadata(CallbackServerContext* context,
                                           const inference::ServerMetadataRequest*,
                                           inference::ServerMetadataResponse* response) override {
    response->set_name("terrace");
    response->set_version(TERRACE_VERSION);
    for (const std::string& each : kserve::Service::Extensions()) response->add_extensions(each);
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* ModelMetadata(CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override {
    HttpRequest from;
    if (auto error = Admit(context, "ModelMetadata", false, &from)) return Refuse(context, *error);
    ModelListing model;
    if (auto error = deps_.service->Find(request->name(), request->version(), &model)) {
      return Refuse(context, *error);
    }
    response->set_name(request->name());
    response->add_versions(request->version().empty() ? "1" : request->version());
    response->set_platform("terrace");
    auto fill = [](const kserve::TensorInfo& info, auto* out) {
      out->set_name(std::string(info.name));
      out->set_datatype(std::string(info.datatype));
      out->add_shape(info.is_list ? -1 : 1);
    };
    for (const auto& info : kserve::InputTensors()) fill(info, response->add_inputs());
    for (const auto& info : kserve::OutputTensors()) fill(info, response->add_outputs());
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* ModelInfer(CallbackServerContext* context,
                                       const inference::ModelInferRequest* message,
                                       inference::ModelInferResponse* response) override {
    HttpRequest from;
    if (auto error = Admit(context, "ModelInfer", false, &from)) return Refuse(context, *error);
    kserve::InferRequest request;
    if (auto error = ReadRequest(*message, &request)) return Refuse(context, *error);
    auto* reactor = new UnaryInfer(response);  // deletes itself when gRPC is done with it
    CallLog log(&deps_, std::move(from), request.model);
    reactor->Begin(deps_.service, std::move(request), std::move(log));
    return reactor;
  }

  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
  ModelStreamInfer(CallbackServerContext* context) override {
    HttpRequest from;
    if (auto error = Admit(context, "ModelStreamInfer", false, &from)) {
      return new RefusedStream(ToGrpc(*error));
    }
    auto stream = std::make_shared<StreamInfer>(&deps_, std::move(from));
    stream->Begin();
    return stream.get();
  }

  grpc::ServerUnaryReactor* ModelStatistics(CallbackServerContext* context,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response) override {
    HttpRequest from;
    if (auto error = Admit(context, "ModelStatistics", false, &from)) {
      return Refuse(context, *error);
    }
    std::vector<kserve::ModelStatistics> lines;
    if (auto error = deps_.service->Statistics(request->name(), request->version(), &lines)) {
      return Refuse(context, *error);
    }
    for (const kserve::ModelStatistics& line : lines) {
      auto* out = response->add_model_stats();
      out->set_name(line.model);
      out->set_version(line.version);
      out->set_last_inference(static_cast<uint64_t>(line.last_inference_ms));
      out->set_inference_count(line.successes);
      out->set_execution_count(line.successes);
      auto* stats = out->mutable_inference_stats();
      auto set = [](inference::StatisticDuration* part, uint64_t count, uint64_t ns) {
        part->set_count(count);
        part->set_ns(ns);
      };
      set(stats->mutable_success(), line.successes, line.success_ns);
      set(stats->mutable_fail(), line.failures, line.failure_ns);
      set(stats->mutable_queue(), line.successes, line.queue_ns);
      set(stats->mutable_compute_infer(), line.successes, line.infer_ns);
    }
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* RepositoryIndex(CallbackServerContext* context,
                                            const inference::RepositoryIndexRequest* request,
                                            inference::RepositoryIndexResponse* response) override {
    HttpRequest from;
    if (auto error = Admit(context, "RepositoryIndex", false, &from)) {
      return Refuse(context, *error);
    }
    for (kserve::IndexEntry& entry : deps_.service->Index(request->ready())) {
      auto* out = response->add_models();
      out->set_name(std::move(entry.name));
      out->set_version(std::move(entry.version));
      out->set_state(std::move(entry.state));
      out->set_reason(ToValidUtf8(entry.reason));
    }
    return Done(context, grpc::Status::OK);
  }

  grpc::ServerUnaryReactor* RepositoryModelLoad(
      CallbackServerContext* context, const inference::RepositoryModelLoadRequest* request,
      inference::RepositoryModelLoadResponse*) override {
    HttpRequest from;
    if (auto error = Admit(context, "RepositoryModelLoad", true, &from)) {
      return Refuse(context, *error);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    deps_.service->Load(request->model_name(), Later(reactor));
    return reactor;
  }

  grpc::ServerUnaryReactor* RepositoryModelUnload(
      CallbackServerContext* context, const inference::RepositoryModelUnloadRequest* request,
      inference::RepositoryModelUnloadResponse*) override {
    HttpRequest from;
    if (auto error = Admit(context, "RepositoryModelUnload", true, &from)) {
      return Refuse(context, *error);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    deps_.service->Unload(request->model_name(), Later(reactor));
    return reactor;
  }

 private:
  class RefusedStream final : public grpc::ServerBidiReactor<inference::ModelInferRequest,
                                                             inference::ModelStreamInferResponse> {
   public:
    explicit RefusedStream(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }
  };

  bool started() const { return started_.load(std::memory_order_acquire); }

  static grpc::ServerUnaryReactor* Done(CallbackServerContext* context, grpc::Status status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(std::move(status));
    return reactor;
  }
  static grpc::ServerUnaryReactor* Refuse(CallbackServerContext* context, const ApiError& error) {
    return Done(context, ToGrpc(error));
  }
  static std::function<void(absl::Status)> Later(grpc::ServerUnaryReactor* reactor) {
    return [reactor](const absl::Status& status) {
      reactor->Finish(status.ok() ? grpc::Status::OK : ToGrpc(FromStatus(status)));
    };
  }

  std::optional<ApiError> Admit(CallbackServerContext* context, std::string_view method,
                                bool needs_admin, HttpRequest* out) {
    if (!started()) {
      return ApiError{.status = 503, .code = "unavailable", .message = "The server is starting."};
    }
    out->method = "POST";
    out->path = fmt::format("/inference.GRPCInferenceService/{}", method);
    out->id = fmt::format("grpc-{:x}-{}", deps_.clock->WallUs(), next_id_.fetch_add(1));
    // "ipv4:127.0.0.1:4711"
    const std::string peer = context->peer();
    const size_t begin = peer.find(':') + 1, end = peer.rfind(':');
    out->peer = end > begin ? peer.substr(begin, end - begin) : peer;
    if (out->peer.starts_with("%5B")) out->peer = out->peer.substr(3, out->peer.size() - 6);
    if (out->peer.starts_with("[")) out->peer = out->peer.substr(1, out->peer.size() - 2);
    for (const std::string_view name : kKeptHeaders) {
      const auto found = context->client_metadata().find({name.data(), name.size()});
      if (found == context->client_metadata().end()) continue;
      out->headers.emplace_back(name, std::string(found->second.data(), found->second.size()));
    }
    return deps_.admit(out, needs_admin);
  }

  GrpcDeps deps_;
  std::atomic<bool> started_{false};
  std::atomic<uint64_t> next_id_{0};
};

class GrpcServerImpl final : public GrpcServer {
 public:
  ~GrpcServerImpl() override { Stop(0); }

  absl::Status Listen(const GrpcOptions& options) {
    grpc::ServerBuilder builder;
    // Else the kernel would let a second server share the port.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
    const bool bare_v6 = options.host.find(':') != std::string::npos && options.host[0] != '[';
    const std::string address = bare_v6 ? fmt::format("[{}]:{}", options.host, options.port)
                                        : fmt::format("{}:{}", options.host, options.port);
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (!options.certificate.empty()) {
      auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          options.private_key, options.certificate, /*refresh_interval_sec=*/1);
      grpc::experimental::TlsServerCredentialsOptions tls(std::move(files));
      tls.watch_identity_key_cert_pairs();
      tls.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
      credentials = grpc::experimental::TlsServerCredentials(tls);
    }
    builder.AddListeningPort(address, std::move(credentials), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr && port_ != 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        fmt::format("cannot listen for gRPC on {} port {}: the port is taken by another process, "
                    "the address is not one of this machine, or the certificate does not fit its "
                    "key",
                    options.host, options.port));
  }

  uint16_t port() const override { return static_cast<uint16_t>(port_); }
  void Start(GrpcDeps deps) override { service_.Start(std::move(deps)); }
  void Stop(int64_t timeout_us) override {
    if (server_ == nullptr || stopped_) return;
    stopped_ = true;
    server_->Shutdown(
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_micros(timeout_us, GPR_TIMESPAN)));
    server_->Wait();
  }

 private:
  ServiceImpl service_;
  int port_ = 0;
  bool stopped_ = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Bind(const GrpcOptions& options) {
  auto server = std::make_unique<GrpcServerImpl>();
  if (absl::Status status = server->Listen(options); !status.ok()) return status;
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace terrace::server
