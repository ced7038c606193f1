#include "base/hash.h"

#include <xxhash.h>

namespace terrace {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace terrace
