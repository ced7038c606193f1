#include "device/driver_matrices.h"

#include <atomic>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device {
namespace {

using Create = int (*)(void**);
using Destroy = int (*)(void*);
using SetStream = int (*)(void*, void*);
// handle, transposes, m, n, k, alpha, A, its type and leading dimension, B, beta, C, how to sum,
// algorithm. Matrices lie column by column.
using Multiply = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                         const void*, int, int, const void*, void*, int, int, int, int);

// What every library answers to a product that none can do.
constexpr int kRefused = -1;

bool FitsInt(int64_t value) { return value > 0 && value <= std::numeric_limits<int>::max(); }

}  // namespace

absl::Status ToStatus(const MatrixCalls& calls, int code, const char* call) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(fmt::format("{}: {} failed with code {}", calls.maker, call, code));
}

absl::StatusOr<MatrixCalls> LoadBlas(const BlasNames& names) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(names.maker, names.libraries));
  std::string missing;
  const auto find = [&](const std::vector<std::string>& known) {
    void* found = nullptr;
    for (const std::string& name : known) {
      if (found == nullptr) found = library.Find(name);
    }
    if (found == nullptr && missing.empty()) missing = known.front();
    return found;
  };
  MatrixCalls calls;
  calls.maker = names.maker;
  calls.Create = reinterpret_cast<Create>(find(names.create));
  calls.Destroy = reinterpret_cast<Destroy>(find(names.destroy));
  calls.SetStream = reinterpret_cast<SetStream>(find(names.set_stream));
  const auto multiply = reinterpret_cast<Multiply>(find(names.multiply));
  if (!missing.empty()) {
    return absl::FailedPreconditionError(fmt::format("{} lacks {}", names.maker, missing));
  }
  // Which way of summing this library knows; shared, as the calls are copied.
  const auto known = std::make_shared<std::atomic<size_t>>(0);
  calls.Multiply = [multiply, names, known](void* handle, const MatrixProduct& p) {
    if (!FitsInt(p.w_stride) || !FitsInt(p.x_stride) || !FitsInt(p.out_stride)) return kRefused;
    const float one = 1.0f, zero = 0.0f;
    // Rows of ours are columns of the library's: C^T = (W^T)^T X^T.
    int code = kRefused;
    for (size_t way = *known; way < names.sums.size(); ++way) {
      code = multiply(handle, names.transposed, names.plain, p.w_rows, p.x_rows, p.cols, &one, p.w,
                      names.bf16, static_cast<int>(p.w_stride), p.x, names.bf16,
                      static_cast<int>(p.x_stride), &zero, p.out, names.float32,
                      static_cast<int>(p.out_stride), names.sums[way], names.algorithm);
      if (code != 0) continue;
      *known = way;
      break;
    }
    return code;
  };
  return calls;
}

}  // namespace terrace::device
