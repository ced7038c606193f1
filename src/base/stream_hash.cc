#include "base/stream_hash.h"

#define XXH_STATIC_LINKING_ONLY  // the state as an object of known size
#include <xxhash.h>

#include <new>

namespace terrace {

StreamHash64::StreamHash64() {
  static_assert(sizeof(XXH3_state_t) == sizeof(state_) && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void StreamHash64::Add(const void* data, size_t bytes) {
  XXH3_64bits_update(reinterpret_cast<XXH3_state_t*>(state_), data, bytes);
}

uint64_t StreamHash64::Value() const {
  return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(state_));
}

}  // namespace terrace
