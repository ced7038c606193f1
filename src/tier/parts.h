// What the tier manager is built from. TierManager::Create makes the real parts; tests and the
// simulator bring their own.
#ifndef TERRACE_TIER_PARTS_H_
#define TERRACE_TIER_PARTS_H_

#include <functional>
#include <memory>

#include "os/worker_pool.h"
#include "storage/disk/block_reader.h"
#include "tier/policy.h"

namespace terrace::tier {

struct TierManagerParts {
  std::unique_ptr<storage::BlockReader> reader;
  std::unique_ptr<os::Executor> checks;     // short work: checksums and what follows from them
  std::unique_ptr<os::Executor> producers;  // long work: SegmentSource::Produce
  std::unique_ptr<EvictionPolicy> policy;
  // Stepped worlds only: moves the world on by one step. Blocking calls then call it instead of
  // waiting, and measure their patience on the injected clock. Null: threads wait.
  std::function<void()> step;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_PARTS_H_
