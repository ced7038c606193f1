// The devices that models are divided among (docs/PARALLEL.md): in this process, each with memory,
// threads and an engine of its own, or one a process where mpirun has started several.
#ifndef TERRACE_CLI_MEMBER_GROUP_H_
#define TERRACE_CLI_MEMBER_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/cli.h"
#include "device/device.h"
#include "engine/leader.h"
#include "obs/metrics.h"
#include "parallel/communicator.h"
#include "parallel/thread_group.h"
#include "server/config.h"

namespace terrace::cli {

class Runtime;

// How many devices the models of `config` are divided among; 1: none is divided. InvalidArgument if
// they do not agree, or if mpirun has started another number of processes.
absl::StatusOr<int32_t> GroupSize(const server::Config& config);

// What member `rank` of `size` makes of `config`: its share of the processors, a device of its own,
// and, but for the leader, no stores of KV.
server::Config ConfigOfMember(server::Config config, int32_t rank, int32_t size);

class MemberGroup {
 public:
  // Makes the other members, and starts those of this process. `device` is the leader's and must
  // outlive the group. `notice` is told, on any thread, what an operator should know.
  static absl::StatusOr<std::unique_ptr<MemberGroup>> Create(
      const server::Config& config, int32_t size, const device::Device& device,
      std::shared_ptr<engine::GroupNews> news,
      const std::function<void(const std::string&)>& notice);
  // Waits for the members to end.
  ~MemberGroup();

  engine::Leader& leader() { return *leader_; }

 private:
  MemberGroup() = default;
  std::unique_ptr<parallel::ThreadGroup> threads_;   // or
  std::unique_ptr<parallel::Communicator> process_;  // this one, of several
  std::vector<std::unique_ptr<Runtime>> members_;    // of this process, but the leader
  std::vector<std::thread> followers_;
  std::unique_ptr<engine::Leader> leader_;
};

// What models that are divided among devices have exchanged, as seen from this one; `group` may be
// null.
void UpdateGroupMetrics(const parallel::Communicator* group, Metrics* metrics);

// Whether mpirun has started this process to follow another one.
bool IsFollowingProcess();
// Follows the leader until that ends. REQUIRES: IsFollowingProcess().
absl::Status FollowLeader(const server::Config& config, Io* io);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_MEMBER_GROUP_H_
