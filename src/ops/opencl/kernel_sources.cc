#include "ops/opencl/kernel_sources.h"

#include <fmt/format.h>

#include "ops/cpu/packing.h"
#include "tensor/blocks.h"

namespace terrace::ops {
namespace {

// Numbers of the value tables in matmul.cl.
int TableOf(DType dtype) {
  switch (dtype) {
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return 1;
    case DType::kMXFP4:
      return 2;
    case DType::kIQ3_S:
      return 3;
    default:
      return 0;
  }
}

int FloatKind(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 1;
    case DType::kF16:
      return 2;
    case DType::kBF16:
      return 3;
    case DType::kF8E4M3:
      return 4;
    case DType::kF8E5M2:
      return 5;
    default:
      return 6;
  }
}

}  // namespace

std::string MatMulDefines(DType dtype) {
  if (!cpu::Packable(dtype)) return "";
  const BlockScheme* scheme = SchemeOf(dtype);
  if (scheme == nullptr) return fmt::format("FLOAT_KIND={}", FloatKind(dtype));
  const int subs = scheme->sub_elements == 0 ? 0 : kGroup / scheme->sub_elements;
  return fmt::format(
      "FLOAT_KIND=0 BITS={} OFFSET={} TABLE={} SUBS={} HAS_MIN={} HAS_BIAS={} E8M0={} "
      "BLOCK_GROUPS={}",
      scheme->code_bits, scheme->offset, TableOf(dtype), subs, int{scheme->has_min},
      int{scheme->has_bias}, int{scheme->e8m0}, Info(dtype).block_elements / kGroup);
}

}  // namespace terrace::ops
