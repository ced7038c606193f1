// Copies what the tier manager counts into the metrics, when they are read, and how old that is.
#ifndef TERRACE_SERVER_TIER_METRICS_H_
#define TERRACE_SERVER_TIER_METRICS_H_

namespace terrace {
class Metrics;
}

namespace terrace::server {

class EngineView;

// False if the engine lets nobody look at it: then its state is as it was.
// REQUIRES: one thread at a time (hold a lock if several may scrape).
bool UpdateTierMetrics(EngineView* view, Metrics* metrics);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_TIER_METRICS_H_
