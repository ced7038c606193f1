#include "server/failure.h"

#include <fmt/format.h>

#include "server/kserve_json.h"
#include "server/messages_writer.h"
#include "server/ollama_translate.h"

namespace terrace::server {
namespace {

bool Under(std::string_view path, std::string_view folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

HttpResponse FailureResponse(std::string_view path, const ApiError& error) {
  if (Under(path, "/v2")) return kserve::ErrorHttp(error);
  if (Under(path, "/api")) return OllamaError(error);
  if (Under(path, "/v1/messages")) return MessagesError(error);
  return ErrorResponse(error);
}

std::string FailureEvent(std::string_view path, std::string_view content_type,
                         const ApiError& error) {
  const std::string body = FailureResponse(path, error).body;
  if (!content_type.starts_with("text/event-stream")) return body + "\n";
  const bool named = Under(path, "/v1/messages") || Under(path, "/v1/responses");
  return fmt::format("{}data: {}\n\n", named ? "event: error\n" : "", body);
}

}  // namespace terrace::server
