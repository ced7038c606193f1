// Helpers around absl::Status: early return, and adding context once at a border.
#ifndef TERRACE_BASE_STATUS_H_
#define TERRACE_BASE_STATUS_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

// The message of `status` as a standard string view (absl's own view is another type on some
// distributions, and fmt does not know it).
inline std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

// Returns `status` with "<context>: " before its message; an OK status is returned unchanged.
absl::Status WithContext(const absl::Status& status, std::string_view context);

// A Status for a failed system call: maps errno to a canonical code (ENOENT to NotFound, ENOSPC to
// ResourceExhausted, EACCES to PermissionDenied, others to Unavailable or Internal).
absl::Status ErrnoStatus(int error_number, std::string_view context);

}  // namespace terrace

#define TERRACE_CONCAT_INNER_(a, b) a##b
#define TERRACE_CONCAT_(a, b) TERRACE_CONCAT_INNER_(a, b)

// Returns from the enclosing function if `expr` is not OK.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    ::absl::Status terrace_status_ = (expr);           \
    if (!terrace_status_.ok()) return terrace_status_; \
  } while (0)

// ASSIGN_OR_RETURN(auto x, F()): declares x from F()'s value or returns its status.
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL_(TERRACE_CONCAT_(terrace_statusor_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr)   \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()

#endif  // TERRACE_BASE_STATUS_H_
