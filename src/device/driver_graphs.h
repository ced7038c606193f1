// Kernel launches that come again and again in the same order with the same arguments, as those of
// a decode step do, handed to a driver as one graph instead of one by one. Whatever changes between
// steps lies in device memory at the same addresses; a run with any other argument is another run.
#ifndef TERRACE_DEVICE_DRIVER_GRAPHS_H_
#define TERRACE_DEVICE_DRIVER_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/driver_api.h"

namespace terrace::device {

// Launches in order, as words: what two runs have in common is all of these or nothing.
class LaunchRun {
 public:
  // `values` are the kernel's parameters, a word each.
  void Add(void* function, const LaunchShape& shape, const std::vector<uint64_t>& values);
  // One after the other on `stream`, which the calling thread's device has. Stops at an error.
  absl::Status Launch(const DriverApi& api, void* stream);
  const std::vector<uint64_t>& words() const { return words_; }
  size_t launches() const { return launches_; }
  void Clear();

 private:
  std::vector<uint64_t> words_;
  size_t launches_ = 0;
};

// The graphs of one queue. A run that was seen before is captured and from then on replayed. Used
// by one thread at a time.
class LaunchGraphs {
 public:
  struct Limits {
    size_t fewest_launches = 3;  // in a run worth a graph
    size_t most_runs = 1024;     // that are remembered; the one unused for longest is forgotten
  };

  // `failed` is told why there are no more graphs, once, when the driver cannot make or launch one;
  // it may be null. `api` must outlive this.
  LaunchGraphs(const DriverApi* api, std::function<void(const std::string&)> failed,
               const Limits& limits);
  LaunchGraphs(const DriverApi* api, std::function<void(const std::string&)> failed)
      : LaunchGraphs(api, std::move(failed), Limits()) {}
  ~LaunchGraphs();
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  // Runs the launches of `run` on `stream`. The calling thread has entered `api`.
  absl::Status Launch(LaunchRun& run, void* stream);

 private:
  struct Known {
    std::vector<uint64_t> words;
    void* graph = nullptr;  // null: seen once
  };
  using Order = std::list<Known>;  // used last first

  absl::StatusOr<void*> Capture(LaunchRun& run);
  void GiveUp(const absl::Status& why);
  void Forget(Order::iterator known);

  const DriverApi* const api_;
  const std::function<void(const std::string&)> failed_;
  const Limits limits_;
  bool given_up_ = false;
  void* capturing_ = nullptr;  // a stream that nobody else queues on or waits for
  Order order_;
  std::unordered_map<uint64_t, Order::iterator> by_hash_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_GRAPHS_H_
