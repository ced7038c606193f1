#include "engine/follower.h"

#include <fmt/format.h>

#include <span>
#include <utility>
#include <vector>

#include "base/status.h"

namespace terrace::engine {

absl::Status Follower::Run() {
  for (;;) {
    absl::StatusOr<bool> more = Next();
    if (more.ok() && !*more) return absl::OkStatus();
    if (more.ok()) continue;
    group_->GiveUp(more.status());
    if (!group_->Recover().ok()) return more.status();
  }
}

absl::StatusOr<bool> Follower::Next() {
  uint64_t size = 0;
  RETURN_IF_ERROR(group_->Broadcast(0, std::as_writable_bytes(std::span<uint64_t>(&size, 1))));
  std::vector<std::byte> bytes(size);
  RETURN_IF_ERROR(group_->Broadcast(0, bytes));
  ASSIGN_OR_RETURN(const GroupMessage message, ParseGroupMessage(bytes));
  if (message.kind == GroupMessage::Kind::kStop) return false;
  RETURN_IF_ERROR(Step(message));
  return true;
}

absl::Status Follower::Step(const GroupMessage& message) {
  for (const uint64_t block : message.freed) blocks_.erase(block);
  for (const uint32_t model : message.closed) models_.erase(model);
  if (message.kind == GroupMessage::Kind::kNews) return absl::OkStatus();
  return message.kind == GroupMessage::Kind::kOpen ? Open(message.model) : Pass(message.pass);
}

absl::Status Follower::Open(const GroupModel& model) {
  absl::StatusOr<std::shared_ptr<EngineModel>> opened = open_(model);
  if (opened.ok()) {
    models_[model.id] = *std::move(opened);
  } else {
    notice_(fmt::format("member {}: model '{}': {}", group_->rank(), model.name,
                        Message(opened.status())));
  }
  return group_->FirstToRefuse(!models_.contains(model.id)).status();
}

absl::Status Follower::MirrorBlocks(const EngineModel& model, const GroupPass& pass,
                                    std::vector<std::vector<std::byte*>>* blocks) {
  const tier::Owner owner{model.name(), "", tier::Kind::kKv};
  for (const GroupPass::Sequence& sequence : pass.sequences) {
    std::vector<std::byte*>& here = blocks->emplace_back();
    for (const uint64_t block : sequence.blocks) {
      if (block == 0) {
        here.push_back(nullptr);
        continue;
      }
      tier::DeviceBuffer& buffer = blocks_[block];
      if (!buffer) {
        absl::StatusOr<tier::DeviceBuffer> made =
            engine_->manager()->Allocate(owner, model.kv_geometry().block_bytes());
        if (!made.ok()) {
          blocks_.erase(block);
          return made.status();
        }
        buffer = *std::move(made);
      }
      here.push_back(buffer.data());
    }
  }
  return absl::OkStatus();
}

absl::Status Follower::Pass(const GroupPass& pass) {
  const auto found = models_.find(pass.model);
  if (found == models_.end()) {
    return absl::InternalError(
        fmt::format("the leader computes with model {}, which is not open", pass.model));
  }
  EngineModel& model = *found->second;
  std::vector<std::vector<std::byte*>> blocks;
  absl::Status ready = MirrorBlocks(model, pass, &blocks);
  if (ready.ok()) ready = engine_->PreparePass(model, pass);
  ASSIGN_OR_RETURN(const int32_t refused, group_->FirstToRefuse(!ready.ok()));
  if (refused != parallel::Communicator::kNobody) return absl::OkStatus();
  return engine_->RunPass(model, pass, blocks);
}

}  // namespace terrace::engine
