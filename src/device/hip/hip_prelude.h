// What the common kernel dialect (src/ops/opencl/kernels/) has of HIP's own beside
// device/cuda/dialect_words.h: half floats are the compiler's. Without being told that groups have
// 128 items at most, the compiler would leave each a quarter of the registers.
#ifndef TERRACE_DEVICE_HIP_HIP_PRELUDE_H_
#define TERRACE_DEVICE_HIP_HIP_PRELUDE_H_

namespace terrace::device::hip {

inline constexpr const char* kPrelude = R"hip(
#define KERNEL(name) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 128))) void name
#define LOAD_HALF(p) ((float)*(const _Float16 *)(p))
#define STORE_HALF(x, p) (*(_Float16 *)(p) = (_Float16)(x))
#line 1
)hip";

}  // namespace terrace::device::hip

#endif  // TERRACE_DEVICE_HIP_HIP_PRELUDE_H_
