// Writes GGUF models of a given shape with random weights: what benchmarks run on where no real
// model of that size is at hand. Same options, same bytes.
#ifndef TERRACE_BENCH_GENERATE_MODEL_H_
#define TERRACE_BENCH_GENERATE_MODEL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::bench {

// A qwen3 decoder with tied embeddings; with experts a qwen3moe one.
struct ModelShape {
  std::string name = "qwen3-0.6b";
  int32_t layers = 28;
  int32_t width = 1024;
  int32_t heads = 16;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;
  int32_t ffn_width = 3072;
  int32_t vocab = 151'936;
  int32_t context = 40'960;
  int32_t experts = 0;  // of ffn_width each; 0: a dense FFN
  int32_t experts_used = 0;
};

// "qwen3-0.6b" as published, or "small", "tiny", "small-moe" and "medium-moe" for tests. NotFound
// names the known ones.
absl::StatusOr<ModelShape> FindShape(std::string_view name);

// The formats that GenerateModel takes: "Q4_0", "Q4_K_M", "Q8_0", "F16", "BF16", "F32" and "W8A8";
// the mixed ones choose each tensor's type as published files of that name do.
std::vector<std::string> ModelFormats();

struct GenerateOptions {
  ModelShape shape;
  std::string format = "Q4_0";
  uint64_t seed = 1;
};

// The vocabulary is byte-level BPE: the 256 bytes, pairs of letters with their merges, fillers, and
// ChatML's three control tokens, so that any text can be encoded and chat works.
absl::Status GenerateModel(const GenerateOptions& options, const std::string& path);

// The path of such a model in `folder`, generated if it is not there yet.
absl::StatusOr<std::string> CachedModel(const GenerateOptions& options, const std::string& folder);

}  // namespace terrace::bench

#endif  // TERRACE_BENCH_GENERATE_MODEL_H_
