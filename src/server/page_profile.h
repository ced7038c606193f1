// What is known of the reads of a model's weights, page by page, for `terrace profile` and the
// console.
#ifndef TERRACE_SERVER_PAGE_PROFILE_H_
#define TERRACE_SERVER_PAGE_PROFILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace terrace::tier {
class PageTrace;
class TierManager;
}  // namespace terrace::tier

namespace terrace::server {

// {"model","page_bytes","segments":[{"name","pages","read_pages","reads":[...]}]}: `reads` are of
// at most `cells` stretches of the segment, each the mean reads of its pages. FailedPrecondition if
// `trace` is null, NotFound for an unknown model.
absl::StatusOr<std::string> PageProfileJson(const tier::TierManager& manager,
                                            const tier::PageTrace* trace, const std::string& model,
                                            size_t cells);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_PAGE_PROFILE_H_
