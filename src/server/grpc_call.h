// What a gRPC call needs that is not gRPC: its messages as the service's plain structs, and its
// line in the access log. Private to the gRPC server.
#ifndef TERRACE_SERVER_GRPC_CALL_H_
#define TERRACE_SERVER_GRPC_CALL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/grpc_server.h"
#include "server/kserve_types.h"

namespace inference {
class ModelInferRequest;
class ModelInferResponse;
}  // namespace inference

namespace terrace::server {

std::optional<ApiError> ReadRequest(const inference::ModelInferRequest& message,
                                    kserve::InferRequest* out);
void WriteResponse(kserve::InferResponse response, inference::ModelInferResponse* out);

class CallLog {
 public:
  // `deps` must outlive it.
  CallLog(const GrpcDeps* deps, HttpRequest request, std::string model);
  const HttpRequest& request() const { return request_; }

  // `known`: the model's name is one of ours and may label a metric.
  void Ended(int status, std::string_view code, bool known) const;

 private:
  const GrpcDeps* const deps_;
  const HttpRequest request_;
  const std::string model_;
  const int64_t started_us_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_GRPC_CALL_H_
