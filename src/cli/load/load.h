// Drives a mix against a server that speaks the OpenAI API: streams of text, on one thread that
// waits for all of them at once. Requests that come at a rate count from when they were due, so
// that a slow server, or a slow load, does not hide what waited.
#ifndef TERRACE_CLI_LOAD_LOAD_H_
#define TERRACE_CLI_LOAD_LOAD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/load/figures.h"
#include "cli/load/mix.h"

namespace terrace::cli {

struct LoadOptions {
  std::string url;                  // "http://127.0.0.1:8000"
  std::string ca;                   // as in HttpRequest
  std::vector<std::string> models;  // of classes that name none; in order of popularity
  std::map<std::string, double> tokens_per_word;  // by model; those not in it: 1
  std::map<std::string, std::string> keys;        // by key_env; "" for classes without one
  int64_t patience_us = 120'000'000;              // how long answers are waited for after the end
  // Readable when the load is to end early; -1: nothing tells.
  int stop_fd = -1;
  // Told about so often, on the load's own thread; may be empty.
  std::function<void(int64_t at_us, int64_t running)> progress;
  int64_t progress_us = 1'000'000;
};

struct LoadOutcome {
  int64_t took_us = 0;   // from the first request to the last answer
  int64_t late_us = 0;   // the most that a request was asked after it was due
  bool stopped = false;  // by stop_fd
};

// Unavailable if the client cannot begin. What happens to requests is in `figures`.
absl::StatusOr<LoadOutcome> RunLoad(const LoadMix& mix, const LoadOptions& options,
                                    LoadFigures* figures);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_LOAD_LOAD_H_
