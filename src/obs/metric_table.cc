#include "obs/metric_table.h"

#include <fmt/format.h>

#include <cstddef>

namespace terrace {
namespace {

using std::string_view;

constexpr string_view kModel[] = {"model"};
constexpr string_view kModelCode[] = {"model", "code"};
constexpr string_view kModelSource[] = {"model", "source"};
constexpr string_view kModelBy[] = {"model", "by"};
constexpr string_view kModelHow[] = {"model", "how"};
constexpr string_view kLink[] = {"link"};
constexpr string_view kTier[] = {"tier"};
constexpr string_view kTierKind[] = {"tier", "kind"};
constexpr string_view kCode[] = {"code"};
constexpr string_view kResult[] = {"result"};
constexpr string_view kKind[] = {"kind"};
constexpr string_view kTenant[] = {"tenant"};
constexpr string_view kWhy[] = {"why"};

// From a hot answer (milliseconds) to a cold load of a large model (minutes).
constexpr double kLatency[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                               0.5,   1,      2.5,   5,    10,    30,   60,  120};
// From a tiny model on a fast device to a stream that shares its device with a long prefill.
constexpr double kTokenGap[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03,
                                0.05,   0.075, 0.1,    0.2,   0.5,  1,    2.5};

constexpr MetricInfo kTable[] = {
    {MetricId::kRequests,
     "terrace_requests_total",
     MetricType::kCounter,
     "",
     kModelCode,
     "Requests answered, by model and HTTP status.",
     {}},
    {MetricId::kRunningRequests,
     "terrace_running_requests",
     MetricType::kGauge,
     "",
     kModel,
     "Requests that are in prefill or decode now.",
     {}},
    {MetricId::kQueueLength,
     "terrace_queue_length",
     MetricType::kGauge,
     "",
     kModel,
     "Requests that wait for their model or for a place in its batch.",
     {}},
    {MetricId::kQueueSeconds, "terrace_queue_seconds", MetricType::kHistogram, "seconds", kModel,
     "Time from arrival to the start of prefill.", kLatency},
    {MetricId::kTimeToFirstTokenSeconds, "terrace_time_to_first_token_seconds",
     MetricType::kHistogram, "seconds", kModel, "Time from arrival to the first generated token.",
     kLatency},
    {MetricId::kInterTokenSeconds, "terrace_inter_token_seconds", MetricType::kHistogram, "seconds",
     kModel, "Time between two generated tokens of one request.", kTokenGap},
    {MetricId::kRequestSeconds, "terrace_request_seconds", MetricType::kHistogram, "seconds",
     kModel, "Time from arrival to the end of the answer.", kLatency},
    {MetricId::kPromptTokens,
     "terrace_prompt_tokens_total",
     MetricType::kCounter,
     "tokens",
     kModel,
     "Prompt tokens of the requests that reached prefill.",
     {}},
    {MetricId::kGeneratedTokens,
     "terrace_generated_tokens_total",
     MetricType::kCounter,
     "tokens",
     kModel,
     "Tokens generated.",
     {}},
    {MetricId::kSwaps,
     "terrace_swaps_total",
     MetricType::kCounter,
     "",
     kModel,
     "Times a request found weights of its model missing from the device tier.",
     {}},
    {MetricId::kSwapSeconds, "terrace_swap_seconds", MetricType::kHistogram, "seconds", kModel,
     "Time a request waited for weights of its model to arrive.", kLatency},
    {MetricId::kSegmentLoads,
     "terrace_segment_loads_total",
     MetricType::kCounter,
     "",
     kModel,
     "Weight segments brought into the device tier.",
     {}},
    {MetricId::kSegmentEvictions,
     "terrace_segment_evictions_total",
     MetricType::kCounter,
     "",
     kModel,
     "Weight segments dropped from the device tier.",
     {}},
    {MetricId::kChecksumFailures,
     "terrace_checksum_failures_total",
     MetricType::kCounter,
     "",
     {},
     "Blocks that did not match their checksum when they were read.",
     {}},
    {MetricId::kScrubbedBytes,
     "terrace_scrubbed_bytes_total",
     MetricType::kCounter,
     "bytes",
     {},
     "Bytes of images on disk that were read in idle time and matched their checksums.",
     {}},
    {MetricId::kScrubDamage,
     "terrace_scrub_damage_total",
     MetricType::kCounter,
     "",
     {},
     "Segments of images that did not, and were to be made anew.",
     {}},
    {MetricId::kLinkBytes,
     "terrace_link_bytes_total",
     MetricType::kCounter,
     "bytes",
     kLink,
     "Bytes moved over a link between two tiers, or to and from other devices that compute a "
     "model together.",
     {}},
    {MetricId::kHeldLoadSeconds,
     "terrace_held_load_seconds_total",
     MetricType::kCounter,
     "seconds",
     kModelBy,
     "Time in which weights of a model moved slower than they could, for the sake of streams of "
     "another one (by): scheduler.decode_slowdown.",
     {}},
    {MetricId::kLoadLimit,
     "terrace_load_limit_bytes_per_second",
     MetricType::kGauge,
     "bytes_per_second",
     {},
     "What loads may move now, while streams of other models decode; 0: no limit.",
     {}},
    {MetricId::kMemoryBytes,
     "terrace_memory_bytes",
     MetricType::kGauge,
     "bytes",
     kTierKind,
     "Bytes that the ledger has given out on a tier, by kind.",
     {}},
    {MetricId::kBudgetBytes,
     "terrace_budget_bytes",
     MetricType::kGauge,
     "bytes",
     kTier,
     "Bytes that a tier may hold.",
     {}},
    {MetricId::kKvTokens,
     "terrace_kv_tokens_total",
     MetricType::kCounter,
     "tokens",
     kModelSource,
     "Prompt tokens by where their KV came from: device, host, disk, remote, or computed.",
     {}},
    {MetricId::kKvPreemptions,
     "terrace_kv_preemptions_total",
     MetricType::kCounter,
     "",
     kModelHow,
     "Sequences that gave way for memory: their KV moved to disk, or dropped to be computed again.",
     {}},
    {MetricId::kGuessedTokens,
     "terrace_guessed_tokens_total",
     MetricType::kCounter,
     "tokens",
     kModel,
     "Tokens guessed ahead of the model (speculation).",
     {}},
    {MetricId::kAcceptedTokens,
     "terrace_accepted_tokens_total",
     MetricType::kCounter,
     "tokens",
     kModel,
     "Guessed tokens that the model said too; over guessed tokens, the acceptance rate.",
     {}},
    {MetricId::kErrors,
     "terrace_errors_total",
     MetricType::kCounter,
     "",
     kCode,
     "Requests that ended in an error, by its code.",
     {}},
    {MetricId::kConfigReloads,
     "terrace_config_reloads_total",
     MetricType::kCounter,
     "",
     kResult,
     "Times the configuration was read again, by whether it was applied: ok, or error.",
     {}},
    {MetricId::kVersionRollbacks,
     "terrace_version_rollbacks_total",
     MetricType::kCounter,
     "",
     kModel,
     "Times a version on trial lost its share of the traffic because its requests failed.",
     {}},
    {MetricId::kRestarts,
     "terrace_restarts_total",
     MetricType::kCounter,
     "",
     kWhy,
     "Times the server was started again by its supervisor, by why: crash, or hang.",
     {}},
    {MetricId::kHostMemory,
     "terrace_host_memory_bytes",
     MetricType::kGauge,
     "bytes",
     kKind,
     "Host memory: resident in this process, and available to all.",
     {}},
    {MetricId::kUtilisation,
     "terrace_device_utilisation_ratio",
     MetricType::kGauge,
     "ratio",
     {},
     "How busy the device is, from 0 to 1.",
     {}},
    {MetricId::kTemperature,
     "terrace_device_temperature_celsius",
     MetricType::kGauge,
     "celsius",
     {},
     "Temperature of the device, where it tells.",
     {}},
    {MetricId::kPower,
     "terrace_device_power_watts",
     MetricType::kGauge,
     "watts",
     {},
     "Power that the device takes, where it tells.",
     {}},
    {MetricId::kLinkRate,
     "terrace_link_bytes_per_second",
     MetricType::kGauge,
     "bytes_per_second",
     kLink,
     "Bytes a second into device memory (to-device) and from the disk (from-disk), lately.",
     {}},
    {MetricId::kOldestWait,
     "terrace_queue_oldest_seconds",
     MetricType::kGauge,
     "seconds",
     {},
     "How long the longest-waiting request has waited.",
     {}},
    {MetricId::kTenantCompute,
     "terrace_tenant_compute_seconds_total",
     MetricType::kCounter,
     "seconds",
     kTenant,
     "Computing done for a tenant; default for requests without one.",
     {}},
    {MetricId::kEngineStale,
     "terrace_engine_stale_seconds",
     MetricType::kGauge,
     "seconds",
     {},
     "How long the engine has let nobody look at it: memory and queue are as before; 0: it does.",
     {}},
};

constexpr bool IsOrdered() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (static_cast<size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(IsOrdered(), "the table is indexed by MetricId");

}  // namespace

std::span<const MetricInfo> MetricTable() { return kTable; }

const MetricInfo& DescribeMetric(MetricId id) { return kTable[static_cast<size_t>(id)]; }

std::string_view MetricTypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::string MetricTableMarkdown() {
  std::string out = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const MetricInfo& info : kTable) {
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", info.name, MetricTypeName(info.type),
                       info.unit.empty() ? "count" : info.unit,
                       fmt::join(info.labels.begin(), info.labels.end(), ", "), info.help);
  }
  return out;
}

}  // namespace terrace
