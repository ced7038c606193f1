// A member of a group other than its leader (leader.h): opens the models that the leader names and
// computes the passes that it tells of, with KV blocks of its own for each of the leader's.
#ifndef TERRACE_ENGINE_FOLLOWER_H_
#define TERRACE_ENGINE_FOLLOWER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/group_message.h"
#include "parallel/communicator.h"
#include "tier/tier_manager.h"

namespace terrace::engine {

class Follower {
 public:
  using Opener = std::function<absl::StatusOr<std::shared_ptr<EngineModel>>(const GroupModel&)>;
  // `notice` is told what an operator should know. All must outlive the follower.
  Follower(parallel::Communicator* group, Engine* engine, Opener open,
           std::function<void(const std::string&)> notice)
      : group_(group), engine_(engine), open_(std::move(open)), notice_(std::move(notice)) {}

  // Follows until the leader says that there will be nothing more (OK), or until something fails
  // from which the group cannot recover: the others are told, and the status says what.
  absl::Status Run();

 private:
  // Does what the leader says next; false if there will be nothing more.
  absl::StatusOr<bool> Next();
  absl::Status Step(const GroupMessage& message);
  absl::Status Open(const GroupModel& model);
  absl::Status Pass(const GroupPass& pass);
  // This member's addresses of the pass's blocks, of which those that are new are allocated.
  absl::Status MirrorBlocks(const EngineModel& model, const GroupPass& pass,
                            std::vector<std::vector<std::byte*>>* blocks);

  parallel::Communicator* const group_;
  Engine* const engine_;
  const Opener open_;
  const std::function<void(const std::string&)> notice_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<EngineModel>> models_;
  absl::flat_hash_map<uint64_t, tier::DeviceBuffer> blocks_;  // by address at the leader
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_FOLLOWER_H_
