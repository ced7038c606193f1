// Reads arbitrary bytes as a low-rank adapter: as a GGUF file if they begin like one, else as a
// folder of the PEFT library: two bytes with the length of its adapter_config.json, that, and its
// safetensors file. What is accepted must keep the reader's promises, whatever the base model is.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "format/adapter.h"

namespace terrace::format {
namespace {

absl::StatusOr<AdapterSource> Read(std::span<const std::byte> input, const Metadata& base) {
  if (input.size() >= 4 && std::memcmp(input.data(), "GGUF", 4) == 0) {
    return ReadGgufAdapter(MemorySource("input.gguf", input), base);
  }
  if (input.size() < 2) return absl::InvalidArgumentError("too short");
  const size_t length = static_cast<size_t>(input[0]) | static_cast<size_t>(input[1]) << 8;
  input = input.subspan(2);
  const auto config = input.first(std::min(length, input.size()));
  return ReadPeftAdapter(MemorySource("adapter_config.json", config),
                         MemorySource("adapter_model.safetensors", input.subspan(config.size())),
                         base);
}

// Each matrix lies within the file and can be read; rows of B are only put in another order.
void Check(const AdapterSource& source, size_t size) {
  if (source.pairs.empty()) std::abort();
  std::set<std::string> names;
  for (const AdapterPair& pair : source.pairs) {
    if (!names.insert(pair.tensor).second || !std::isfinite(pair.scale)) std::abort();
    if (pair.rank < 1 || pair.in < 1 || pair.out < 1) std::abort();
    const uint64_t a =
        static_cast<uint64_t>(pair.rank) * RowBytes(pair.a_dtype, static_cast<uint64_t>(pair.in));
    const uint64_t b =
        static_cast<uint64_t>(pair.out) * RowBytes(pair.b_dtype, static_cast<uint64_t>(pair.rank));
    if (a > size || b > size) std::abort();
    std::vector<std::byte> bytes(a);
    if (!source.ReadA(pair, bytes).ok()) std::abort();
    bytes.resize(b);
    if (!source.ReadB(pair, bytes).ok()) std::abort();
    const std::set<uint32_t> rows(pair.b_rows.begin(), pair.b_rows.end());
    if (rows.empty()) continue;
    const auto out = static_cast<size_t>(pair.out);
    if (rows.size() != out || pair.b_rows.size() != out || *rows.rbegin() != out - 1) std::abort();
  }
}

void RunAll(std::span<const std::byte> input) {
  for (const char* architecture : {"llama", "qwen2"}) {
    Metadata base;
    const std::string name = architecture;
    base.Set("general.architecture", name);
    base.Set(name + ".attention.head_count", int64_t{4});
    base.Set(name + ".attention.head_count_kv", int64_t{2});
    auto source = Read(input, base);
    if (source.ok()) Check(*source, input.size());
  }
}

}  // namespace
}  // namespace terrace::format

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  terrace::format::RunAll(std::as_bytes(std::span(data, size)));
  return 0;
}
