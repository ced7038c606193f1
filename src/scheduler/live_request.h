// A request on its way through the scheduler: what was asked, what has been generated, and its KV.
// Owned by the scheduler's queues; all but the cancel flag belongs to the scheduler's thread.
#ifndef TERRACE_SCHEDULER_LIVE_REQUEST_H_
#define TERRACE_SCHEDULER_LIVE_REQUEST_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/adapter.h"
#include "engine/draft_model.h"
#include "engine/ngram_index.h"
#include "engine/sampler.h"
#include "kv/cache.h"
#include "kv/sequence.h"
#include "request/request.h"

namespace terrace::scheduler {

struct LiveRequest {
  std::unique_ptr<Request> request;
  std::shared_ptr<const engine::Adapter> adapter;  // that the request asked for; may be null
  std::atomic<bool> cancelled{false};

  int64_t submitted_us = 0;
  int64_t started_us = 0;      // first step; 0: not yet
  int64_t stepped_us = 0;      // end of the last one
  int64_t first_token_us = 0;  // 0: not yet
  int64_t last_token_us = 0;
  int64_t swap_us = 0;
  uint64_t moved_bytes = 0;

  std::vector<int32_t> tokens;     // prompt and what was generated
  int32_t generated = 0;           // an end token is not counted
  int32_t token_limit = 0;         // of tokens.size()
  bool paused = false;             // its tenant has had what its limit of computing allows
  bool guest = false;              // gives way to others in the step that is built (shares.h)
  bool computed = false;           // a step of it has ended well
  int32_t given_up = 0;            // steps of it in a row that were given up for others
  std::optional<kv::Sequence> kv;  // while admitted

  // KV on its way from below; the request is in no step meanwhile, unless it is let in early.
  uint64_t restore = 0;                   // number of the load that is waited for; 0: none
  int64_t restore_us = 0;                 // when it began
  bool more_beyond = false;               // behind it there may be more in the remote store
  std::shared_ptr<kv::Restore> arriving;  // that load, once it has begun; shared with its reads
  size_t early = 0;  // blocks on their way that steps wait for, layer by layer; 0: not let in
  kv::Cache::Loaded arrived;  // what came, to be adopted before the next step
  // The running request whose prefill computes what this one needs too; empty: none. Waited for
  // until it has computed `alike` tokens or is gone.
  std::string leader;
  int32_t alike = 0;  // tokens in common with a running request, in whole blocks

  int32_t cached = 0;  // prompt tokens found in the KV cache at the first admission
  int32_t restored = 0;
  std::string kv_choice;
  std::unique_ptr<engine::Sampler> sampler;
  int32_t scored = 1;  // tokens of the prompt whose logprobs were reported; the first has none

  // Guessing ahead (SpeculationOptions).
  engine::NgramIndex ngrams;
  std::unique_ptr<engine::DraftSequence> draft;
  int32_t most_guesses = 0;
  int32_t guess_length = 0;          // how many to guess next time
  int32_t guess_pause = 0;           // tokens until guessing is tried again
  std::vector<int32_t> step_tokens;  // the next token and the guesses behind it
  int32_t guessed = 0;
  int32_t accepted = 0;

  // Not while KV is on its way, nor when it has come but was not adopted yet: a step would compute
  // what the adoption then counts once more.
  bool can_step() const {
    const bool settled = restore == 0 && !more_beyond && arrived.blocks.empty();
    return (early > 0 || settled) && leader.empty() && !paused;
  }
  // Tokens of the prompt are still to be scored: all of it must be computed, whatever KV there is.
  bool scores() const {
    return request->prompt_logprobs && scored < static_cast<int32_t>(request->prompt.size());
  }
  void ForgetRestore() {
    restore = 0;
    more_beyond = false;
    arriving.reset();
    early = 0;
    arrived = {};
  }
  // When it gives up by its contract if it still waits; 0: never. Once it has begun it is let end,
  // also if it had to give way meanwhile.
  int64_t deadline_us() const {
    const int64_t wait_us = request->swap.max_wait_us;
    return wait_us < 0 || started_us > 0 ? 0 : submitted_us + wait_us;
  }
  // The same while it waits for weights in its first step.
  int64_t weights_deadline_us() const {
    const int64_t wait_us = request->swap.max_wait_us;
    return wait_us < 0 || computed ? 0 : submitted_us + wait_us;
  }
  void NoteStep(int64_t now_us) {  // has ended well
    given_up = 0;
    computed = true;
    stepped_us = now_us;
  }
  // Since when it has waited: for its first step, or for the next.
  int64_t waiting_since_us() const { return std::max(submitted_us, stepped_us); }
  // Tokens whose KV is still to be computed.
  int32_t pending() const { return static_cast<int32_t>(tokens.size()) - kv->length(); }
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_LIVE_REQUEST_H_
