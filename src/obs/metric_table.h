// The one list of what Terrace measures. docs/METRICS.md documents it and a test compares the two,
// so a metric that is not here does not exist. Constant data, safe from any thread.
#ifndef TERRACE_OBS_METRIC_TABLE_H_
#define TERRACE_OBS_METRIC_TABLE_H_

#include <span>
#include <string>
#include <string_view>

namespace terrace {

enum class MetricType { kCounter, kGauge, kHistogram };

// In the order of the table.
enum class MetricId {
  kRequests,
  kRunningRequests,
  kQueueLength,
  kQueueSeconds,
  kTimeToFirstTokenSeconds,
  kInterTokenSeconds,
  kRequestSeconds,
  kPromptTokens,
  kGeneratedTokens,
  kSwaps,
  kSwapSeconds,
  kSegmentLoads,
  kSegmentEvictions,
  kChecksumFailures,
  kScrubbedBytes,
  kScrubDamage,
  kLinkBytes,
  kHeldLoadSeconds,
  kLoadLimit,
  kMemoryBytes,
  kBudgetBytes,
  kKvTokens,
  kKvPreemptions,
  kGuessedTokens,
  kAcceptedTokens,
  kErrors,
  kConfigReloads,
  kVersionRollbacks,
  kRestarts,
  kHostMemory,
  kUtilisation,
  kTemperature,
  kPower,
  kLinkRate,
  kOldestWait,
  kTenantCompute,
  kEngineStale,
};

struct MetricInfo {
  MetricId id;
  std::string_view
      name;  // terrace_*; counters end in _total, others in their unit if they have one.
  MetricType type;
  std::string_view unit;  // "seconds", "bytes", "tokens" or "" for a plain count.
  std::span<const std::string_view> labels;
  std::string_view help;            // One sentence.
  std::span<const double> buckets;  // Upper bounds of a histogram, rising; empty for other types.
};

// All metrics, ordered by id.
std::span<const MetricInfo> MetricTable();

// REQUIRES: `id` is one of the enumerators.
const MetricInfo& DescribeMetric(MetricId id);

// "counter", "gauge" or "histogram".
std::string_view MetricTypeName(MetricType type);

// The table as the Markdown table of docs/METRICS.md.
std::string MetricTableMarkdown();

}  // namespace terrace

#endif  // TERRACE_OBS_METRIC_TABLE_H_
