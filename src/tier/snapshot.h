// What a tier manager holds at a moment, for people and machines that look at it.
#ifndef TERRACE_TIER_SNAPSHOT_H_
#define TERRACE_TIER_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tier/compute_step.h"
#include "tier/types.h"

namespace terrace::tier {

struct SegmentState {
  std::string name;
  uint64_t bytes = 0;
  bool resident = false;
  bool loading = false;
  uint32_t pins = 0;
};

struct ModelState {
  std::string name;
  uint64_t bytes = 0;  // of all segments
  uint64_t resident_bytes = 0;
  uint64_t host_bytes = 0;       // copies on the host tier
  uint64_t loads_from_host = 0;  // of `loads`
  uint64_t loaded_bytes = 0;     // since start
  uint64_t loads = 0;            // segments loaded since start
  uint64_t evictions = 0;        // segments evicted since start
  int64_t last_used_us = 0;
  UseHistory history;
  AwaitedStore awaited;  // by its loads under way
  std::vector<SegmentState> segments;
};

struct TierSnapshot {
  uint64_t device_budget_bytes = 0;
  uint64_t device_used_bytes = 0;
  uint64_t host_budget_bytes = 0;  // 0: no cap
  uint64_t host_used_bytes = 0;
  std::vector<LedgerLine> ledger;
  std::vector<ModelState> models;
  std::vector<LinkState> links;
  uint64_t checksum_failures = 0;
  uint64_t pins = 0;             // handed out since start
  uint32_t waiting = 0;          // callers that wait now: for bytes, or for room
  bool waits_for_store = false;  // a model at work, for a store beyond this machine
  uint64_t remade = 0;  // segments made anew by their source, because the disk's would not do
  std::vector<HeldLoads> held_loads;
  // What loads may move in a second while the streams decode that do now; 0: no limit.
  double load_limit_bytes_per_s = 0;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_SNAPSHOT_H_
