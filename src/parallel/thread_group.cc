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

 protected:
  absl::Status Exchange(int32_t to, std::span<const std::byte> send, int32_t from,
                        std::span<std::byte> receive) override {
    return group_->Exchange(rank_, to, send, from, receive);
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

void ThreadGroup::Reset() {
  absl::MutexLock lock(&mutex_);
  broken_ = absl::OkStatus();
  for (Box& box : boxes_) box = {};
}

void ThreadGroup::GiveUp(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  Break(why);
}

void ThreadGroup::Break(const absl::Status& why) {
  if (broken_.ok()) broken_ = why;
  changed_.SignalAll();
}

absl::Status ThreadGroup::Await(const Box& box, bool empty, int32_t me, int32_t other) {
  const absl::Time deadline = absl::Now() + patience_;
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

absl::Status ThreadGroup::Receive(int32_t me, int32_t from, std::span<std::byte> receive) {
  Box& box = BoxOf(from, me);
  RETURN_IF_ERROR(Await(box, false, me, from));
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
                                   int32_t from, std::span<std::byte> receive) {
  absl::MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  Box& box = BoxOf(me, to);
  box.bytes = send;
  box.state = Box::State::kFull;
  changed_.SignalAll();
  absl::Status status = Receive(me, from, receive);
  const absl::Status taken = Await(box, true, me, to);
  if (box.state == Box::State::kFull) box.state = Box::State::kEmpty;  // taken back
  return status.ok() ? taken : status;
}

}  // namespace terrace::parallel
