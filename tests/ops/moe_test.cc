// Routing against its definition by hand, and expert FFNs on every backend against a plain float64
// computation of each token by itself.
#include "ops/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cpu/thread_team.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"
#include "staged_backend.h"

namespace terrace::ops {
namespace {

struct Floats {
  Floats(int32_t rows, int32_t cols) : rows(rows), cols(cols), data(size_t(rows) * cols) {}
  Matrix view() { return {data.data(), rows, cols, cols}; }
  int32_t rows, cols;
  std::vector<float> data;
};

// The share of `expert` for `row`; 0 where it was not chosen.
float Share(const ExpertRouting& routing, int32_t expert, int32_t row) {
  for (int32_t i = routing.first[expert]; i < routing.first[expert + 1]; ++i) {
    if (routing.rows[i] == row) return routing.shares[i];
  }
  return 0.0f;
}

TEST(RouteTokens, SoftmaxOfTheChosen) {
  Floats scores(2, 4);
  scores.data = {1, 3, 2, 0, /**/ 5, 5, 5, 5};
  RouterParams params;
  params.used = 2;
  params.normalize = true;
  ExpertRouting routing;
  ASSERT_TRUE(RouteTokens(scores.view(), {}, params, &routing).ok());
  EXPECT_EQ(routing.rows.size(), 4u);
  EXPECT_NEAR(Share(routing, 1, 0), 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(Share(routing, 2, 0), 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_EQ(Share(routing, 0, 0), 0);
  // Of equals, the first.
  EXPECT_NEAR(Share(routing, 0, 1), 0.5, 1e-6);
  EXPECT_NEAR(Share(routing, 1, 1), 0.5, 1e-6);

  params.normalize = false;
  params.scale = 3;
  ASSERT_TRUE(RouteTokens(scores.view(), {}, params, &routing).ok());
  EXPECT_NEAR(Share(routing, 0, 1), 0.75, 1e-6);
}

TEST(RouteTokens, BiasChoosesButDoesNotWeigh) {
  Floats scores(1, 3);
  scores.data = {2, 1, 0};
  const float bias[] = {-10, 0.5f, 0};
  RouterParams params;
  params.gate = RouterParams::Gate::kSigmoid;
  params.used = 1;
  ExpertRouting routing;
  ASSERT_TRUE(RouteTokens(scores.view(), {bias, 3}, params, &routing).ok());
  EXPECT_NEAR(Share(routing, 1, 0), 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_EQ(Share(routing, 0, 0), 0);
}

TEST(RouteTokens, OnlyTheBestGroups) {
  // The second group holds the best expert, the first the best two together.
  Floats scores(1, 6);
  scores.data = {1, 1, -9, 1.5, -9, -9};
  RouterParams params;
  params.used = 2;
  params.groups = 2;
  params.groups_used = 1;
  params.gate = RouterParams::Gate::kSigmoid;
  ExpertRouting routing;
  ASSERT_TRUE(RouteTokens(scores.view(), {}, params, &routing).ok());
  EXPECT_GT(Share(routing, 0, 0), 0);
  EXPECT_GT(Share(routing, 1, 0), 0);
  EXPECT_EQ(Share(routing, 3, 0), 0);
  params.gate = RouterParams::Gate::kSoftmax;
  ASSERT_TRUE(RouteTokens(scores.view(), {}, params, &routing).ok());
  EXPECT_GT(Share(routing, 3, 0), 0);
  EXPECT_EQ(Share(routing, 0, 0), 0);
}

TEST(RouteTokens, WhatIsNotANumberStillRoutesToDistinctExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto gate : {RouterParams::Gate::kSoftmax, RouterParams::Gate::kSigmoid}) {
    Floats scores(1, 8);
    std::fill(scores.data.begin(), scores.data.end(), nan);
    scores.data[3] = std::numeric_limits<float>::infinity();
    RouterParams params;
    params.gate = gate;
    params.used = 4;
    params.groups = 4;
    params.groups_used = 2;
    ExpertRouting routing;
    ASSERT_TRUE(RouteTokens(scores.view(), {}, params, &routing).ok());
    int chosen = 0;
    for (int e = 0; e < 8; ++e) chosen += routing.first[e + 1] - routing.first[e] == 1;
    EXPECT_EQ(chosen, 4);
    EXPECT_TRUE(std::any_of(routing.shares.begin(), routing.shares.end(),
                            [](float share) { return std::isnan(share); }));
  }
}

TEST(RouteTokens, ImpossibleChoicesAreRefused) {
  const auto refused = [](int32_t experts, int32_t used, int32_t groups, int32_t groups_used) {
    RouterParams params;
    params.used = used;
    params.groups = groups;
    params.groups_used = groups_used;
    return !CheckRouter(params, experts).ok();
  };
  EXPECT_FALSE(refused(8, 2, 2, 1));
  EXPECT_TRUE(refused(8, 0, 1, 1));
  EXPECT_TRUE(refused(8, 9, 1, 1));
  EXPECT_TRUE(refused(8, 2, 3, 1));
  EXPECT_TRUE(refused(8, 2, 2, 3));
  EXPECT_TRUE(refused(8, 5, 2, 1));
}

class ExpertFfnTest : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int32_t kExperts = 5, kIn = 64, kFfn = 48, kOut = 64, kUsed = 2;

  void SetUp() override {
    if (GetParam() == "ref") {
      backend_ = CreateRefBackend(&team_);
    } else if (GetParam() == "kernels" || GetParam() == "scalar") {
      backend_ = CreateStagedBackend(GetParam() == "scalar" ? Items::kLanes : Items::kVectors);
    } else {
      auto backend = CreateCpuBackend(GetParam(), &team_, {.deterministic = true});
      ASSERT_TRUE(backend.ok()) << backend.status();
      backend_ = *std::move(backend);
    }
    for (auto* values : {&gate_, &up_, &down_, &gate_bias_, &up_bias_, &down_bias_}) {
      for (float& value : *values) value = UnitUniform();
    }
    weights_.gate = Pack(gate_, kFfn, kIn);
    weights_.up = Pack(up_, kFfn, kIn);
    weights_.down = Pack(down_, kOut, kFfn);
    weights_.gate_bias = {gate_bias_.data(), kExperts * kFfn};
    weights_.up_bias = {up_bias_.data(), kExperts * kFfn};
    weights_.down_bias = {down_bias_.data(), kExperts * kOut};
  }

  // Of RMS 1.
  float UnitUniform() { return 1.7320508f * random_.Signed(); }

  // The matrices of all experts in the backend's layout.
  WeightStack Pack(const std::vector<float>& values, int32_t rows, int32_t cols) {
    WeightStack stack;
    stack.count = kExperts;
    stack.first.dtype = DType::kF32;
    stack.first.rows = rows;
    stack.first.cols = cols;
    stack.first.layout = backend_->PreferredLayout(DType::kF32, rows, cols);
    stack.stride = backend_->PackedBytes(stack.first.layout, DType::kF32, rows, cols);
    packed_.emplace_back(stack.stride * kExperts + 64);
    std::byte* base = packed_.back().data();
    base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
    stack.first.data = base;
    const size_t size = size_t(rows) * cols;
    for (int32_t e = 0; e < kExperts; ++e) {
      const auto source = std::as_bytes(std::span(values).subspan(e * size, size));
      EXPECT_TRUE(backend_
                      ->Pack(stack.first.layout, DType::kF32, rows, cols, source,
                             {base + e * stack.stride, stack.stride})
                      .ok());
    }
    return stack;
  }

  // One token through one expert, in float64.
  std::vector<double> Exact(const float* x, int32_t e) const {
    std::vector<double> inner(kFfn), out(kOut);
    for (int32_t f = 0; f < kFfn; ++f) {
      double g = gate_bias_[e * kFfn + f], u = up_bias_[e * kFfn + f];
      for (int32_t i = 0; i < kIn; ++i) {
        g += double{x[i]} * gate_[(size_t(e) * kFfn + f) * kIn + i];
        u += double{x[i]} * up_[(size_t(e) * kFfn + f) * kIn + i];
      }
      const double limit = weights_.clamp.limit, alpha = limit > 0 ? weights_.clamp.alpha : 1.0;
      if (limit > 0) {
        g = std::min(g, limit);
        u = std::clamp(u, -limit, limit) + 1;
      }
      inner[f] = g / (1 + std::exp(-alpha * g)) * u;
    }
    for (int32_t o = 0; o < kOut; ++o) {
      out[o] = down_bias_[e * kOut + o];
      for (int32_t f = 0; f < kFfn; ++f) {
        out[o] += inner[f] * down_[(size_t(e) * kOut + o) * kFfn + f];
      }
    }
    return out;
  }

  std::vector<float> Run(Floats& x, const ExpertRouting& routing) {
    const int32_t most = std::max(x.rows, kUsed);
    Floats gathered(most, kIn), gate(most, kFfn), up(most, kFfn), down(most, kOut);
    Floats out(x.rows, kOut);
    const absl::Status status =
        backend_->ExpertFfn(x.view(), routing, weights_,
                            {gathered.view(), gate.view(), up.view(), down.view()}, out.view());
    EXPECT_TRUE(status.ok()) << status;
    return out.data;
  }

  void Check(int32_t rows) {
    Floats x(rows, kIn), scores(rows, kExperts);
    for (float& value : x.data) value = UnitUniform();
    for (float& value : scores.data) value = UnitUniform();
    RouterParams params;
    params.used = kUsed;
    params.normalize = true;
    ExpertRouting routing;
    ASSERT_TRUE(RouteTokens(scores.view(), {}, params, &routing).ok());
    const std::vector<float> out = Run(x, routing);
    double worst = 0, square = 0;
    for (int32_t r = 0; r < rows; ++r) {
      std::vector<double> want(kOut);
      for (int32_t e = 0; e < kExperts; ++e) {
        const float share = Share(routing, e, r);
        if (share == 0) continue;
        const std::vector<double> one = Exact(x.view().row(r), e);
        for (int32_t o = 0; o < kOut; ++o) want[o] += share * one[o];
      }
      for (int32_t o = 0; o < kOut; ++o) {
        worst = std::max(worst, std::abs(want[o] - out[size_t(r) * kOut + o]));
        square += want[o] * want[o];
      }
    }
    // float32 throughout: two sums of about 64 products and an exponential, each off by at most
    // 2^-24 of its terms' magnitudes, which are some 10 times the result's RMS at worst.
    const double rms = std::sqrt(square / (double(rows) * kOut));
    EXPECT_LE(worst, 2 * 64 * 10 * 0x1p-24 * rms) << rows << " rows";
    // A token's result is the same to the bit when it is alone.
    for (int32_t r = 0; r < rows; ++r) {
      Floats one(1, kIn), score(1, kExperts);
      std::copy_n(x.view().row(r), kIn, one.data.begin());
      std::copy_n(scores.view().row(r), kExperts, score.data.begin());
      ASSERT_TRUE(RouteTokens(score.view(), {}, params, &routing).ok());
      const std::vector<float> alone = Run(one, routing);
      EXPECT_EQ(std::memcmp(alone.data(), out.data() + size_t(r) * kOut, kOut * sizeof(float)), 0);
    }
  }

  ThreadTeam team_{2};
  std::unique_ptr<Backend> backend_;
  Random random_{20261129};
  std::vector<float> gate_ = std::vector<float>(kExperts * kFfn * kIn);
  std::vector<float> up_ = gate_;
  std::vector<float> down_ = std::vector<float>(kExperts * kOut * kFfn);
  std::vector<float> gate_bias_ = std::vector<float>(kExperts * kFfn);
  std::vector<float> up_bias_ = gate_bias_;
  std::vector<float> down_bias_ = std::vector<float>(kExperts * kOut);
  std::vector<std::vector<std::byte>> packed_;
  ExpertWeights weights_;
};

TEST_P(ExpertFfnTest, MatchesEachTokenByItself) {
  for (const int32_t rows : {1, 2, 7, 50}) Check(rows);
}

TEST_P(ExpertFfnTest, MatchesEachTokenByItselfClamped) {
  weights_.clamp.limit = 7.0f;  // of gates and ups whose RMS is 8
  for (const int32_t rows : {1, 7}) Check(rows);
}

TEST_P(ExpertFfnTest, RoutingsThatDoNotFitAreRefused) {
  Floats x(2, kIn), gate(2, kFfn), up(2, kFfn), down(2, kOut), gathered(2, kIn), out(2, kOut);
  const ExpertScratch scratch = {gathered.view(), gate.view(), up.view(), down.view()};
  const ExpertRouting good = {{0, 1, 2, 2, 2, 2}, {0, 1}, {1.0f, 1.0f}};
  EXPECT_TRUE(backend_->ExpertFfn(x.view(), good, weights_, scratch, out.view()).ok());
  const auto refused = [&](const ExpertRouting& routing) {
    return !backend_->ExpertFfn(x.view(), routing, weights_, scratch, out.view()).ok();
  };
  EXPECT_TRUE(refused({{0, 1, 2, 2, 2, 2}, {0, 2}, {1.0f, 1.0f}}));
  EXPECT_TRUE(refused({{0, 1, 2, 2, 2, 2}, {0, -1}, {1.0f, 1.0f}}));
  EXPECT_TRUE(refused({{0, 1, 2, 2, 2}, {0, 1}, {1.0f, 1.0f}}));
  EXPECT_TRUE(refused({{0, 3, 2, 2, 2, 2}, {0, 1}, {1.0f, 1.0f}}));
  EXPECT_TRUE(refused({{0, 1, 2, 2, 2, 2}, {0, 1}, {1.0f}}));
  EXPECT_TRUE(refused({{0, 3, 3, 3, 3, 3}, {0, 1, 1}, {1.0f, 1.0f, 1.0f}}));
}

std::vector<std::string> Names() {
  std::vector<std::string> names = {"ref"};
  for (const CpuVariant& variant : CpuVariants()) {
    if (variant.supported) names.push_back(variant.name);
  }
  if (HaveKernelDevice()) names.insert(names.end(), {"kernels", "scalar"});
  return names;
}
INSTANTIATE_TEST_SUITE_P(Backends, ExpertFfnTest, testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::ops
