// Translates the config.json of a checkpoint into the metadata keys that GGUF files have, which the
// architectures read. Values that a config leaves out get the default that its family documents.
#ifndef TERRACE_FORMAT_FOLDER_HF_CONFIG_H_
#define TERRACE_FORMAT_FOLDER_HF_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json_node.h"
#include "base/metadata.h"

namespace terrace::format {

// How a family names and stores its tensors.
enum class Naming : uint8_t {
  kLlama,     // separate q, k, v; rotary pairs are halves, which GGUF interleaves
  kHalves,    // separate q, k, v, as GGUF has them (qwen2, qwen3)
  kGemma,     // norms around blocks, stored less one
  kPhi3,      // fused q, k, v and gate, up
  kDeepseek,  // latent attention
  kGptOss,
  kOlmo2,  // norms after blocks only
  kGlm4,   // norms around blocks
  kBert,
};

struct CheckpointConfig {
  Metadata metadata;
  std::string architecture;
  Naming naming = Naming::kLlama;
  bool tied = false;  // the head is the embedding
  int64_t layers = 0, experts = 0, heads = 0, kv_heads = 0, head_dim = 0, rope_dim = 0;
  int64_t nope_dim = 0, value_dim = 0;  // of latent attention
  bool int8_activations = false;    // INT8 weights are meant for activations rounded to INT8 (W8A8)
  std::vector<float> rope_factors;  // [rope_dim / 2]; empty: none
  // For contexts up to the original one and for longer ones (longrope); both or none.
  std::vector<float> rope_short_factors, rope_long_factors;
  std::string quantization;                // quant_method, or empty
  bool symmetric = true;                   // zero points are all in the middle (gptq)
  bool mixed_groups = false;               // the columns of a group are not neighbours (gptq)
  bool zeros_less_one = true;              // stored zero points are one too low (gptq)
  int64_t bits = 4, group = 0;             // of packed integers; group 0 or less: whole rows
  int64_t block_rows = 0, block_cols = 0;  // of block-scaled FP8; 0: not said
  std::vector<std::string> notes;          // defaults taken, for the log
};

// `root` is the whole of config.json. Unimplemented names a model_type, a rope scaling or a
// quantisation that this build does not read; InvalidArgument a value that cannot be.
absl::StatusOr<CheckpointConfig> ReadCheckpointConfig(const JsonNode& root);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FOLDER_HF_CONFIG_H_
