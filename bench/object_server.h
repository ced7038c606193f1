// Serves one file by HTTP ranges from this process, as an object store does, at a set rate over all
// connections together: what stands in for a store in benchmarks. Bytes go from the page cache to
// the socket without a copy in this program.
#ifndef TERRACE_BENCH_OBJECT_SERVER_H_
#define TERRACE_BENCH_OBJECT_SERVER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

namespace terrace::bench {

class ObjectServer {
 public:
  // Listens on a free port of the loopback. `bytes_per_s` is shared by all connections.
  static absl::StatusOr<std::unique_ptr<ObjectServer>> Serve(const std::string& path,
                                                             double bytes_per_s,
                                                             const Clock* clock);
  ~ObjectServer();
  ObjectServer(const ObjectServer&) = delete;
  ObjectServer& operator=(const ObjectServer&) = delete;

  std::string url() const;
  uint64_t size() const { return size_; }
  uint64_t served_bytes() const { return served_; }  // since the start

 private:
  ObjectServer(int listener, int file, uint64_t size, double bytes_per_s, const Clock* clock);
  void Accept();
  bool Answer(int fd);
  bool SendRange(int fd, uint64_t offset, uint64_t bytes);
  // Waits until the link has carried what was asked of it before, and `bytes` more.
  void Take(uint64_t bytes);

  const int listener_;
  const int file_;
  const uint64_t size_;
  const double bytes_per_s_;
  const Clock& clock_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> served_{0};
  absl::Mutex mutex_;
  double free_us_ ABSL_GUARDED_BY(mutex_) = 0;  // when the link is free again
  std::vector<std::thread> connections_;        // the acceptor's until it has ended
  std::thread acceptor_;
};

// Bytes a second that plain range requests to `server` give: `parallel` at a time, 8 MiB each, for
// the whole file; nothing is done with the bytes.
absl::StatusOr<double> BareObjectRate(const ObjectServer& server, int parallel, const Clock& clock);

}  // namespace terrace::bench

#endif  // TERRACE_BENCH_OBJECT_SERVER_H_
