// How long whoever was refused should wait, carried by a Status from where it is known to where it
// is told.
#ifndef TERRACE_BASE_RETRY_AFTER_H_
#define TERRACE_BASE_RETRY_AFTER_H_

#include "absl/status/status.h"

namespace terrace {

// REQUIRES: `status` is not OK; `seconds` > 0.
void SetRetryAfter(int seconds, absl::Status* status);

// 0 if the status does not say.
int RetryAfterSeconds(const absl::Status& status);

}  // namespace terrace

#endif  // TERRACE_BASE_RETRY_AFTER_H_
