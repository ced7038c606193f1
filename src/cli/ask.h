// Requests to a running server over HTTP, for commands that ask now and then.
#ifndef TERRACE_CLI_ASK_H_
#define TERRACE_CLI_ASK_H_

#include <boost/json.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::cli {

struct AskOptions {
  std::string key = {};                   // API key; may be empty
  std::string ca = {};                    // as in HttpRequest
  std::string body = {};                  // posted if not empty
  std::vector<std::string> headers = {};  // "Name: value"
  long timeout_s = 60;
  // Told of each line of the answer as it comes; may be empty.
  std::function<void(std::string_view line)> on_line = {};
};

// The body of the answer. Unavailable if nobody answers, PermissionDenied without the right,
// FailedPrecondition with the server's words if it refuses.
absl::StatusOr<std::string> AskServer(const std::string& url, const AskOptions& options);

// The models that the server lists, in its order. FailedPrecondition if it has none.
absl::StatusOr<std::vector<std::string>> ListModels(const std::string& url,
                                                    const AskOptions& options);

// The object at `path` ("/admin/state") of the admin port `base` ("http://127.0.0.1:8003"). Errors
// as AskServer's.
absl::StatusOr<boost::json::value> AskAdmin(const std::string& base, const std::string& path,
                                            AskOptions options);

// What an error in the shape of any of the APIs says.
std::string ErrorMessage(std::string_view body);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_ASK_H_
