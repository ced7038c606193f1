// Reads arbitrary bytes as a GGUF file; what is accepted must keep the reader's promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "format/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace::format;
  auto source = MemorySource("input.gguf", std::as_bytes(std::span(data, size)));
  auto header = ReadGgufHeader(*source);
  if (!header.ok()) return 0;
  uint64_t total = 0;
  for (const TensorInfo& tensor : header->tensors) {
    if (tensor.shape.size() > 4) std::abort();
    total += tensor.bytes;
    if (total > size) std::abort();  // tensors that overlap or lie outside
    std::vector<std::byte> bytes(tensor.bytes);
    if (!source->ReadAt(tensor.offset, bytes).ok()) std::abort();
  }
  return 0;
}
