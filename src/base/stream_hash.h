// XXH3-64 over bytes that come in pieces: the value is that of Hash64 over all of them.
#ifndef TERRACE_BASE_STREAM_HASH_H_
#define TERRACE_BASE_STREAM_HASH_H_

#include <cstddef>
#include <cstdint>

namespace terrace {

// May be copied. Used by one thread at a time.
class StreamHash64 {
 public:
  StreamHash64();
  void Add(const void* data, size_t bytes);
  uint64_t Value() const;

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace terrace

#endif  // TERRACE_BASE_STREAM_HASH_H_
