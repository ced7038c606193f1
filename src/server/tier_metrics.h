// Copies what the tier manager counts into the metrics, when they are read.
#ifndef TERRACE_SERVER_TIER_METRICS_H_
#define TERRACE_SERVER_TIER_METRICS_H_

namespace terrace {
class Metrics;
}
namespace terrace::tier {
struct TierSnapshot;
}

namespace terrace::server {

// REQUIRES: one thread at a time (hold a lock if several may scrape).
void UpdateTierMetrics(const tier::TierSnapshot& snapshot, Metrics* metrics);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_TIER_METRICS_H_
