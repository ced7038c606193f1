#include "base/digest.h"

#include <openssl/sha.h>

#include <vector>

#include <fmt/format.h>

namespace terrace {
namespace {

Digest128 Sha256Prefix(const void* data, size_t bytes) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> full;
  SHA256(static_cast<const unsigned char*>(data), bytes, full.data());
  Digest128 digest;
  std::memcpy(digest.bytes.data(), full.data(), digest.bytes.size());
  return digest;
}

}  // namespace

std::string Digest128::Hex() const {
  std::string out;
  for (uint8_t byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

Digest128 DigestParts(std::span<const std::string_view> parts) {
  std::string joined;
  for (std::string_view part : parts) {
    const auto size = static_cast<uint64_t>(part.size());
    for (int shift = 0; shift < 64; shift += 8) {
      joined.push_back(static_cast<char>(static_cast<uint8_t>(size >> shift)));
    }
    joined += part;
  }
  return Sha256Prefix(joined.data(), joined.size());
}

Digest128 DigestChain(const Digest128& parent, std::span<const std::byte> data) {
  std::vector<uint8_t> joined(parent.bytes.begin(), parent.bytes.end());
  const auto* raw = reinterpret_cast<const uint8_t*>(data.data());
  joined.insert(joined.end(), raw, raw + data.size());
  return Sha256Prefix(joined.data(), joined.size());
}

}  // namespace terrace
