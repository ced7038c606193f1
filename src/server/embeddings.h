// /v1/embeddings and /v1/rerank: texts as vectors, and documents by how near they are to a query,
// or by what a model that judges says of them (judge.h). A
// text's vector is what an encoder pools, or the state of the last token behind the final norm of a
// model that generates; of length 1.
#ifndef TERRACE_SERVER_EMBEDDINGS_H_
#define TERRACE_SERVER_EMBEDDINGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/scheduler.h"
#include "server/api_error.h"
#include "server/exchange.h"
#include "server/openai_request.h"
#include "server/served_model.h"

namespace terrace::server {

inline constexpr size_t kMaxInputs = 256;

struct EmbeddingRequest {
  std::string model;
  std::vector<Prompt> inputs;  // for a rerank request the query, then the documents
  bool base64 = false;
  std::optional<int32_t> dimensions;  // the first of the vector's, again of length 1
  // Set for a rerank request.
  bool rerank = false;
  std::optional<int32_t> top_n;
  bool return_documents = true;
  std::string instruction;  // what makes a document relevant, for models that judge
};

// Each fills `*out` or returns what is wrong with the body.
std::optional<ApiError> ParseEmbeddingRequest(std::string_view body, EmbeddingRequest* out);
std::optional<ApiError> ParseRerankRequest(std::string_view body, EmbeddingRequest* out);

// Submits the inputs and answers through `exchange`, later. `scheduler` must outlive the last sink
// and be callable from sinks. `id` names the answer.
void StartEmbedding(EmbeddingRequest request, std::shared_ptr<const ServedModel> model,
                    std::string id, scheduler::Scheduler* scheduler,
                    std::shared_ptr<Exchange> exchange);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_EMBEDDINGS_H_
