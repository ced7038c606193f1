// How the members of a group that computes one model together exchange what each has computed: the
// operations that a forward pass needs, over messages between pairs. How messages travel is a
// subclass's: memory of one process (thread_group.h) or MPI (mpi.h).
//
// All members call the same operations in the same order with the same sizes; a call returns when
// this member has what it needs. Sums are formed in order of rank, so all members get the same
// bits, whatever carries the messages. A communicator is used by one thread at a time.
#ifndef TERRACE_PARALLEL_COMMUNICATOR_H_
#define TERRACE_PARALLEL_COMMUNICATOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/index_range.h"
#include "device/collectives.h"

namespace terrace::parallel {

// What this member has exchanged by AllReduce and AllGather so far: payload, without what carries
// it.
struct Traffic {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t reduces = 0;
  uint64_t gathers = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // values[i] = the sum of all members' values[i]. Each member sums a run of about 1 / size of the
  // values and sends it to the others: all members together send 2 (size - 1) times the bytes of
  // `values`. Errors, here and below: Unavailable if a member has given up or is gone,
  // DeadlineExceeded if one keeps the others waiting for too long; `values` are of no use then, and
  // neither is the group (see the subclass).
  absl::Status AllReduce(std::span<float> values);
  // The same for values in the memory of the members' devices, which sum them among themselves; the
  // bits may then be another order's, but are the same at all members. REQUIRES: sums_on_device().
  // After an error the group has to be started again.
  absl::Status AllReduceOnDevice(float* values, uint64_t count);
  bool sums_on_device() const { return device_sums_ != nullptr; }
  void set_device_sums(std::unique_ptr<device::Collectives> sums) {
    device_sums_ = std::move(sums);
  }
  // Member r has filled values[parts[r]]; afterwards all members have all parts, of any sizes. All
  // members together send size - 1 times the parts' bytes.
  absl::Status AllGather(std::span<float> values, std::span<const IndexRange> parts);
  // `bytes` of member `from`, at all members, which wait for them without end: a group may have
  // nothing to do for long.
  absl::Status Broadcast(int32_t from, std::span<std::byte> bytes);
  // Returns when all members have called it.
  absl::Status Barrier();
  // The lowest rank of the members that `refuse`, the same at all members; kNobody if none does.
  static constexpr int32_t kNobody = -1;
  absl::StatusOr<int32_t> FirstToRefuse(bool refuse);

  // Tells the other members that this one will not go on, so that they need not wait; `why` is what
  // they are told. The group is of no use afterwards, until all have recovered.
  virtual void GiveUp(const absl::Status& why) = 0;
  // After a call that failed, or GiveUp: waits until all members have come here, and makes the
  // group fit for use again. Unimplemented where that is not to be had.
  virtual absl::Status Recover() {
    return absl::UnimplementedError("the group has to be started again");
  }

  // Thread-safe.
  Traffic traffic() const;

 protected:
  // Sends to member `to` and receives from member `from` (neither this one; kNobody: does not),
  // both exactly as many bytes as given; sizes may be 0. Returns when both are done or one has
  // failed; the spans are not used any more then. `endless`: however long that takes.
  virtual absl::Status Exchange(int32_t to, std::span<const std::byte> send, int32_t from,
                                std::span<std::byte> receive, bool endless) = 0;

 private:
  absl::Status GatherParts(std::span<float> values, std::span<const IndexRange> parts);
  absl::Status Swap(int32_t to, std::span<const float> send, int32_t from,
                    std::span<float> receive);

  std::unique_ptr<device::Collectives> device_sums_;  // null: sums go through the host
  std::vector<float> received_;  // the others' pieces of this member's run, by rank
  std::atomic<uint64_t> sent_bytes_{0}, received_bytes_{0}, reduces_{0}, gathers_{0};
};

}  // namespace terrace::parallel

#endif  // TERRACE_PARALLEL_COMMUNICATOR_H_
