// Reads arbitrary bytes as a safetensors file; what is accepted must keep the reader's promises,
// and mapping its tensors (as a small qwen3 with mixed forms of weights) must too.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "format/folder/hf_tensors.h"
#include "format/safetensors.h"

namespace terrace::format {
namespace {

// Every tensor that comes of the mapping can be read: whole, and its last byte alone.
void ReadAll(const CheckpointConfig& config, const ByteSource& source,
             const std::vector<SafeTensor>& tensors) {
  RecipeReader reader({&source}, tensors);
  auto mapped = MapTensors(config, &reader);
  if (!mapped.ok()) return;
  for (const TensorInfo& tensor : *mapped) {
    if (tensor.bytes > (1 << 20)) continue;
    std::vector<std::byte> bytes(tensor.bytes);
    if (reader.Read(tensor.file, 0, bytes).ok() && tensor.bytes > 0) {
      std::byte last;
      if (!reader.Read(tensor.file, tensor.bytes - 1, std::span(&last, 1)).ok()) std::abort();
      if (last != bytes.back()) std::abort();
    }
  }
}

}  // namespace
}  // namespace terrace::format

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using terrace::format::Naming;
  auto source =
      terrace::format::MemorySource("input.safetensors", std::as_bytes(std::span(data, size)));
  auto header = terrace::format::ReadSafetensorsHeader(*source);
  if (!header.ok()) return 0;
  uint64_t total = 0;
  for (const terrace::format::SafeTensor& tensor : header->tensors) {
    total += tensor.bytes;
    if (tensor.offset + tensor.bytes > size || total > size) std::abort();
  }
  terrace::format::CheckpointConfig config;
  config.layers = 1;
  config.heads = config.kv_heads = 1;
  config.head_dim = config.rope_dim = 4;
  config.nope_dim = config.value_dim = 2;
  config.experts = 2;
  config.group = 32;
  for (Naming naming :
       {Naming::kLlama, Naming::kHalves, Naming::kGemma, Naming::kDeepseek, Naming::kGptOss}) {
    config.naming = naming;
    config.quantization = naming == Naming::kGemma ? "awq" : "gptq";
    config.symmetric = naming == Naming::kLlama;
    terrace::format::ReadAll(config, *source, header->tensors);
  }
  return 0;
}
