#include "parallel/thread_group.h"

#include <fmt/format.h>

#include <cstring>

#include "base/status.h"

namespace terrace::parallel {

class ThreadGroup::Member final : public Communicator {
 public:
  Member(ThreadGroup* group, int32_t rank) : group_(group), rank_(rank) {}
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return group_->size(); }
  void GiveUp(const absl::Status& why) override {
    group_->GiveUp(absl::UnavailableError(
        fmt::format("member {} of the group gave up: {}", rank_, Message(why))));
  }
  absl::Status Recover() override { return group_->Recover(); }

 protected:
  absl::Status Exchange(int32_t to, std::span<const std::byte> send, int32_t from,
                        std::span<std::byte> receive, bool endless) override {
    return group_->Exchange(rank_, to, send, from, receive, endless);
  }

 private:
  ThreadGroup* const group_;
  const int32_t rank_;
};

ThreadGroup::ThreadGroup(int32_t size, absl::Duration patience) : patience_(patience) {
  for (int32_t rank = 0; rank < size; ++rank) {
    members_.push_back(std::make_unique<Member>(this, rank));
  }
  absl::MutexLock lock(&mutex_);
  boxes_.resize(members_.size() * members_.size());
}

ThreadGroup::~ThreadGroup() = default;

Communicator& ThreadGroup::member(int32_t rank) { return *members_[static_cast<size_t>(rank)]; }

absl::Status ThreadGroup::Recover() {
  absl::MutexLock lock(&mutex_);
  if (++recovering_ == members_.size()) {
    recovering_ = 0;
    ++recovered_;
    broken_ = absl::OkStatus();
    for (Box& box : boxes_) box = {};
    changed_.SignalAll();
    return absl::OkStatus();
  }
  const absl::Time deadline = absl::Now() + patience_;
  const uint64_t before = recovered_;
  while (recovered_ == before) {
    if (!changed_.WaitWithDeadline(&mutex_, deadline) || recovered_ != before) continue;
    --recovering_;
    return absl::DeadlineExceededError("a member of the group does not come back");
  }
  return absl::OkStatus();
}

void ThreadGroup::GiveUp(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  Break(why);
}

void ThreadGroup::Break(const absl::Status& why) {
  if (broken_.ok()) broken_ = why;
  changed_.SignalAll();
}

absl::Status ThreadGroup::Await(const Box& box, bool empty, int32_t me, int32_t other,
                                bool endless) {
  const absl::Time deadline = endless ? absl::InfiniteFuture() : absl::Now() + patience_;
  // A message that is being copied is past the point at which a broken group could take it back.
  while (box.state == Box::State::kCopying ||
         (broken_.ok() && (box.state == Box::State::kEmpty) != empty)) {
    const bool late = changed_.WaitWithDeadline(&mutex_, deadline);
    if (late && box.state != Box::State::kCopying && broken_.ok() &&
        (box.state == Box::State::kEmpty) != empty) {
      Break(
          absl::DeadlineExceededError(fmt::format("member {} waited {} for member {} of the group",
                                                  me, absl::FormatDuration(patience_), other)));
    }
  }
  return (box.state == Box::State::kEmpty) == empty ? absl::OkStatus() : broken_;
}

absl::Status ThreadGroup::Receive(int32_t me, int32_t from, std::span<std::byte> receive,
                                  bool endless) {
  Box& box = BoxOf(from, me);
  RETURN_IF_ERROR(Await(box, false, me, from, endless));
  if (box.bytes.size() != receive.size()) {
    Break(absl::InternalError(fmt::format("member {} sent {} bytes where member {} expected {}",
                                          from, box.bytes.size(), me, receive.size())));
    return broken_;
  }
  box.state = Box::State::kCopying;
  const std::byte* bytes = box.bytes.data();
  mutex_.Unlock();
  if (!receive.empty()) std::memcpy(receive.data(), bytes, receive.size());
  mutex_.Lock();
  box.state = Box::State::kEmpty;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status ThreadGroup::Exchange(int32_t me, int32_t to, std::span<const std::byte> send,
                                   int32_t from, std::span<std::byte> receive, bool endless) {
  absl::MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  if (to == Communicator::kNobody) return Receive(me, from, receive, endless);
  Box& box = BoxOf(me, to);
  box.bytes = send;
  box.state = Box::State::kFull;
  changed_.SignalAll();
  absl::Status status;
  if (from != Communicator::kNobody) status = Receive(me, from, receive, endless);
  const absl::Status taken = Await(box, true, me, to, endless);
  if (box.state == Box::State::kFull) box.state = Box::State::kEmpty;  // taken back
  return status.ok() ? taken : status;
}

}  // namespace terrace::parallel
