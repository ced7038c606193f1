// Names of KV blocks: a chain of digests. A block's key covers its own 16 tokens and, through its
// parent's key, everything before them; the chain's root covers what else the values depend on and
// who may see them. Two sequences share a block only if all of that is equal.
#ifndef TERRACE_KV_BLOCK_KEY_H_
#define TERRACE_KV_BLOCK_KEY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/digest.h"

namespace terrace::kv {

inline constexpr int32_t kBlockTokens = 16;

using BlockKey = Digest128;

// What a chain's root depends on.
struct RootParts {
  std::string_view fingerprint;  // of the model's weights and layouts
  std::string_view adapter;      // "" for none
  std::string_view kv_dtype;     // "f16", "i8"
  std::string_view tenant;       // KV is never shared between tenants
};

inline BlockKey RootKey(const RootParts& parts) {
  const std::string_view all[] = {"terrace-kv-1", parts.fingerprint, parts.adapter, parts.kv_dtype,
                                  parts.tenant};
  return DigestParts(all);
}

// REQUIRES: tokens.size() == kBlockTokens.
inline BlockKey ChildKey(const BlockKey& parent, std::span<const int32_t> tokens) {
  return DigestChain(parent, std::as_bytes(tokens));
}

}  // namespace terrace::kv

#endif  // TERRACE_KV_BLOCK_KEY_H_
