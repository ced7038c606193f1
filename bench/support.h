// What the benchmarks that run models share: an engine behind its scheduler, and yardsticks of the
// machine. Used by one thread.
#ifndef TERRACE_BENCH_SUPPORT_H_
#define TERRACE_BENCH_SUPPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench.h"
#include "cli/runtime.h"
#include "obs/metrics.h"
#include "scheduler/scheduler.h"

namespace terrace::bench {

// How one request fared, seen from outside the scheduler.
struct Served {
  int64_t first_token_us = 0;  // from Submit to the first token
  int64_t swap_us = 0;         // of that waiting for weights
  uint64_t loaded_bytes = 0;   // moved from disk meanwhile
};

struct Answered {
  int64_t first_token_us = 0;  // both from Submit
  int64_t total_us = 0;
  int64_t swap_us = 0;
  uint64_t moved_bytes = 0;  // of weights
  int32_t tokens = 0;
  std::vector<int32_t> text;  // those tokens
};

// Requests may be made from several threads at once.
class Bed {
 public:
  // `budget_bytes` 0: as much as the device has. Models and images lie in the cache folder.
  static absl::StatusOr<std::unique_ptr<Bed>> Create(const Context& context, uint64_t budget_bytes,
                                                     const std::string& policy = "cost");
  // With everything as `config` says but for the folder, threads and the time that models stay.
  static absl::StatusOr<std::unique_ptr<Bed>> Create(const Context& context, server::Config config);
  // What Create configures, to be changed, and a bed of it.
  static server::Config DefaultConfig(const Context& context);
  static absl::StatusOr<std::unique_ptr<Bed>> CreateFrom(const Context& context,
                                                         const server::Config& config);

  // Opens a model and, if asked to, waits until its image is complete.
  absl::StatusOr<std::shared_ptr<engine::EngineModel>> Open(const std::string& name,
                                                            const std::string& path,
                                                            bool wait_for_image = true);
  // One greedy token after a prompt of `prompt_tokens` tokens of its own (`salt`).
  absl::StatusOr<Served> FirstToken(const engine::EngineModel& model, int32_t prompt_tokens,
                                    uint64_t salt);
  // `tokens` greedy ones instead.
  absl::StatusOr<Answered> Answer(const engine::EngineModel& model, int32_t prompt_tokens,
                                  int32_t tokens, uint64_t salt);
  // Bytes moved over all links whose names begin with `from` since start.
  uint64_t LoadedBytes(std::string_view from = "disk") const;
  // The file that holds the image of `model`.
  std::string ImagePath(const engine::EngineModel& model) const;

  cli::Runtime& runtime() { return *runtime_; }

 private:
  std::string store_;
  const Clock* clock_ = nullptr;
  Metrics metrics_;
  std::atomic<uint64_t> asked_{0};
  std::unique_ptr<cli::Runtime> runtime_;
  std::vector<std::shared_ptr<engine::EngineModel>> models_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
};

// kRing: into 32 MiB that are used again and again, which stay in the processor's caches: the most
// that the disk can be seen to give. kAll: into memory for the whole file, as whoever keeps the
// bytes must read them.
enum class ReadInto : uint8_t { kRing, kAll };

// Bytes a second of plain sequential direct reads of `path`: 4 MiB each, 8 in flight. Nothing is
// done with the bytes.
absl::StatusOr<double> BareReadRate(const std::string& path, const Clock& clock,
                                    ReadInto into = ReadInto::kRing);

}  // namespace terrace::bench

#endif  // TERRACE_BENCH_SUPPORT_H_
