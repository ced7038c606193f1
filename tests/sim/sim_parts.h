// The fake parts of the simulated world: executors and a disk that move on only when told.
#ifndef TERRACE_TESTS_SIM_SIM_PARTS_H_
#define TERRACE_TESTS_SIM_SIM_PARTS_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/random.h"
#include "os/worker_pool.h"
#include "storage/disk/block_reader.h"

namespace terrace::sim {

// Tasks of a pool with several threads: any waiting one may be the next.
class StepExecutor final : public os::Executor {
 public:
  void Run(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  bool empty() const { return tasks_.empty(); }
  void Step(size_t which) {
    std::function<void()> task = std::move(tasks_[which]);
    tasks_.erase(tasks_.begin() + static_cast<long>(which));
    task();
  }
  size_t size() const { return tasks_.size(); }

 private:
  std::vector<std::function<void()>> tasks_;
};

// What goes wrong, and how often: one in so many; 0 never.
struct Weather {
  uint64_t read_error = 0;
  uint64_t short_read = 0;
  uint64_t spoiled_read = 0;
  uint64_t copy_error = 0;
  uint64_t produce_error = 0;
  uint64_t stall = 0;  // a read that takes 20 ms
  double disk_bytes_per_us = 1000;
};

class StepReader final : public storage::BlockReader {
 public:
  StepReader(const ManualClock* clock, Random* random, const Weather* weather)
      : clock_(clock), random_(random), weather_(weather) {}

  // The bytes behind a file handle; the handle's own file stays empty.
  void SetImage(const os::DirectFile* file, const std::vector<std::byte>* image) {
    images_[file] = image;
  }

  void Read(const os::DirectFile& file, uint64_t offset, std::span<std::byte> out,
            Done done) override {
    const auto transfer_us =
        static_cast<int64_t>(static_cast<double>(out.size()) / weather_->disk_bytes_per_us);
    link_free_us_ = std::max(link_free_us_, clock_->NowUs()) + transfer_us;
    int64_t due = link_free_us_ + static_cast<int64_t>(10 + random_->Below(200));
    if (Hit(weather_->stall)) due += 20'000;
    pending_.push_back({&file, offset, out, std::move(done), due});
  }

  // Completes one read whose time has come, whichever; false if there is none.
  bool Step() {
    std::vector<size_t> due;
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (pending_[i].due_us <= clock_->NowUs()) due.push_back(i);
    }
    if (due.empty()) return false;
    const size_t which = due[random_->Below(due.size())];
    Pending read = std::move(pending_[which]);
    pending_.erase(pending_.begin() + static_cast<long>(which));
    Complete(read);
    return true;
  }
  bool empty() const { return pending_.empty(); }
  uint64_t faults() const { return faults_; }

 private:
  struct Pending {
    const os::DirectFile* file;
    uint64_t offset;
    std::span<std::byte> out;
    Done done;
    int64_t due_us;
  };

  bool Hit(uint64_t one_in) {
    if (one_in == 0 || random_->Below(one_in) != 0) return false;
    ++faults_;
    return true;
  }

  void Complete(Pending& read) {
    if (Hit(weather_->read_error)) {
      read.done(absl::UnavailableError("simulated read error"));
      return;
    }
    const std::vector<std::byte>& image = *images_.at(read.file);
    uint64_t bytes = read.out.size();
    if (Hit(weather_->short_read)) bytes = random_->Below(bytes);
    if (read.offset + bytes > image.size()) bytes = image.size() - read.offset;
    std::memcpy(read.out.data(), image.data() + read.offset, bytes);
    if (bytes < read.out.size()) {
      read.done(absl::DataLossError("simulated short read"));
      return;
    }
    if (Hit(weather_->spoiled_read)) {
      read.out[random_->Below(bytes)] ^= static_cast<std::byte>(1u << random_->Below(8));
    }
    read.done(absl::OkStatus());
  }

  const ManualClock* clock_;
  Random* random_;
  const Weather* weather_;
  std::map<const os::DirectFile*, const std::vector<std::byte>*> images_;
  std::vector<Pending> pending_;
  int64_t link_free_us_ = 0;
  uint64_t faults_ = 0;
};

}  // namespace terrace::sim

#endif  // TERRACE_TESTS_SIM_SIM_PARTS_H_
