// Member 0 of a group, whose engine decides what is computed: before each pass of a divided model
// it tells the other members (follower.h) what to compute. Thread-safe.
#ifndef TERRACE_ENGINE_LEADER_H_
#define TERRACE_ENGINE_LEADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/group_message.h"
#include "parallel/communicator.h"

namespace terrace::engine {

class EngineModel;

// What the leader will tell with its next message: KV blocks that its tier manager has freed, among
// those that the others have, and models that are gone, which it tells of at once. Thread-safe;
// shared by the leader with the manager and with models, which may be destroyed after it.
class GroupNews {
 public:
  void Mirrored(uint64_t block);
  void Freed(const std::byte* address);  // for tier::TierManagerOptions::freed
  void Closed(uint32_t model);
  // Moves what is to be told into `message`.
  void Take(GroupMessage* message);
  // Waits until a model was closed that nobody has been told of (true), or for Stop (false).
  bool AwaitClosed();
  void Stop();

 private:
  absl::Mutex mutex_;
  absl::flat_hash_set<uint64_t> mirrored_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> freed_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> closed_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

class Leader {
 public:
  // `group` is member 0 of it; must outlive the leader.
  Leader(parallel::Communicator* group, std::shared_ptr<GroupNews> news);
  // Tells the members that there will be nothing more.
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  parallel::Communicator* group() { return group_; }

  // Opens `model` at the other members and by `here` (which is given its id) at this one.
  // FailedPrecondition, naming the member, if one cannot; Unavailable if the group is broken.
  using Opener = std::function<absl::StatusOr<std::shared_ptr<EngineModel>>(const GroupModel&)>;
  absl::StatusOr<std::shared_ptr<EngineModel>> Open(GroupModel model, const Opener& here);

  // Has all members compute `pass`, this one by `compute`. ResourceExhausted, naming the member, if
  // one has no memory for it: then nothing was computed. Unavailable if computing fails at any
  // member; if the group cannot recover from that, so are all later calls.
  absl::Status Pass(const GroupPass& pass, const std::function<absl::Status()>& compute);

 private:
  // With what is new.
  absl::Status Tell(GroupMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Send(GroupMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Broken(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until the news stop: an unloaded model's memory is not to stay with the others until there is
  // something to compute.
  void TellOfClosed();

  parallel::Communicator* const group_;
  const std::shared_ptr<GroupNews> news_;
  absl::Mutex mutex_;  // held while members talk
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  uint32_t last_model_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread teller_;
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_LEADER_H_
