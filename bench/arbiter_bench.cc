// How long the arbiter takes to decide, at the size that the design promises: 10,000 queued
// requests of 50 tenants for 1,000 models.
#include <algorithm>
#include <vector>

#include "base/random.h"
#include "bench.h"
#include "scheduler/arbiter.h"

namespace terrace::bench {
namespace {

constexpr int kModels = 1000;
constexpr int kQueued = 10'000;
constexpr int kTenants = 50;

struct Snapshot {
  std::vector<scheduler::ArbiterModel> models;
  std::vector<scheduler::QueuedView> queued;
  std::vector<scheduler::ArbiterTenant> tenants;
};

// Zipf-like: half of the requests are for a few models.
Snapshot MakeSnapshot(Random* random, bool one_model) {
  Snapshot out;
  out.models.resize(kModels);
  for (auto& model : out.models) {
    model.weight_bytes = (1 + random->Below(64)) << 28;
    model.load_us = static_cast<int64_t>(random->Below(10'000'000));
    model.waiting_since_us = static_cast<int64_t>(random->Below(1'000'000));
  }
  out.tenants.resize(kTenants);
  for (auto& tenant : out.tenants) tenant.served = static_cast<double>(random->Below(1'000'000));
  for (int i = 0; i < kQueued; ++i) {
    const uint64_t range = one_model ? 1 : random->Below(2) == 0 ? 8 : kModels;
    out.queued.push_back({.model = static_cast<int32_t>(random->Below(range)),
                          .tenant = static_cast<int32_t>(random->Below(kTenants)),
                          .sla = static_cast<SlaClass>(random->Below(3)),
                          .arrived_us = static_cast<int64_t>(random->Below(1'000'000))});
  }
  return out;
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunArbiter(const Context& context) {
  const int rounds = context.quick ? 200 : 3000;
  Random random(20261130);
  std::vector<Row> rows;
  for (const bool one_model : {false, true}) {
    std::vector<double> took_us;
    size_t taken = 0;
    Snapshot snapshot;
    for (int round = 0; round < rounds; ++round) {
      if (round % 50 == 0) snapshot = MakeSnapshot(&random, one_model);
      const scheduler::ArbiterInput input{
          .now_us = 1'000'000 + round,
          .budget_bytes = uint64_t{80} << 30,
          .current = static_cast<int32_t>(random.Below(one_model ? 1 : kModels)),
          .models = snapshot.models,
          .queued = snapshot.queued,
          .tenants = snapshot.tenants};
      const int64_t start_us = context.clock->NowUs();
      taken += scheduler::Arbitrate({}, input).order.size();
      took_us.push_back(static_cast<double>(context.clock->NowUs() - start_us));
    }
    if (taken == 0) return absl::InternalError("no decision took a request in");
    std::sort(took_us.begin(), took_us.end());
    const char* where = one_model ? ", all for one model" : "";
    auto row = [&](const char* what, double us, double goal) {
      rows.push_back({.law = std::string("arbiter decision, 10,000 queued, 1,000 models") + where +
                             ": " + what,
                      .measured = us,
                      .unit = "us",
                      .goal_kind = Goal::kAtMost,
                      .goal = goal});
    };
    row("p99", took_us[took_us.size() * 99 / 100], 1000);
    row("longest", took_us.back(), 5000);
  }
  return rows;
}

}  // namespace terrace::bench
