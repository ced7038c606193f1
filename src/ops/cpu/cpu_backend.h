// Operators on host processors: one backend, several named variants of its kernels.
#ifndef TERRACE_OPS_CPU_CPU_BACKEND_H_
#define TERRACE_OPS_CPU_CPU_BACKEND_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "device/cpu/thread_team.h"
#include "ops/backend.h"

namespace terrace::ops {

struct CpuVariant {
  std::string name;        // "portable", "avx2", "avx512vnni"
  std::string needs;       // the instruction sets, for people; empty if any machine will do
  bool supported = false;  // by this machine
};

// The variants in this build, the plainest first.
std::vector<CpuVariant> CpuVariants();
// The name of the last supported one.
std::string BestCpuVariant();

struct CpuOptions {
  // Bit-equal results whatever the other rows of a batch are. Costs speed in float formats for many
  // rows only: block formats are always so.
  bool deterministic = false;
};

// A backend that runs `variant` ("auto": the best). NotFound for an unknown name,
// FailedPrecondition where this machine lacks the instructions; both name the known variants.
// `team` must outlive the backend and not be used by others while a call runs.
//
// All variants read Layout::kRows16 (ops/cpu/packing.h), and kPlain at the cost of packing again in
// each call. Block formats multiply by activations rounded to int8 in blocks of 32, W8A8 by such
// rounded with one scale a row. Float formats use float32; with AVX-512 VNNI and 40 rows or more,
// 14-bit integers in blocks of 32 unless `deterministic`. For one variant, results do not depend on
// the number of threads; nor, but for that change at 40 rows, on the other rows of a batch.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::string_view variant,
                                                          ThreadTeam* team,
                                                          const CpuOptions& options = {});

}  // namespace terrace::ops

#endif  // TERRACE_OPS_CPU_CPU_BACKEND_H_
