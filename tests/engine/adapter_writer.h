// Random low-rank adapters for the golden models, as the PEFT library and as GGUF store them, and
// the checkpoint that results when they are merged into the weights.
#ifndef TERRACE_TESTS_ENGINE_ADAPTER_WRITER_H_
#define TERRACE_TESTS_ENGINE_ADAPTER_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint_writer.h"

namespace terrace::engine {

struct TestAdapter {
  struct Pair {
    std::string module;  // "model.layers.0.self_attn.q_proj"
    int64_t out = 0, in = 0;
    std::vector<float> a;  // [rank, in]
    std::vector<float> b;  // [out, rank]
  };
  int64_t rank = 0;
  double alpha = 0;
  std::vector<Pair> pairs;

  // adapter_config.json and adapter_model.safetensors.
  void WritePeft(const std::string& folder) const;
  // The same as one GGUF file. `heads` of query and of key matrices are interleaved; 0: none are.
  void WriteGguf(const std::string& path, const std::string& architecture, int64_t heads,
                 int64_t kv_heads) const;
  // `checkpoint` with W + alpha / rank * B A in float32 for every adapted matrix.
  Checkpoint Merge(const Checkpoint& checkpoint) const;
};

// Pairs for every attention and FFN matrix of `checkpoint`'s layers that can be adapted, whose
// products are about a quarter as large as the weights. Values are multiples of 2^-10, exact in
// F16.
TestAdapter RandomAdapter(const Checkpoint& checkpoint, int64_t rank, uint64_t seed);

}  // namespace terrace::engine

#endif  // TERRACE_TESTS_ENGINE_ADAPTER_WRITER_H_
