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
#include "ops/tolerance.h"

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
  // Bit-equal results whatever the other rows of a batch are. Costs speed for many rows only, in
  // float formats, and with AMX in block formats and attention too.
  bool deterministic = false;
};

// How `variant` takes the factors of a matrix of `dtype` [.., cols] and `rows` activation rows.
// kStored for an unknown name.
Factors CpuFactors(std::string_view variant, DType dtype, int32_t rows, int32_t cols,
                   const CpuOptions& options = {});
// Whether it attends `rows` rows of one sequence in tiles (ops/tolerance.h).
bool CpuAttendsInTiles(std::string_view variant, const KvGeometry& geometry, int32_t rows,
                       const CpuOptions& options = {});

// A backend that runs `variant` ("auto": the best). NotFound for an unknown name,
// FailedPrecondition where this machine lacks the instructions; both name the known variants.
// `team` must outlive the backend and not be used by others while a call runs.
//
// All variants read Layout::kRows16 (ops/cpu/packing.h), and kPlain at the cost of packing again in
// each call. Block formats multiply by activations rounded to int8 in blocks of 32, W8A8 by such
// rounded with one scale a row. Float formats use float32; with AVX-512 VNNI and 40 rows or more,
// 14-bit integers in blocks of 32 unless `deterministic`. With AMX and 32 rows or more, formats but
// F32 and W8A8, and attention over F16 and INT8 KV, use BF16 unless `deterministic`. For one
// variant, results do not depend on the number of threads; nor, but for those changes, on the other
// rows of a batch.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(std::string_view variant,
                                                          ThreadTeam* team,
                                                          const CpuOptions& options = {});

}  // namespace terrace::ops

#endif  // TERRACE_OPS_CPU_CPU_BACKEND_H_
