// Inference requests as requests of the OpenAI API, and its answers as tensors. A language model's
// tensors: text_input (or input_ids) and sampling parameters in, text_output and what is known of
// it out. Pure functions.
#ifndef TERRACE_SERVER_KSERVE_TRANSLATE_H_
#define TERRACE_SERVER_KSERVE_TRANSLATE_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/kserve_types.h"

namespace terrace::server::kserve {

std::span<const TensorInfo> InputTensors();
std::span<const TensorInfo> OutputTensors();

// A request of the OpenAI API.
struct Translation {
  std::string path;
  std::string body;
  bool stream = false;
};

// What to ask the OpenAI API for, or what is wrong with the tensors. With `may_stream`, input
// "stream" decides whether the answer comes in pieces; else that it is set is an error.
std::optional<ApiError> Translate(const InferRequest& request, bool may_stream, Translation* out);

// The tensors of a whole answer of the OpenAI API (status 200). Internal code errors only.
std::optional<ApiError> ReadWhole(const InferRequest& request, std::string_view body,
                                  InferResponse* out);

// The tensors of one event of a stream; false: it says nothing that the protocol tells. An event
// that tells an error fills `*error`.
bool ReadEvent(const InferRequest& request, std::string_view data, InferResponse* out,
               std::optional<ApiError>* error);

// The error of an answer that is not 200.
ApiError ReadError(int status, std::string_view body);

}  // namespace terrace::server::kserve

#endif  // TERRACE_SERVER_KSERVE_TRANSLATE_H_
