// One forward pass of a Decoder: the state that its stages share. Private to the decoder's own
// files; used by one thread.
#ifndef TERRACE_MODEL_DECODER_PASS_H_
#define TERRACE_MODEL_DECODER_PASS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/decoder.h"

namespace terrace::model {

class Decoder::Pass {
 public:
  // All of these outlive the pass.
  Pass(const Decoder& decoder, const ForwardInput& input, ops::Backend& backend,
       WeightProvider& weights, const Buffers& buffers)
      : d_(decoder), c_(decoder.config_), in_(input), be_(backend), w_(weights), b_(buffers) {}

  // From rows that are fetched for themselves, outside any stage; false if they can't be.
  absl::StatusOr<bool> EmbedFetched();
  // Each of these is called with its stage entered.
  absl::Status Embed();
  absl::Status Attention(int32_t layer);
  absl::Status Ffn(int32_t layer);
  absl::Status Head();

 private:
  ops::Vector Optional(int32_t tensor) const {
    return tensor == kAbsent ? ops::Vector{} : w_.Vector(tensor);
  }
  // A vector of weights on the host.
  absl::Status ReadVector(const ops::Vector& from, std::vector<float>* to);
  ops::RopeParams RopeOf(int32_t layer) const;
  ops::AttentionParams AttentionParamsOf(int32_t layer) const;
  // Attention into block_out, from normed.
  absl::Status PlainAttention(int32_t layer);
  absl::Status LatentAttention(int32_t layer);  // mla.cc
  // Heads of queries, before absorption, and the one latent key of each row, from normed.
  absl::Status LatentQueries(int32_t layer);  // mla.cc
  absl::Status LatentKeys(int32_t layer);     // mla.cc
  // Rows [first, first + batch.rows) of the pass that latent attention computes in one form.
  struct LatentRun {
    int32_t first = 0;
    bool expanded = false;
    ops::BatchRows batch;  // `sequences` below
    std::vector<ops::SequenceRows> sequences;
  };
  std::vector<LatentRun> LatentRuns() const;  // mla.cc
  // Heads of values of a run's rows into `values`.
  absl::Status Absorbed(int32_t layer, const LatentRun& run);  // mla.cc
  absl::Status Expanded(int32_t layer, const LatentRun& run);  // mla.cc
  // FFN into block_out, from normed.
  absl::Status DenseFfn(int32_t layer);
  absl::Status ExpertFfn(int32_t layer);  // moe_ffn.cc
  // The experts that rows were routed to, a group that fits at a time.
  absl::Status RunExperts(int32_t layer, ops::ExpertWeights weights);  // moe_ffn.cc
  // Adds what the rows' adapters make of `x` by the matrix `tensor` to `out`.
  absl::Status Adapt(ops::Matrix x, int32_t tensor, ops::Matrix out);  // adapt.cc
  // block_out of all members of the group, summed; nothing to do for a model that is whole.
  absl::Status SumBlock() { return c_.share.tensor ? Sum(b_.block_out) : absl::OkStatus(); }
  absl::Status Sum(ops::Matrix m);  // group.cc
  // The embedded rows of this member's part of the vocabulary, the others zero.
  absl::Status EmbedPart();  // group.cc
  // Logits of the whole vocabulary from those of each member's part.
  absl::Status GatherLogits();  // group.cc
  // The routing to the experts that this share of the model has, numbered from 0.
  ops::ExpertRouting HeldRouting() const;  // group.cc
  // Adds block_out, normed if there is a norm for it, to the residual stream.
  absl::Status AddBlock(int32_t post_norm);
  // What a block reads into normed: the stream, normed if there is a norm for it.
  absl::Status EnterBlock(int32_t norm);

  const Decoder& d_;
  const Config& c_;
  const ForwardInput& in_;
  ops::Backend& be_;
  WeightProvider& w_;
  const Buffers& b_;
  std::vector<float> rope_factors_;
  // Of the layer at hand.
  std::vector<float> scores_, selection_bias_;
  ops::ExpertRouting routing_;
  std::vector<float> exchanged_;  // what goes to the other members and comes from them
  std::vector<int32_t> used_experts_;
};

}  // namespace terrace::model

#endif  // TERRACE_MODEL_DECODER_PASS_H_
