// XXH3-64 over bytes: the checksum of every block and the key of every content hash.
#ifndef TERRACE_BASE_HASH_H_
#define TERRACE_BASE_HASH_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace terrace {

uint64_t Hash64(const void* data, size_t bytes, uint64_t seed = 0);
inline uint64_t Hash64(std::string_view text, uint64_t seed = 0) {
  return Hash64(text.data(), text.size(), seed);
}

}  // namespace terrace

#endif  // TERRACE_BASE_HASH_H_
