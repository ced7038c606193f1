// Inference requests and answers as HTTP bodies: JSON, with tensors in it or, by the binary-tensor
// extension, behind it. Everything in a body is hostile. Pure functions.
#ifndef TERRACE_SERVER_KSERVE_JSON_H_
#define TERRACE_SERVER_KSERVE_JSON_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/exchange.h"
#include "server/kserve_types.h"

namespace terrace::server::kserve {

// Which outputs go behind the JSON.
struct OutputForm {
  bool all_binary = false;
  std::map<std::string, bool, std::less<>> by_name;

  bool binary(std::string_view name) const {
    const auto found = by_name.find(name);
    return found == by_name.end() ? all_binary : found->second;
  }
};

// Reads a body of /infer. `json_bytes`: the header Inference-Header-Content-Length, empty if there
// was none. Fills all but model and version.
std::optional<ApiError> ParseInfer(std::string_view body, std::string_view json_bytes,
                                   InferRequest* out, OutputForm* form);

// Reads a body of /generate: text_input and parameters, in "parameters" or beside it.
std::optional<ApiError> ParseGenerate(std::string_view body, bool stream, InferRequest* out);

// The answer of /infer.
HttpResponse InferHttp(const InferResponse& response, const OutputForm& form);

// The answer of /generate, or an event's data: each output by its name.
std::string GenerateJson(const InferResponse& response);

// {"error": message}, with the status.
HttpResponse ErrorHttp(const ApiError& error);

}  // namespace terrace::server::kserve

#endif  // TERRACE_SERVER_KSERVE_JSON_H_
