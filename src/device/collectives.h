// Sums over memory of several chips of one maker, by its own library for that, which sends them
// from chip to chip.
#ifndef TERRACE_DEVICE_COLLECTIVES_H_
#define TERRACE_DEVICE_COLLECTIVES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::device {

// One chip's place in a group. Used by one thread at a time.
class Collectives {
 public:
  virtual ~Collectives() = default;
  // `values`, in this chip's memory, become the sum of all members' values; waits for that. All
  // members call it with the same `count` and in the same order, each on a thread of its own. After
  // an error the group is of no use.
  virtual absl::Status AllReduce(float* values, uint64_t count) = 0;
};

// A maker's library, for one chip.
class CollectiveLibrary {
 public:
  // What members need to find each other: as much as the largest library wants.
  using GroupId = std::array<std::byte, 4352>;

  virtual ~CollectiveLibrary() = default;
  // Made by one member, told to the others.
  virtual absl::StatusOr<GroupId> MakeId() const = 0;
  // Returns when all `size` members have called it.
  virtual absl::StatusOr<std::unique_ptr<Collectives>> Join(const GroupId& id, int32_t rank,
                                                            int32_t size) const = 0;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_COLLECTIVES_H_
