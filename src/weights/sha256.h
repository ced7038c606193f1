// SHA-256 of a stream of bytes, as people give it beside downloads.
#ifndef TERRACE_WEIGHTS_SHA256_H_
#define TERRACE_WEIGHTS_SHA256_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

struct evp_md_ctx_st;

namespace terrace::weights {

// Move-only; not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(std::span<const std::byte> data);
  // 64 lower-case hexadecimal digits. Nothing can be added afterwards.
  std::string Finish();

 private:
  struct FreeContext {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, FreeContext> context_;
};

// `text` as 64 lower-case hexadecimal digits; "sha256:" may stand before them. InvalidArgument for
// anything else.
absl::StatusOr<std::string> ParseSha256(std::string_view text);

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_SHA256_H_
