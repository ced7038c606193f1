#include "ops/moe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/status.h"
#include "fmt/format.h"
#include "ops/backend.h"
#include "ops/check.h"

namespace terrace::ops {
namespace {

// The index of the largest of `values` that is not taken. What is not a number is never above
// anything, but is chosen when nothing else is left.
int32_t Best(std::span<const float> values, std::span<const uint8_t> taken) {
  int32_t best = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (taken[i]) continue;
    if (best < 0 || values[i] > values[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  return best;
}

// Chooses the experts of one token after another.
class Router {
 public:
  Router(const RouterParams& params, int32_t experts, Vector bias)
      : params_(params),
        bias_(bias),
        gated_(static_cast<size_t>(experts)),
        biased_(gated_.size()),
        taken_(gated_.size()),
        group_score_(static_cast<size_t>(params.groups)),
        group_taken_(group_score_.size()),
        chosen_(static_cast<size_t>(params.used)),
        shares_(chosen_.size()) {}

  void Route(const float* scores) {
    Gate(scores);
    for (size_t e = 0; e < gated_.size(); ++e) {
      biased_[e] = gated_[e] + (bias_.data != nullptr ? bias_.data[e] : 0.0f);
    }
    std::fill(taken_.begin(), taken_.end(), uint8_t{0});
    if (params_.groups_used < params_.groups) LimitGroups();
    double sum = 0;
    for (size_t i = 0; i < chosen_.size(); ++i) {
      chosen_[i] = Best(biased_, taken_);
      taken_[static_cast<size_t>(chosen_[i])] = 1;
      sum += shares_[i] = gated_[static_cast<size_t>(chosen_[i])];
    }
    // All sigmoids of a token may have come to 0: then the shares stay 0.
    const double factor = params_.normalize ? params_.scale / (sum + 1e-20) : params_.scale;
    for (float& share : shares_) share = static_cast<float>(share * factor);
  }

  std::span<const int32_t> chosen() const { return chosen_; }
  std::span<const float> shares() const { return shares_; }

 private:
  void Gate(const float* scores) {
    if (params_.gate == RouterParams::Gate::kSigmoid) {
      for (size_t e = 0; e < gated_.size(); ++e) {
        gated_[e] = static_cast<float>(1.0 / (1.0 + std::exp(-double{scores[e]})));
      }
      return;
    }
    const float largest = *std::max_element(scores, scores + gated_.size());
    double sum = 0;
    for (size_t e = 0; e < gated_.size(); ++e) sum += gated_[e] = std::exp(scores[e] - largest);
    for (float& value : gated_) value = static_cast<float>(value / sum);
  }

  void LimitGroups() {
    const size_t size = gated_.size() / group_score_.size();
    for (size_t g = 0; g < group_score_.size(); ++g) {
      const std::span<const float> group = std::span<const float>(biased_).subspan(g * size, size);
      const std::span<uint8_t> taken = std::span<uint8_t>(taken_).subspan(g * size, size);
      const int32_t first = Best(group, taken);
      group_score_[g] = group[static_cast<size_t>(first)];
      if (params_.gate == RouterParams::Gate::kSigmoid && size > 1) {
        taken[static_cast<size_t>(first)] = 1;
        group_score_[g] += group[static_cast<size_t>(Best(group, taken))];
      }
    }
    std::fill(taken_.begin(), taken_.end(), uint8_t{1});
    std::fill(group_taken_.begin(), group_taken_.end(), uint8_t{0});
    for (int32_t i = 0; i < params_.groups_used; ++i) {
      const auto g = static_cast<size_t>(Best(group_score_, group_taken_));
      group_taken_[g] = 1;
      std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(g * size), size, uint8_t{0});
    }
  }

  const RouterParams& params_;
  const Vector bias_;
  std::vector<float> gated_, biased_;
  std::vector<uint8_t> taken_;
  std::vector<float> group_score_;
  std::vector<uint8_t> group_taken_;
  std::vector<int32_t> chosen_;
  std::vector<float> shares_;
};

// The first `rows` rows of `m`.
Matrix Head(Matrix m, int32_t rows) {
  m.rows = rows;
  return m;
}

Matrix Row(Matrix m, int32_t row) {
  m.data = m.row(row);
  m.rows = 1;
  return m;
}

Vector BiasOf(const Vector& all, int32_t expert, int32_t rows) {
  if (all.data == nullptr) return {};
  return {all.data + int64_t{expert} * rows, rows};
}

absl::Status CheckExperts(const Matrix& x, const ExpertRouting& routing, const ExpertWeights& w,
                          const ExpertScratch& s, const Matrix& out) {
  RETURN_IF_ERROR(CheckMatrix("ExpertFfn", "input", x));
  RETURN_IF_ERROR(CheckMatrix("ExpertFfn", "output", out));
  const size_t experts = static_cast<size_t>(w.gate.count);
  const int32_t ffn = w.gate.first.rows;
  if (experts == 0 || w.up.count != w.gate.count || w.down.count != w.gate.count ||
      routing.first.size() != experts + 1 || routing.shares.size() != routing.rows.size() ||
      routing.first.front() != 0 ||
      routing.first.back() != static_cast<int64_t>(routing.rows.size()) ||
      !std::is_sorted(routing.first.begin(), routing.first.end())) {
    return absl::InvalidArgumentError(
        fmt::format("ExpertFfn: {}, {} and {} experts do not fit a routing of {}", w.gate.count,
                    w.up.count, w.down.count, routing.first.size()));
  }
  int32_t most = x.rows == 1 ? static_cast<int32_t>(routing.rows.size()) : 0;
  for (size_t e = 0; e < experts; ++e)
    most = std::max(most, routing.first[e + 1] - routing.first[e]);
  const bool rows_fit = std::all_of(routing.rows.begin(), routing.rows.end(),
                                    [&](int32_t row) { return row >= 0 && row < x.rows; });
  const auto bias_fits = [&](const Vector& bias, int32_t rows) {
    return bias.data == nullptr || bias.size == int64_t{w.gate.count} * rows;
  };
  if (!rows_fit || out.rows != x.rows || s.gathered.rows < most || s.gate.rows < most ||
      s.up.rows < most || s.down.rows < most || s.gathered.cols != x.cols || s.gate.cols != ffn ||
      s.up.cols != ffn || s.down.cols != out.cols || !bias_fits(w.gate_bias, ffn) ||
      !bias_fits(w.up_bias, w.up.first.rows) || !bias_fits(w.down_bias, w.down.first.rows)) {
    return absl::InvalidArgumentError(fmt::format(
        "ExpertFfn: input [{}, {}], output [{}, {}], FFN of {}, up to {} rows an expert", x.rows,
        x.cols, out.rows, out.cols, ffn, most));
  }
  return absl::OkStatus();
}

absl::Status RunGlu(Backend& backend, const ExpertWeights& w, Matrix gate, Matrix up) {
  if (w.clamp.limit > 0) return backend.GluClamped(w.clamp, gate, up, gate);
  return backend.Glu(w.activation, gate, up, gate);
}

// One token: its experts' gates and ups read the same input, hence are one MatMul.
absl::Status OneToken(Backend& backend, const Matrix& x, const ExpertRouting& routing,
                      const ExpertWeights& w, const ExpertScratch& s) {
  std::vector<MatMulTarget> targets;
  const auto used = static_cast<int32_t>(routing.rows.size());
  for (int32_t e = 0; e < w.gate.count; ++e) {
    for (int32_t i = routing.first[static_cast<size_t>(e)];
         i < routing.first[static_cast<size_t>(e) + 1]; ++i) {
      targets.push_back({w.gate.at(e), BiasOf(w.gate_bias, e, s.gate.cols), Row(s.gate, i)});
      targets.push_back({w.up.at(e), BiasOf(w.up_bias, e, s.up.cols), Row(s.up, i)});
    }
  }
  if (used == 0) return absl::OkStatus();
  RETURN_IF_ERROR(backend.MatMul(x, targets));
  RETURN_IF_ERROR(RunGlu(backend, w, Head(s.gate, used), Head(s.up, used)));
  for (int32_t e = 0; e < w.gate.count; ++e) {
    for (int32_t i = routing.first[static_cast<size_t>(e)];
         i < routing.first[static_cast<size_t>(e) + 1]; ++i) {
      MatMulTarget down{w.down.at(e), BiasOf(w.down_bias, e, s.down.cols), Row(s.down, i)};
      RETURN_IF_ERROR(backend.MatMul(Row(s.gate, i), {&down, 1}));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRouter(const RouterParams& params, int32_t experts) {
  if (experts < 1 || params.used < 1 || params.used > experts || params.groups < 1 ||
      experts % params.groups != 0 || params.groups_used < 1 ||
      params.groups_used > params.groups ||
      params.used > experts / params.groups * params.groups_used) {
    return absl::InvalidArgumentError(
        fmt::format("a token cannot use {} of {} experts, {} of {} groups", params.used, experts,
                    params.groups_used, params.groups));
  }
  return absl::OkStatus();
}

absl::Status RouteTokens(Matrix scores, Vector selection_bias, const RouterParams& params,
                         ExpertRouting* routing) {
  RETURN_IF_ERROR(CheckMatrix("RouteTokens", "scores", scores));
  RETURN_IF_ERROR(CheckRouter(params, scores.cols));
  if (selection_bias.data != nullptr && selection_bias.size != scores.cols) {
    return absl::InvalidArgumentError(
        fmt::format("RouteTokens: bias of {} for {} experts", selection_bias.size, scores.cols));
  }
  Router router(params, scores.cols, selection_bias);
  const size_t used = static_cast<size_t>(params.used);
  const size_t pairs = static_cast<size_t>(scores.rows) * used;
  std::vector<int32_t> chosen;
  std::vector<float> shares;
  chosen.reserve(pairs);
  shares.reserve(pairs);
  routing->first.assign(static_cast<size_t>(scores.cols) + 1, 0);
  for (int32_t r = 0; r < scores.rows; ++r) {
    router.Route(scores.row(r));
    for (size_t i = 0; i < used; ++i) {
      chosen.push_back(router.chosen()[i]);
      shares.push_back(router.shares()[i]);
      ++routing->first[static_cast<size_t>(chosen.back()) + 1];
    }
  }
  for (size_t e = 1; e < routing->first.size(); ++e) routing->first[e] += routing->first[e - 1];
  std::vector<int32_t> next(routing->first.begin(), routing->first.end() - 1);
  routing->rows.resize(pairs);
  routing->shares.resize(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(chosen[i])]++);
    routing->rows[at] = static_cast<int32_t>(i / used);
    routing->shares[at] = shares[i];
  }
  return absl::OkStatus();
}

ExpertRouting PartOf(const ExpertRouting& whole, int32_t first_expert, int32_t end_expert) {
  const int32_t low = whole.first[static_cast<size_t>(first_expert)];
  const int32_t high = whole.first[static_cast<size_t>(end_expert)];
  ExpertRouting part;
  part.add = first_expert > 0;
  part.rows.assign(whole.rows.begin() + low, whole.rows.begin() + high);
  part.shares.assign(whole.shares.begin() + low, whole.shares.begin() + high);
  part.first.reserve(whole.first.size());
  for (int32_t first : whole.first) part.first.push_back(std::clamp(first, low, high) - low);
  return part;
}

absl::Status Backend::GluClamped(const GluClamp& clamp, Matrix gate, Matrix up, Matrix out) {
  RETURN_IF_ERROR(CheckSameShape("GluClamped", gate, up));
  RETURN_IF_ERROR(CheckSameShape("GluClamped", gate, out));
  const float alpha = clamp.alpha, limit = clamp.limit;
  if (!(alpha > 0) || !(limit > 0)) {
    return absl::InvalidArgumentError("GluClamped: alpha and limit must be positive");
  }
  // x sigmoid(a x) (u + 1) = silu(a x) ((u + 1) / a): the costly part is the plain GLU's. The
  // comparisons leave what is not a number as it is.
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < gate.rows; ++r) {
    float* g = gate.row(r);
    float* u = up.row(r);
    for (int32_t i = 0; i < gate.cols; ++i) {
      g[i] = alpha * std::min(g[i], limit);
      u[i] = (std::min(std::max(u[i], -limit), limit) + 1.0f) / alpha;
    }
  }
  return Glu(Activation::kSilu, gate, up, out);
}

absl::Status Backend::ExpertFfn(Matrix x, const ExpertRouting& routing, const ExpertWeights& w,
                                const ExpertScratch& scratch, Matrix out) {
  RETURN_IF_ERROR(CheckExperts(x, routing, w, scratch, out));
  if (!routing.add) RETURN_IF_ERROR(Zero(out));
  // A token's experts are summed in ascending order, whatever the other tokens of the batch.
  if (x.rows == 1) {
    RETURN_IF_ERROR(OneToken(*this, x, routing, w, scratch));
    return AddScaledRows(Head(scratch.down, static_cast<int32_t>(routing.rows.size())),
                         routing.rows, routing.shares, out);
  }
  for (int32_t e = 0; e < w.gate.count; ++e) {
    const auto first = static_cast<size_t>(routing.first[static_cast<size_t>(e)]);
    const int32_t count = routing.first[static_cast<size_t>(e) + 1] - static_cast<int32_t>(first);
    if (count == 0) continue;
    const std::span<const int32_t> rows(routing.rows.data() + first, static_cast<size_t>(count));
    const Matrix gathered = Head(scratch.gathered, count);
    const Matrix gate = Head(scratch.gate, count), up = Head(scratch.up, count);
    const Matrix down = Head(scratch.down, count);
    RETURN_IF_ERROR(GatherRows(x, rows, gathered));
    const std::array<MatMulTarget, 2> inner = {
        MatMulTarget{w.gate.at(e), BiasOf(w.gate_bias, e, gate.cols), gate},
        MatMulTarget{w.up.at(e), BiasOf(w.up_bias, e, up.cols), up}};
    RETURN_IF_ERROR(MatMul(gathered, inner));
    RETURN_IF_ERROR(RunGlu(*this, w, gate, up));
    const MatMulTarget outer{w.down.at(e), BiasOf(w.down_bias, e, down.cols), down};
    RETURN_IF_ERROR(MatMul(gate, {&outer, 1}));
    const std::span<const float> shares(routing.shares.data() + first, rows.size());
    RETURN_IF_ERROR(AddScaledRows(down, rows, shares, out));
  }
  return absl::OkStatus();
}

absl::Status Backend::ScaleBySigmoid(Matrix x, Vector gate, Matrix out) {
  RETURN_IF_ERROR(CheckScaleBySigmoid(x, gate, out));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < x.rows; ++r) {
    double score = 0;
    for (int32_t i = 0; i < x.cols; ++i) score += double{x.row(r)[i]} * gate.data[i];
    const auto share = static_cast<float>(1.0 / (1.0 + std::exp(-score)));
    for (int32_t i = 0; i < out.cols; ++i) out.row(r)[i] *= share;
  }
  return absl::OkStatus();
}

}  // namespace terrace::ops
