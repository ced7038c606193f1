// Asks a running server's admin port, for commands that show what it does.
#ifndef TERRACE_CLI_ADMIN_CLIENT_H_
#define TERRACE_CLI_ADMIN_CLIENT_H_

#include <boost/json.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace terrace::cli {

// The object at `base` + `path` ("http://127.0.0.1:8003", "/admin/state"), with the API key of the
// environment's TERRACE_KEY, if there is one. Unavailable if nobody answers, PermissionDenied
// without the right, FailedPrecondition with the server's words if it refuses.
absl::StatusOr<boost::json::value> FetchAdmin(const std::string& base, const std::string& path);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_ADMIN_CLIENT_H_
