// A request on its way through the scheduler: what was asked, what has been generated, and its KV.
// Owned by the scheduler's queues; all but the cancel flag belongs to the scheduler's thread.
#ifndef TERRACE_SCHEDULER_LIVE_REQUEST_H_
#define TERRACE_SCHEDULER_LIVE_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "kv/sequence.h"
#include "request/request.h"

namespace terrace::scheduler {

struct LiveRequest {
  std::unique_ptr<Request> request;
  std::atomic<bool> cancelled{false};

  int64_t submitted_us = 0;
  int64_t started_us = 0;      // first step; 0: not yet
  int64_t first_token_us = 0;  // 0: not yet
  int64_t last_token_us = 0;
  int64_t swap_us = 0;

  std::vector<int32_t> tokens;   // prompt and what was generated
  int32_t generated = 0;         // an end token is not counted
  int32_t token_limit = 0;       // of tokens.size()
  std::optional<kv::Sequence> kv;  // while admitted
  bool restoring = false;          // its KV is on its way from disk; not in steps meanwhile
  std::vector<kv::BlockRef> arrived;  // what came, to be adopted before the next step
  int32_t cached = 0;              // prompt tokens found in the KV cache at the first admission
  int32_t restored = 0;
  std::string kv_choice;
  std::unique_ptr<engine::Sampler> sampler;

  // Tokens whose KV is still to be computed.
  int32_t pending() const { return static_cast<int32_t>(tokens.size()) - kv->length(); }
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_LIVE_REQUEST_H_
