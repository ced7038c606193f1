// A group whose members are threads of one process: messages are copied from the sender's memory to
// the receiver's.
#ifndef TERRACE_PARALLEL_THREAD_GROUP_H_
#define TERRACE_PARALLEL_THREAD_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "parallel/communicator.h"

namespace terrace::parallel {

class ThreadGroup {
 public:
  // A member that waits for another for longer than `patience` gives up.
  explicit ThreadGroup(int32_t size, absl::Duration patience = absl::Seconds(60));
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  // Member `rank`, whose owner this is.
  Communicator& member(int32_t rank);

 private:
  class Member;
  // A message under way from one member to another. Its bytes stay the sender's.
  struct Box {
    enum class State : uint8_t { kEmpty, kFull, kCopying } state = State::kEmpty;
    std::span<const std::byte> bytes;
  };

  absl::Status Exchange(int32_t me, int32_t to, std::span<const std::byte> send, int32_t from,
                        std::span<std::byte> receive, bool endless);
  absl::Status Receive(int32_t me, int32_t from, std::span<std::byte> receive, bool endless)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Recover() ABSL_LOCKS_EXCLUDED(mutex_);
  void Break(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until `box` is (or is not) empty. Not OK if the group is broken or it took too long.
  absl::Status Await(const Box& box, bool empty, int32_t me, int32_t other, bool endless)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Box& BoxOf(int32_t from, int32_t to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return boxes_[static_cast<size_t>(from) * members_.size() + static_cast<size_t>(to)];
  }

  const absl::Duration patience_;
  std::vector<std::unique_ptr<Member>> members_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<Box> boxes_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  size_t recovering_ ABSL_GUARDED_BY(mutex_) = 0;   // members that wait in Recover
  uint64_t recovered_ ABSL_GUARDED_BY(mutex_) = 0;  // times that all have
};

}  // namespace terrace::parallel

#endif  // TERRACE_PARALLEL_THREAD_GROUP_H_
