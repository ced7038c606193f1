// The operator table: every CPU variant of this machine, every operator and weight format, run
// against the reference and timed against what the machine measures. `terrace verify ops` prints
// it.
#ifndef TERRACE_OPS_VERIFY_H_
#define TERRACE_OPS_VERIFY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/cpu/thread_team.h"

namespace terrace::ops {

struct VerifyOptions {
  std::string variant;  // one variant; empty: all that this machine has
  uint64_t seed = 1;    // of the random operands
  bool measure = true;  // rates too: about a second a variant and 400 MiB of memory
};

struct VerifyRow {
  std::string variant;
  std::string op;          // "matmul 1 row", "matmul 64 rows", "attention", ...
  std::string dtype;       // of weights, or of keys and values
  double worst_error = 0;  // of the element that comes closest to its tolerance
  double tolerance = 0;    // of that element
  bool holds = false;      // no element is beyond its tolerance
  double rate = 0;         // 0 where not measured
  std::string unit;        // "GB/s" or "GOP/s"; empty where not measured
  double share = 0;        // of the machine's own, measured in the same run
};

// NotFound for an unknown variant, ResourceExhausted without memory to measure in, or an operator's
// own error.
absl::StatusOr<std::vector<VerifyRow>> VerifyOps(const VerifyOptions& options, ThreadTeam* team);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_VERIFY_H_
