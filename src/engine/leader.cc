#include "engine/leader.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "engine/engine_model.h"

namespace terrace::engine {

void GroupNews::Mirrored(uint64_t block) {
  absl::MutexLock lock(&mutex_);
  mirrored_.insert(block);
}

void GroupNews::Freed(const std::byte* address) {
  const auto block = reinterpret_cast<uint64_t>(address);
  absl::MutexLock lock(&mutex_);
  if (mirrored_.erase(block) > 0) freed_.push_back(block);
}

void GroupNews::Closed(uint32_t model) {
  absl::MutexLock lock(&mutex_);
  closed_.push_back(model);
}

void GroupNews::Take(GroupMessage* message) {
  absl::MutexLock lock(&mutex_);
  message->freed = std::exchange(freed_, {});
  message->closed = std::exchange(closed_, {});
}

bool GroupNews::AwaitClosed() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](GroupNews* news) ABSL_SHARED_LOCKS_REQUIRED(news->mutex_) {
        return news->stopped_ || !news->closed_.empty();
      },
      this));
  return !stopped_;
}

void GroupNews::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

Leader::Leader(parallel::Communicator* group, std::shared_ptr<GroupNews> news)
    : group_(group), news_(std::move(news)), teller_([this] { TellOfClosed(); }) {}

Leader::~Leader() {
  news_->Stop();
  teller_.join();
  absl::MutexLock lock(&mutex_);
  Tell({}).IgnoreError();  // who is gone needs no news
}

absl::Status Leader::Broken(const absl::Status& status) {
  group_->GiveUp(status);
  if (group_->Recover().ok()) {
    return absl::UnavailableError(
        fmt::format("a step of {} devices failed: {}", group_->size(), Message(status)));
  }
  broken_ = absl::UnavailableError(
      fmt::format("the group of {} devices is broken and has to be started again: {}",
                  group_->size(), Message(status)));
  return broken_;
}

absl::Status Leader::Tell(GroupMessage message) {
  if (!broken_.ok()) return broken_;
  news_->Take(&message);
  return Send(std::move(message));
}

absl::Status Leader::Send(GroupMessage message) {
  std::vector<std::byte> bytes = Serialize(message);
  uint64_t size = bytes.size();
  absl::Status status = group_->Broadcast(0, std::as_writable_bytes(std::span<uint64_t>(&size, 1)));
  if (status.ok()) status = group_->Broadcast(0, bytes);
  return status.ok() ? status : Broken(status);
}

void Leader::TellOfClosed() {
  while (news_->AwaitClosed()) {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    GroupMessage message;
    message.kind = GroupMessage::Kind::kNews;
    news_->Take(&message);
    // Another message may have told of it meanwhile.
    if (!message.closed.empty()) Send(std::move(message)).IgnoreError();
  }
}

absl::StatusOr<std::shared_ptr<EngineModel>> Leader::Open(GroupModel model, const Opener& here) {
  absl::MutexLock lock(&mutex_);
  model.id = ++last_model_;
  GroupMessage message;
  message.kind = GroupMessage::Kind::kOpen;
  message.model = model;
  RETURN_IF_ERROR(Tell(std::move(message)));
  absl::StatusOr<std::shared_ptr<EngineModel>> opened = here(model);
  absl::StatusOr<int32_t> refused = group_->FirstToRefuse(!opened.ok());
  if (!refused.ok()) return Broken(refused.status());
  if (*refused == parallel::Communicator::kNobody) return opened;
  news_->Closed(model.id);  // by those that could
  if (!opened.ok()) return opened;
  return absl::FailedPreconditionError(fmt::format(
      "member {} of the group cannot open model '{}'; it has said why", *refused, model.name));
}

absl::Status Leader::Pass(const GroupPass& pass, const std::function<absl::Status()>& compute) {
  absl::MutexLock lock(&mutex_);
  GroupMessage message;
  message.kind = GroupMessage::Kind::kPass;
  message.pass = pass;
  for (const GroupPass::Sequence& sequence : pass.sequences) {
    for (const uint64_t block : sequence.blocks) {
      if (block != 0) news_->Mirrored(block);
    }
  }
  RETURN_IF_ERROR(Tell(std::move(message)));
  absl::StatusOr<int32_t> refused = group_->FirstToRefuse(false);
  if (!refused.ok()) return Broken(refused.status());
  if (*refused != parallel::Communicator::kNobody) {
    return absl::ResourceExhaustedError(
        fmt::format("member {} of the group has no memory for this step", *refused));
  }
  const absl::Status status = compute();
  return status.ok() ? status : Broken(status);
}

}  // namespace terrace::engine
