// The text of kernels/*.cl, put into the program by the build.
#ifndef TERRACE_OPS_OPENCL_KERNEL_SOURCES_H_
#define TERRACE_OPS_OPENCL_KERNEL_SOURCES_H_

#include <string>

#include "tensor/dtype.h"

namespace terrace::ops {

extern const char* const kElementwiseSource;
extern const char* const kMatMulSource;
extern const char* const kAttentionSource;

// The macros of matmul.cl for a weight format; empty if it cannot be a matrix.
std::string MatMulDefines(DType dtype);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_OPENCL_KERNEL_SOURCES_H_
