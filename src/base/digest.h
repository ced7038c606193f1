// SHA-256 (FIPS 180-4) for what an attacker must not be able to collide: keys of KV blocks,
// identities of files. For checksums against accidents use base/hash.h, which is far faster.
#ifndef TERRACE_BASE_DIGEST_H_
#define TERRACE_BASE_DIGEST_H_

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace terrace {

// The first 16 bytes of a SHA-256: collisions take about 2^64 tries.
struct Digest128 {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const Digest128&) const = default;
  std::string Hex() const;

  template <typename H>
  friend H AbslHashValue(H h, const Digest128& digest) {
    uint64_t word = 0;
    std::memcpy(&word, digest.bytes.data(), sizeof(word));
    return H::combine(std::move(h), word);
  }
};

// Of `parts` one after the other, each preceded by its length, so that no two lists of parts give
// the same bytes.
Digest128 DigestParts(std::span<const std::string_view> parts);

// Of a parent's digest and raw bytes: one link of a hash chain.
Digest128 DigestChain(const Digest128& parent, std::span<const std::byte> data);

}  // namespace terrace

#endif  // TERRACE_BASE_DIGEST_H_
