#include "server/tier_metrics.h"

#include <array>
#include <memory>
#include <string_view>

#include "obs/metrics.h"
#include "server/engine_view.h"
#include "tier/tier_manager.h"

namespace terrace::server {
namespace {

constexpr std::array<std::string_view, 5> kTiers = {"device", "host", "disk", "object", "remote"};
constexpr std::array<std::string_view, 4> kKinds = {"weights", "kv", "workspace", "staging"};

}  // namespace

bool UpdateTierMetrics(EngineView* view, Metrics* metrics) {
  bool fresh = true;
  const std::shared_ptr<const EngineReading> reading = view->Read(&fresh);
  const tier::TierSnapshot& snapshot = reading->tiers;
  metrics->Set(MetricId::kEngineStale, {}, static_cast<double>(view->StaleUs()) * 1e-6);
  // Kinds that hold nothing are shown as 0, so that a gauge comes down again.
  std::array<std::array<double, kKinds.size()>, kTiers.size()> bytes{};
  for (const tier::LedgerLine& line : snapshot.ledger) {
    bytes[static_cast<size_t>(line.tier)][static_cast<size_t>(line.owner.kind)] +=
        static_cast<double>(line.bytes);
  }
  for (size_t tier = 0; tier < kTiers.size(); ++tier) {
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      metrics->Set(MetricId::kMemoryBytes, {kTiers[tier], kKinds[kind]}, bytes[tier][kind]);
    }
  }
  metrics->Set(MetricId::kBudgetBytes, {kTiers[0]},
               static_cast<double>(snapshot.device_budget_bytes));
  for (const tier::ModelState& model : snapshot.models) {
    metrics->CounterFor(MetricId::kSegmentLoads, {model.name})
        .RaiseTo(static_cast<double>(model.loads));
    metrics->CounterFor(MetricId::kSegmentEvictions, {model.name})
        .RaiseTo(static_cast<double>(model.evictions));
  }
  for (const tier::LinkState& link : snapshot.links) {
    metrics->CounterFor(MetricId::kLinkBytes, {link.name}).RaiseTo(static_cast<double>(link.bytes));
  }
  for (const tier::HeldLoads& held : snapshot.held_loads) {
    metrics->CounterFor(MetricId::kHeldLoadSeconds, {held.model, held.by})
        .RaiseTo(static_cast<double>(held.us) * 1e-6);
  }
  metrics->Set(MetricId::kLoadLimit, {}, snapshot.load_limit_bytes_per_s);
  metrics->CounterFor(MetricId::kChecksumFailures)
      .RaiseTo(static_cast<double>(snapshot.checksum_failures));
  return fresh;
}

}  // namespace terrace::server
