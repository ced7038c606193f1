// Stacks of a running process, sampled by perf(1) where it is installed and allowed, and what they
// make together: a tree of functions with how often each was met.
#ifndef TERRACE_CLI_PROFILE_STACKS_H_
#define TERRACE_CLI_PROFILE_STACKS_H_

#include <sys/types.h>

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::cli {

// Stacks, from the thread's name over its outermost function to the innermost, with their number.
using Stacks = std::map<std::vector<std::string>, uint64_t>;

// The output of `perf script -F comm,ip,sym`.
Stacks ParsePerfScript(std::string_view text);
// Lines "outer;inner count", as flame graph tools read them.
std::string FoldedText(const Stacks& stacks);
// {"name", "value", "children"}, the root named `root`.
boost::json::object FlameTree(const Stacks& stacks, const std::string& root);

// Samples a process from its making to Stop(). One thread.
class PerfSampler {
 public:
  // Begins to sample `pid`; `folder` takes what perf writes. Unavailable, with perf's words, if it
  // is not there or not allowed.
  static absl::StatusOr<PerfSampler> Start(int64_t pid, const std::string& folder);
  PerfSampler(PerfSampler&& other) noexcept;
  PerfSampler& operator=(PerfSampler&&) = delete;
  ~PerfSampler();  // ends the sampling

  // Ends it and reads what was sampled.
  absl::StatusOr<Stacks> Stop();

 private:
  PerfSampler(pid_t child, std::string folder) : child_(child), folder_(std::move(folder)) {}
  void End();

  pid_t child_;  // of perf; -1: it has ended
  std::string folder_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_PROFILE_STACKS_H_
