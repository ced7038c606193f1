#include "base/hash.h"

#include <xxhash.h>
#if defined(__x86_64__)
// The same functions for the processor at hand: without it they are for the oldest, at less than
// half the speed.
#include <xxh_x86dispatch.h>
#endif

namespace terrace {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace terrace
