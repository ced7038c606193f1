// What a decoder-only transformer is, as data: one struct that the architecture files fill from a
// model's metadata and that the decoder composes its layers from.
#ifndef TERRACE_MODEL_CONFIG_H_
#define TERRACE_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/moe.h"
#include "ops/types.h"

namespace terrace::model {

// What differs from layer to layer.
struct LayerConfig {
  int32_t window = 0;    // sliding attention window in tokens; 0: full attention
  ops::RopeParams rope;  // frequency_factors are bound at run time, see uses_rope_factors
  bool experts = false;  // the FFN is ExpertConfig's, not the dense one
};

// Mixture-of-experts FFNs, in the layers that have them.
struct ExpertConfig {
  int32_t count = 0;            // 0: the model has none
  int32_t first = 0, held = 0;  // those that this share of the model has; alone: all
  int32_t ffn_width = 0;        // of one expert
  int32_t shared_width = 0;     // of the FFN that every token goes through as well; 0: none
  bool shared_gate = false;     // a token takes a share of that FFN, by a gate of its own
  bool biases = false;          // of the router and of the experts must be there
  bool selection_bias = false;  // exp_probs_b.bias is added to scores for the choice, if stored
  ops::RouterParams router;
};

// Multi-head latent attention (DeepSeek-V2, 2024): KV holds one head of [rope_dim rotated | kv_rank
// latent] keys whose latent part is the value; key_dim and value_dim of the Config are those of
// that head.
struct LatentConfig {
  int32_t kv_rank = 0;     // 0: plain attention
  int32_t query_rank = 0;  // 0: queries come from one matrix
  int32_t nope_dim = 0;    // unrotated dimensions of a query head before absorption
  int32_t rope_dim = 0;
  int32_t value_dim = 0;  // of a head after expansion
};

// What becomes of the states of an encoder's tokens: the text's vector.
enum class Pooling : uint8_t { kMean, kFirst };

// What one member of a group has of a model (share.h).
struct Share {
  int32_t rank = 0;
  int32_t size = 1;
  bool tensor = false;   // attention heads, FFN columns and the vocabulary are divided
  bool experts = false;  // experts are divided, each whole
};

struct Config {
  std::string architecture;  // "qwen3"
  int32_t width = 0;         // of the residual stream
  int32_t vocab_size = 0;    // bound from the embedding's shape
  // Rows of the embedding and of the head that this share has; alone: all of them.
  int32_t vocab_begin = 0, vocab_rows = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t key_dim = 0;  // of one head
  int32_t value_dim = 0;
  int32_t ffn_width = 0;
  int32_t trained_context = 0;  // tokens
  // Of models with rope factors for short and for long contexts: the tokens that the short ones are
  // for (0: the model has no such factors), and whether the long ones are used.
  int32_t original_context = 0;
  bool long_rope = false;
  float norm_epsilon = 0.0f;
  float embedding_scale = 1.0f;  // multiplies embedded rows
  float attention_scale = 0.0f;
  float attention_softcap = 0.0f;
  float logit_softcap = 0.0f;
  float logit_scale = 1.0f;     // multiplies logits
  float residual_scale = 1.0f;  // multiplies what each block adds to the residual stream
  ops::Activation activation = ops::Activation::kSilu;
  ops::GluClamp glu_clamp;  // of experts; limit 0: none
  ExpertConfig experts;
  LatentConfig latent;
  bool qkv_bias = false;       // biases of q, k, v must be there
  bool qk_norm = false;        // RMS norm of each query and key head before rope
  bool qk_norm_whole = false;  // RMS norm of all query heads together, and of all key heads
  bool pre_norms = true;       // RMS norm of what goes into each block
  bool fused_qkv = false;      // attn_qkv holds q, k, v stacked by rows
  bool fused_gate_up = false;  // ffn_up holds gate, up stacked by rows
  bool post_norms = false;     // RMS norm of what each block adds (gemma)
  bool sinks = false;          // attn_sinks.weight: a logit a head that only takes share away
  std::string ffn_norm_name = "ffn_norm.weight";
  bool uses_rope_factors = false;  // rope_freqs.weight is bound to rope layers without a window
  std::vector<LayerConfig> layers;
  Share share;
  bool adds_biases = true;  // of members that are summed one adds the biases of their outputs
  bool encoder = false;     // gives texts' vectors, no logits (encoder.h)
  Pooling pooling = Pooling::kMean;
  bool normalize_pooled = true;  // vectors get length 1

  int32_t layer_count() const { return static_cast<int32_t>(layers.size()); }
};

}  // namespace terrace::model

#endif  // TERRACE_MODEL_CONFIG_H_
