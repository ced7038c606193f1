#include "weights/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/text.h"

namespace terrace::weights {

void Sha256::FreeContext::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

// The functions below fail only when memory does, or with a build of OpenSSL without SHA-256.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Add(std::span<const std::byte> data) {
  EVP_DigestUpdate(context_.get(), data.data(), data.size());
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context_.get(), digest, &size);
  return fmt::format("{:02x}", fmt::join(digest, digest + size, ""));
}

absl::StatusOr<std::string> ParseSha256(std::string_view text) {
  std::string digits = ToLower(StripSpace(text));
  if (digits.starts_with("sha256:")) digits.erase(0, 7);
  if (digits.size() == 64 && digits.find_first_not_of("0123456789abcdef") == std::string::npos) {
    return digits;
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a SHA-256: 64 hexadecimal digits are", text));
}

}  // namespace terrace::weights
