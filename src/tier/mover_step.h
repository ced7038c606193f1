// What the tier manager's parts tell each other: who asks for room, and what has to be done next.
#ifndef TERRACE_TIER_MOVER_STEP_H_
#define TERRACE_TIER_MOVER_STEP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tier/page_table.h"
#include "tier/tier_manager.h"
#include "tier/transfer_queue.h"

namespace terrace::tier {

// Who asks for room, which settles what may be evicted for it.
struct RoomRequest {
  Model* model = nullptr;  // null: KV or workspace
  uint32_t segment = 0;
  Priority priority = Priority::kDemand;

  // Where the segment was last, so that a model keeps together and goes as one piece.
  device::PlaceHint Hint() const;
};
// Reads of file ranges that were asked for together; shared by its transfers' callbacks.
struct RangeReads {
  uint64_t id = 0;
  std::vector<FileRange> ranges;
  std::vector<bool> started;
  size_t left = 0;
  TierManager::RangeDone done;
};
// A step that has to run outside the lock.
struct MoverStep {
  enum class Type : uint8_t { kLocate, kProduce, kRead, kReadRange, kCopy } type;
  std::shared_ptr<Load> load;
  std::shared_ptr<RangeReads> ranges;  // of kReadRange, instead of a load
  Transfer transfer;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_MOVER_STEP_H_
