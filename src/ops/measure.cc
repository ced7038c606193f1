#include "ops/measure.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/status.h"
#include "fmt/format.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/variants.h"

namespace terrace::ops {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<const cpu::Kernels*> FindKernels(std::string_view variant) {
  const std::string wanted = variant == "auto" ? BestCpuVariant() : std::string(variant);
  for (const cpu::Variant& v : cpu::AllVariants()) {
    if (v.name == wanted && v.supported) return v.kernels;
  }
  return absl::NotFoundError(fmt::format("no CPU variant '{}' on this machine", wanted));
}

// Operations a second of `step` (ops in one call a worker) over all workers: the best of five.
template <typename F>
double BestRate(ThreadTeam* team, double ops, F step) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const double start = Seconds();
    team->Run([&](int) { step(); });
    best = std::max(best, ops * team->size() / (Seconds() - start));
  }
  return best;
}

double ReadOnce(const cpu::Kernels& kernels, const LargeBuffer& buffer, ThreadTeam* team) {
  constexpr int64_t kPiece = 2 << 20;
  std::atomic<int32_t> sink{0};
  const int64_t bytes = static_cast<int64_t>(buffer.size());
  const double start = Seconds();
  team->ParallelFor(bytes / kPiece, 1, [&](int64_t begin, int64_t end, int) {
    sink += kernels.read(buffer.data() + begin * kPiece, (end - begin) * kPiece);
  });
  return static_cast<double>(bytes) / (Seconds() - start);
}

}  // namespace

LargeBuffer::LargeBuffer(size_t bytes) : size_((bytes + (2 << 20) - 1) >> 21 << 21) {
  void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    size_ = 0;
    return;
  }
  madvise(p, size_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
}

LargeBuffer::~LargeBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<double> MeasureRead(std::string_view variant, const LargeBuffer& buffer,
                                   ThreadTeam* team) {
  ASSIGN_OR_RETURN(const cpu::Kernels* kernels, FindKernels(variant));
  return ReadOnce(*kernels, buffer, team);
}

absl::StatusOr<MachineLimits> MeasureLimits(std::string_view variant, const LargeBuffer& buffer,
                                            ThreadTeam* team) {
  ASSIGN_OR_RETURN(const cpu::Kernels* kernels, FindKernels(variant));
  MachineLimits limits;
  for (int i = 0; i < 5; ++i) {
    limits.read_bytes_per_s = std::max(limits.read_bytes_per_s, ReadOnce(*kernels, buffer, team));
  }
  constexpr int64_t kRounds = 200000;
  constexpr double kSteps = kRounds * 12.0;
  std::atomic<int64_t> sink{0};
  limits.int8_ops_per_s = BestRate(team, kSteps * kernels->int8_step_ops,
                                   [&] { sink += kernels->int8_rounds(kRounds); });
  limits.float_ops_per_s =
      BestRate(team, kSteps * 32, [&] { sink += kernels->float_rounds(kRounds) > 0; });
  if (kernels->word_rounds != nullptr) {
    limits.word_ops_per_s = BestRate(team, kSteps * kernels->word_step_ops,
                                     [&] { sink += kernels->word_rounds(kRounds); });
  }
  return limits;
}

}  // namespace terrace::ops
