// Random operands and the tolerances that operator tests share.
#ifndef TERRACE_TESTS_OPS_TEST_UTIL_H_
#define TERRACE_TESTS_OPS_TEST_UTIL_H_

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cpu/thread_team.h"
#include "gtest/gtest.h"
#include "ops/backend.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"
#include "staged_backend.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace terrace::ops {

inline constexpr float kEps = 0x1p-24f;  // rounding of one float32 operation

// Dtypes that a weight matrix may have.
inline std::vector<DType> MatrixTypes() {
  return {DType::kF32,    DType::kF16,    DType::kBF16,  DType::kF8E4M3, DType::kF8E5M2,
          DType::kQ4_0,   DType::kQ4_1,   DType::kQ5_0,  DType::kQ5_1,   DType::kQ8_0,
          DType::kQ2_K,   DType::kQ3_K,   DType::kQ4_K,  DType::kQ5_K,   DType::kQ6_K,
          DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ3_S, DType::kMXFP4,  DType::kTQ2_0};
}

// Byte offsets of the F16 fields in a block.
inline std::vector<int> HalfFields(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    case DType::kTQ2_0:
      return {64};
    case DType::kMXFP4:
      return {};
    default:
      return {0};
  }
}

// `rows` random plain rows: any codes and sub-scales, finite scales of ordinary size.
inline std::vector<std::byte> RandomWeight(DType dtype, int rows, int cols, Random& random) {
  const DTypeInfo& info = Info(dtype);
  std::vector<std::byte> bytes(RowBytes(dtype, static_cast<uint64_t>(cols)) *
                               static_cast<uint64_t>(rows));
  if (!info.quantised) {
    for (size_t i = 0; i < bytes.size() / info.block_bytes; ++i) {
      std::byte* to = bytes.data() + i * info.block_bytes;
      const float v = random.Signed();
      const uint16_t half = FloatToHalf(v);
      const uint16_t bf16 = FloatToBf16(v);
      if (dtype == DType::kF32) std::memcpy(to, &v, 4);
      if (dtype == DType::kF16) std::memcpy(to, &half, 2);
      if (dtype == DType::kBF16) std::memcpy(to, &bf16, 2);
      if (dtype == DType::kF8E4M3) *to = static_cast<std::byte>(random.Below(256) & 0xb7);
      if (dtype == DType::kF8E5M2) *to = static_cast<std::byte>(random.Below(256) & 0xbb);
    }
    return bytes;
  }
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  for (size_t i = 0; i < bytes.size() / info.block_bytes; ++i) {
    std::byte* block = bytes.data() + i * info.block_bytes;
    for (const int at : HalfFields(dtype)) {
      const uint16_t half = FloatToHalf(random.Signed() * 0.01f);
      std::memcpy(block + at, &half, 2);
    }
    if (dtype == DType::kMXFP4) block[0] = static_cast<std::byte>(118 + random.Below(6));
  }
  return bytes;
}

// Activations with blocks of differing size, as real ones have.
inline std::vector<float> RandomFloats(size_t count, Random& random) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) {
    x[i] = random.Signed() * (1.0f + static_cast<float>((i / 32) % 5));
  }
  return x;
}

inline Matrix View(std::vector<float>& data, int rows, int cols, int64_t stride = 0) {
  return {data.data(), rows, cols, stride == 0 ? cols : stride};
}

// Variants that this machine runs: the processor's, and "kernels" of the common dialect where it
// has a device that compiles them.
inline std::vector<std::string> SupportedVariants() {
  std::vector<std::string> names;
  for (const CpuVariant& v : CpuVariants()) {
    if (v.supported) names.push_back(v.name);
  }
  if (HaveKernelDevice()) names.insert(names.end(), {"kernels", "scalar"});
  return names;
}

inline std::unique_ptr<Backend> MustCreate(const std::string& variant, ThreadTeam* team) {
  if (variant == "kernels" || variant == "scalar") return CreateStagedBackend(variant == "scalar");
  auto backend = CreateCpuBackend(variant, team);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? std::move(backend).value() : nullptr;
}

}  // namespace terrace::ops

#endif  // TERRACE_TESTS_OPS_TEST_UTIL_H_
