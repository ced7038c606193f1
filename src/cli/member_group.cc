#include "cli/member_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <ostream>
#include <utility>

#include "base/status.h"
#include "cli/runtime.h"
#include "device/cpu/cpu_info.h"
#include "engine/follower.h"
#include "parallel/device_sums.h"
#include "parallel/mpi.h"

namespace terrace::cli {
namespace {

using Notice = std::function<void(const std::string&)>;

// Makers' chips sum among themselves if they can; said once, by the leader.
absl::Status JoinSums(const server::Config& config, parallel::Communicator* group,
                      const device::Device& device, const Notice& notice) {
  const server::DeviceKind kind = config.device.kind;
  if (kind != server::DeviceKind::kGpu && kind != server::DeviceKind::kNpu) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string why, parallel::JoinDeviceSums(group, device));
  if (group->rank() > 0) return absl::OkStatus();
  notice(why.empty() ? "sums over devices are computed by the devices"
                     : fmt::format("sums over devices go through host memory: {}", why));
  return absl::OkStatus();
}

// Follows as a member of `group`, with the parts of `runtime`.
absl::Status Follow(const server::Config& config, parallel::Communicator* group, Runtime* runtime,
                    const Notice& notice) {
  RETURN_IF_ERROR(JoinSums(config, group, runtime->device(), notice));
  engine::Follower follower(
      group, &runtime->engine(),
      [&](const engine::GroupModel& model) { return runtime->OpenShare(model, group); }, notice);
  absl::Status status = follower.Run();
  group->set_device_sums(nullptr);  // before the device goes
  return status;
}

absl::StatusOr<std::unique_ptr<parallel::Communicator>> JoinProcesses(int32_t size) {
  ASSIGN_OR_RETURN(std::unique_ptr<parallel::Communicator> group, parallel::JoinMpiGroup());
  if (group->size() == size) return group;
  return absl::InternalError(
      fmt::format("MPI says {} processes, the environment {}", group->size(), size));
}

}  // namespace

absl::StatusOr<int32_t> GroupSize(const server::Config& config) {
  int32_t size = 1;
  for (const server::ModelConfig& model : config.models) {
    for (const int32_t devices : {model.tensor_parallel, model.expert_parallel}) {
      if (devices == 1) continue;
      if (size != 1 && devices != size) {
        return absl::InvalidArgumentError(
            fmt::format("models: '{}' is divided among {} devices, and others among {}; all that "
                        "are divided must have the same number",
                        model.name, devices, size));
      }
      size = devices;
    }
  }
  const int32_t processes = parallel::MpiProcesses();
  if (processes > 1 && processes != size) {
    return absl::InvalidArgumentError(
        fmt::format("mpirun has started {} processes, but the models are divided among {} devices",
                    processes, size));
  }
  return size;
}

server::Config ConfigOfMember(server::Config config, int32_t rank, int32_t size) {
  if (parallel::MpiProcesses() == 1) {
    const int32_t threads = config.device.threads > 0 ? config.device.threads : CpuCount();
    config.device.threads = std::max(1, threads / size + (rank < threads % size ? 1 : 0));
    config.device.number += rank;
  } else {
    config.device.number += parallel::MpiLocalRank();
  }
  if (rank == 0) return config;
  config.kv.disk_bytes = 0;
  config.kv.host_bytes = 0;
  config.kv.remote.clear();
  config.memory.trace_pages = false;
  return config;
}

absl::StatusOr<std::unique_ptr<MemberGroup>> MemberGroup::Create(
    const server::Config& config, int32_t size, const device::Device& device,
    std::shared_ptr<engine::GroupNews> news, const Notice& notice) {
  std::unique_ptr<MemberGroup> group(new MemberGroup());
  if (parallel::MpiProcesses() > 1) {
    ASSIGN_OR_RETURN(group->process_, JoinProcesses(size));
    RETURN_IF_ERROR(JoinSums(config, group->process_.get(), device, notice));
    group->leader_ = std::make_unique<engine::Leader>(group->process_.get(), std::move(news));
    return group;
  }
  group->threads_ = std::make_unique<parallel::ThreadGroup>(size);
  for (int32_t rank = 1; rank < size; ++rank) {
    absl::StatusOr<std::unique_ptr<Runtime>> member =
        Runtime::CreateMember(ConfigOfMember(config, rank, size), size);
    if (!member.ok()) {
      return WithContext(member.status(), fmt::format("device {} of {}", rank + 1, size));
    }
    group->members_.push_back(*std::move(member));
  }
  for (int32_t rank = 1; rank < size; ++rank) {
    Runtime* runtime = group->members_[static_cast<size_t>(rank) - 1].get();
    parallel::Communicator* member = &group->threads_->member(rank);
    group->followers_.emplace_back([config, runtime, member, notice] {
      const absl::Status status = Follow(config, member, runtime, notice);
      if (!status.ok()) notice(std::string(Message(status)));
    });
  }
  const absl::Status joined = JoinSums(config, &group->threads_->member(0), device, notice);
  if (!joined.ok()) {
    group->threads_->member(0).GiveUp(joined);  // or the others would wait
    return joined;
  }
  group->leader_ = std::make_unique<engine::Leader>(&group->threads_->member(0), std::move(news));
  return group;
}

MemberGroup::~MemberGroup() {
  if (leader_ != nullptr) leader_->group()->set_device_sums(nullptr);  // before the device goes
  leader_.reset();
  for (std::thread& follower : followers_) follower.join();
}

void UpdateGroupMetrics(const parallel::Communicator* group, Metrics* metrics) {
  if (group == nullptr) return;
  const parallel::Traffic traffic = group->traffic();
  metrics->CounterFor(MetricId::kLinkBytes, {"to other devices"})
      .RaiseTo(static_cast<double>(traffic.sent_bytes));
  metrics->CounterFor(MetricId::kLinkBytes, {"from other devices"})
      .RaiseTo(static_cast<double>(traffic.received_bytes));
}

bool IsFollowingProcess() { return parallel::MpiProcesses() > 1 && parallel::MpiRank() > 0; }

absl::Status FollowLeader(const server::Config& config, Io* io) {
  ASSIGN_OR_RETURN(const int32_t size, GroupSize(config));
  // mpirun hands signals to all processes; the leader, which has requests to end, says when to
  // stop.
  std::signal(SIGTERM, SIG_IGN);
  std::signal(SIGINT, SIG_IGN);
  ASSIGN_OR_RETURN(std::unique_ptr<parallel::Communicator> group, JoinProcesses(size));
  absl::StatusOr<std::unique_ptr<Runtime>> runtime =
      Runtime::CreateMember(ConfigOfMember(config, group->rank(), size), 1);
  if (!runtime.ok()) {
    group->GiveUp(runtime.status());
    return runtime.status();
  }
  return Follow(config, group.get(), runtime->get(), [io](const std::string& message) {
    *io->err << fmt::format("terrace: {}\n", message);
  });
}

}  // namespace terrace::cli
