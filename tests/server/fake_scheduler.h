// A scheduler without an engine: it gives out tokens from a script. For tests of the server, and
// for measuring the server alone (a "null engine"). Thread-safe, with one thread of its own, as the
// real one has.
#ifndef TERRACE_TESTS_SERVER_FAKE_SCHEDULER_H_
#define TERRACE_TESTS_SERVER_FAKE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "request/request.h"
#include "scheduler/scheduler.h"

namespace terrace::server {

// What one request gets.
struct Script {
  std::vector<int32_t> tokens;
  bool repeat = false;  // the tokens over and over, until max_tokens
  int64_t step_us = 0;  // pause before each token
  absl::Status fail;    // not OK: the request fails after its tokens
  bool pass_end_tokens = false;
  std::string kv_choice;  // what it says of its prompt's KV
  int32_t cached_tokens = 0;
};

struct SeenRequest {
  std::string id;
  std::string model;
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int32_t max_tokens = 0;
  std::vector<int32_t> end_tokens;
  bool constrained = false;
  bool prompt_logprobs = false;
};

class FakeScheduler final : public scheduler::Scheduler {
 public:
  struct Options {
    size_t max_running = 1000;
    size_t max_queue = 1000;
  };

  // `write` is asked for each request's script when it starts.
  FakeScheduler(Options options, std::function<Script(const SeenRequest&)> write);
  ~FakeScheduler() override;

  absl::Status AddModel(std::shared_ptr<engine::EngineModel> model) override;
  absl::Status AddAdapter(std::shared_ptr<engine::EngineModel> base,
                          std::shared_ptr<const engine::Adapter> adapter) override;
  absl::Status RemoveModel(const std::string& name) override;
  absl::Status Submit(std::unique_ptr<Request> request) override;
  void Cancel(const std::string& request_id) override;
  bool Drain(int64_t timeout_us) override;
  scheduler::SchedulerState State() const override;
  void SetTenants(scheduler::TenantTable) override {}
  void Probe() override {}

  void set_script(std::function<Script(const SeenRequest&)> write);
  // The next Submit fails with this.
  void FailNextSubmit(absl::Status status);
  std::vector<SeenRequest> submitted() const;  // in order
  std::vector<std::string> started() const;    // ids
  int64_t cancelled() const;
  uint64_t tokens() const;  // given out
  size_t active() const;    // running and waiting
  // True once `active()` is 0, within `timeout_us`.
  bool WaitIdle(int64_t timeout_us) const;

 private:
  struct Active {
    std::unique_ptr<Request> request;
    SeenRequest seen;
    Script script;
    size_t next = 0;
    int32_t given = 0;
    bool started = false;
    bool cancelled = false;
    bool scored = false;
    int64_t next_us = 0;
  };

  void Run();
  // Under a constraint: the script's next token if it is allowed, else what ends the text soonest;
  // -1 if nothing is.
  int32_t Choose(Active* active);
  // One token, or the end. True if it has ended.
  bool Step(Active* active);
  void Finish(Active* active, FinishReason reason, absl::Status status);

  const Options options_;
  mutable absl::Mutex mutex_;
  std::function<Script(const SeenRequest&)> write_ ABSL_GUARDED_BY(mutex_);
  std::list<Active> queue_ ABSL_GUARDED_BY(mutex_);  // running first; only Run() erases
  absl::Status fail_next_ ABSL_GUARDED_BY(mutex_);
  std::vector<SeenRequest> submitted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> started_ ABSL_GUARDED_BY(mutex_);
  int64_t cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::server

#endif  // TERRACE_TESTS_SERVER_FAKE_SCHEDULER_H_
