// Requests of Ollama's API as bodies of the OpenAI API, and its answers as Ollama's. Private to
// server/ollama.cc.
#ifndef TERRACE_SERVER_OLLAMA_TRANSLATE_H_
#define TERRACE_SERVER_OLLAMA_TRANSLATE_H_

#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/exchange.h"
#include "server/relay_exchange.h"

namespace terrace {
class Clock;
}

namespace terrace::server {

struct OllamaJob {
  std::string path;  // of the OpenAI API
  std::string body;
  bool stream = true;
  bool empty = false;  // there is nothing to answer
};

// `served` is the name of the model as it is configured.
std::optional<ApiError> TranslateOllamaChat(const boost::json::object& from,
                                            const std::string& served, OllamaJob* out);
std::optional<ApiError> TranslateOllamaGenerate(const boost::json::object& from,
                                                const std::string& served, OllamaJob* out);

// What rewrites the answer of such a job for `exchange`. `asked`: the model's name as the client
// said it; `chat`: whether the client used /api/chat.
std::shared_ptr<AnswerReceiver> MakeOllamaReceiver(std::shared_ptr<Exchange> exchange,
                                                   const Clock* clock, std::string asked,
                                                   bool chat);

// "2026-01-31T12:00:00.000001Z"
std::string OllamaTime(int64_t wall_us);

HttpResponse OllamaError(const ApiError& error);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OLLAMA_TRANSLATE_H_
