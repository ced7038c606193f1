// What the machine can do, measured with the instructions of one CPU variant: the yardsticks of
// benches and of `terrace verify ops`. Numbers are the best of a few short runs, since neighbours
// on a shared machine only ever make them worse.
#ifndef TERRACE_OPS_MEASURE_H_
#define TERRACE_OPS_MEASURE_H_

#include <cstddef>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "device/cpu/thread_team.h"

namespace terrace::ops {

struct MachineLimits {
  double read_bytes_per_s = 0;  // sequential reads from memory, all workers
  double int8_ops_per_s = 0;    // multiplies and adds of 8-bit dot products, counted apart
  double word_ops_per_s = 0;    // the same of 16-bit dot products (the rate of bf16); 0: none
  double float_ops_per_s = 0;   // the same of float32 multiply-add
};

// Memory of at least `bytes`, on huge pages where the system grants them, touched by no one yet.
class LargeBuffer {
 public:
  explicit LargeBuffer(size_t bytes);
  ~LargeBuffer();
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;
  std::byte* data() const { return data_; }  // null if there was no memory
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Measures with the kernels of `variant` ("auto": the best). `buffer` holds what is read and should
// be several times the last-level cache; its contents are not changed. NotFound for an unknown
// name.
absl::StatusOr<MachineLimits> MeasureLimits(std::string_view variant, const LargeBuffer& buffer,
                                            ThreadTeam* team);

// One quick measure of bandwidth (bytes a second), to run beside what is compared with it.
absl::StatusOr<double> MeasureRead(std::string_view variant, const LargeBuffer& buffer,
                                   ThreadTeam* team);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_MEASURE_H_
