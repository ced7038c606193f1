// FFNs of experts: which tensors they need, and their part of the forward pass.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/decoder_pass.h"

namespace terrace::model {

absl::Status Decoder::BindExperts(const TensorCatalog& catalog, int32_t layer, LayerTensors* t) {
  const ExpertConfig& e = config_.experts;
  const int64_t width = config_.width;
  const int64_t count = e.count, held = e.held, ffn = e.ffn_width;
  auto need = [&](const char* name, std::vector<int64_t> shape, bool required, int32_t* index) {
    return NeedInLayer(catalog, layer, name, std::move(shape), WeightProvider::Stage::kFfn,
                       required, index);
  };
  RETURN_IF_ERROR(need("ffn_gate_inp.weight", {count, width}, true, &t->router));
  RETURN_IF_ERROR(need("ffn_gate_exps.weight", {held, ffn, width}, true, &t->gate));
  RETURN_IF_ERROR(need("ffn_up_exps.weight", {held, ffn, width}, true, &t->up));
  RETURN_IF_ERROR(need("ffn_down_exps.weight", {held, width, ffn}, true, &t->down));
  if (e.biases) {
    RETURN_IF_ERROR(need("ffn_gate_inp.bias", {count}, true, &t->router_bias));
    RETURN_IF_ERROR(need("ffn_gate_exps.bias", {held, ffn}, true, &t->gate_bias));
    RETURN_IF_ERROR(need("ffn_up_exps.bias", {held, ffn}, true, &t->up_bias));
    // An expert that one member has as a whole gets its bias there.
    if (config_.share.experts || config_.adds_biases) {
      RETURN_IF_ERROR(need("ffn_down_exps.bias", {held, width}, true, &t->down_bias));
    }
  }
  if (e.selection_bias) {
    RETURN_IF_ERROR(need("exp_probs_b.bias", {count}, false, &t->selection_bias));
  }
  if (e.shared_width > 0) {
    const int64_t shared = e.shared_width;
    RETURN_IF_ERROR(need("ffn_gate_shexp.weight", {shared, width}, true, &t->shared_gate));
    RETURN_IF_ERROR(need("ffn_up_shexp.weight", {shared, width}, true, &t->shared_up));
    RETURN_IF_ERROR(need("ffn_down_shexp.weight", {width, shared}, true, &t->shared_down));
    if (e.shared_gate) {
      RETURN_IF_ERROR(need("ffn_gate_inp_shexp.weight", {width}, true, &t->shared_share));
    }
  }
  return absl::OkStatus();
}

absl::Status Decoder::Pass::ExpertFfn(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const ops::MatMulTarget router{w_.Matrix(t.router), Optional(t.router_bias), b_.scores};
  RETURN_IF_ERROR(be_.MatMul(b_.normed, {&router, 1}));
  // Routing is the host's.
  scores_.resize(static_cast<size_t>(b_.scores.rows) * static_cast<size_t>(b_.scores.cols));
  RETURN_IF_ERROR(be_.Read(b_.scores, scores_));
  ops::Vector selection_bias;
  if (t.selection_bias != kAbsent) {
    RETURN_IF_ERROR(ReadVector(w_.Vector(t.selection_bias), &selection_bias_));
    selection_bias = {selection_bias_.data(), static_cast<int32_t>(selection_bias_.size())};
  }
  const ops::Matrix scores{scores_.data(), b_.scores.rows, b_.scores.cols, b_.scores.cols};
  RETURN_IF_ERROR(ops::RouteTokens(scores, selection_bias, c_.experts.router, &routing_));
  ops::ExpertWeights weights;
  weights.gate_bias = Optional(t.gate_bias);
  weights.up_bias = Optional(t.up_bias);
  weights.down_bias = Optional(t.down_bias);
  weights.activation = c_.activation;
  weights.clamp = c_.glu_clamp;
  if (c_.share.experts) routing_ = HeldRouting();
  RETURN_IF_ERROR(RunExperts(layer, weights));
  // All that follows is computed by every member alike.
  if (c_.share.experts && !c_.share.tensor) RETURN_IF_ERROR(Sum(b_.block_out));
  if (t.shared_gate == kAbsent) return absl::OkStatus();
  const ops::MatMulTarget inner[] = {{w_.Matrix(t.shared_gate), {}, b_.shared_gate},
                                     {w_.Matrix(t.shared_up), {}, b_.shared_up}};
  RETURN_IF_ERROR(be_.MatMul(b_.normed, inner));
  RETURN_IF_ERROR(be_.Glu(c_.activation, b_.shared_gate, b_.shared_up, b_.shared_gate));
  // The experts' rooms are free again; a single row may have had more of them than it needs.
  ops::Matrix out = b_.experts.down;
  out.rows = b_.block_out.rows;
  const ops::MatMulTarget down{w_.Matrix(t.shared_down), {}, out};
  RETURN_IF_ERROR(be_.MatMul(b_.shared_gate, {&down, 1}));
  if (t.shared_share != kAbsent) {
    RETURN_IF_ERROR(be_.ScaleBySigmoid(b_.normed, w_.Vector(t.shared_share), out));
  }
  return be_.Add(b_.block_out, out);
}

absl::Status Decoder::Pass::RunExperts(int32_t layer, ops::ExpertWeights weights) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  used_experts_.clear();
  const int32_t held = c_.experts.held;
  for (int32_t e = 0; e < held; ++e) {
    const auto at = static_cast<size_t>(e);
    if (routing_.first[at + 1] > routing_.first[at]) used_experts_.push_back(e);
  }
  if (used_experts_.empty()) return be_.Zero(b_.block_out);
  int32_t begin = 0;  // experts below it are done
  for (size_t done = 0; done < used_experts_.size();) {
    ASSIGN_OR_RETURN(const size_t count,
                     w_.EnterExperts(layer, std::span(used_experts_).subspan(done)));
    done += count;
    const int32_t end = done == used_experts_.size() ? held : used_experts_[done];
    weights.gate = w_.Stack(t.gate);
    weights.up = w_.Stack(t.up);
    weights.down = w_.Stack(t.down);
    const bool whole = begin == 0 && end == held;
    absl::Status status =
        be_.ExpertFfn(b_.normed, whole ? routing_ : ops::PartOf(routing_, begin, end), weights,
                      b_.experts, b_.block_out);
    if (status.ok()) status = be_.Synchronize();  // their memory may be somebody else's next
    w_.LeaveExperts(layer);
    RETURN_IF_ERROR(status);
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace terrace::model
