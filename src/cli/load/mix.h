// What a load asks for: classes of requests that come at a rate or from so many clients, from a
// file or from flags, or requests at set times, from a trace.
#ifndef TERRACE_CLI_LOAD_MIX_H_
#define TERRACE_CLI_LOAD_MIX_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::cli {

// Uniform between both, which are part of it.
struct TokenRange {
  int32_t least = 0, most = 0;
};

struct LoadClass {
  std::string name = "requests";
  std::vector<std::string> models;  // empty: all that the server has
  double zipf = 0;                  // the k-th model is asked for in proportion to k^-zipf
  double rate = 0;                  // requests a second, as a Poisson process; 0: by clients
  int32_t clients = 0;              // each asks again when it has its answer
  int64_t pause_us = 0;             // between a client's requests
  TokenRange prompt_tokens = {128, 128};
  TokenRange output_tokens = {64, 64};
  int32_t shared_tokens = 0;  // of each prompt's beginning, the same for the whole class
  std::string sla;            // X-Terrace-SLA; empty: the key's own
  std::string key_env;        // the variable that holds the API key; empty: TERRACE_KEY
  int64_t goal_us = 0;        // to the first token; 0: none
  bool chat = false;          // /v1/chat/completions instead of /v1/completions
};

struct LoadTraceRequest {
  int64_t at_us = 0;
  std::string model;  // empty: as the class says
  int32_t prompt_tokens = 0, output_tokens = 0;
  size_t load_class = 0;
};

struct LoadMix {
  int64_t duration_us = 60'000'000;
  int64_t warm_up_us = 0;     // what begins in it is asked, and not counted
  int64_t most_requests = 0;  // ends after so many; 0: at its time
  uint64_t seed = 1;
  std::vector<LoadClass> classes;
  std::vector<LoadTraceRequest> trace;  // in order of time; then classes have no rate nor clients
};

// A mix in YAML (docs/BENCHMARKS.md). InvalidArgument names the line and what would be right.
absl::StatusOr<LoadMix> ParseMix(std::string_view yaml);

// Lines of CSV under a heading that names columns: the time (`seconds`, or TIMESTAMP as a date with
// a time), `prompt_tokens` (or ContextTokens), `output_tokens` (or GeneratedTokens), and as wished
// `model` and `class`. Times are counted from the first. InvalidArgument names the line.
absl::StatusOr<LoadMix> ParseLoadTrace(std::string_view csv);

// "64" or "30-300".
absl::StatusOr<TokenRange> ParseTokenRange(std::string_view text);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_LOAD_MIX_H_
