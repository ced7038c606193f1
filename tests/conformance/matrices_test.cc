// Products of matrices by makers' libraries, over stand-ins that compute on host memory: results,
// the arguments that each maker wants, calls that fail, and libraries that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "device/cuda/cublas.h"
#include "device/cuda/cuda_device.h"
#include "device/hip/hip_device.h"
#include "device/hip/hipblas.h"
#include "device/matrix_stream.h"
#include "device/musa/mublas.h"
#include "device/musa/musa_device.h"
#include "vendor_library.h"

namespace terrace::device {
namespace {

struct Maker {
  std::string name;
  std::string driver;   // the stand-in
  std::string library;  // the same
  std::function<absl::StatusOr<cuda::Driver>(const std::string&)> load_driver;
  std::function<absl::StatusOr<MatrixCalls>(const std::string&)> load;
  size_t release = 0;  // of muBLAS: not 0: one that sums by the number of a type
};

absl::StatusOr<cuda::Driver> LoadCuda(const std::string& library) {
  return cuda::LoadDriver(library);
}

std::vector<Maker> Makers() {
  const auto hipblas = [](const std::string& library) { return hip::LoadHipblas(library); };
  const auto old = [](const std::string& library) { return hip::LoadHipblas(library, true); };
  return {{"cublas", "cuda", "matrices", LoadCuda, cuda::LoadCublas},
          {"hipblas", "hip", "matrices", hip::LoadDriver, hipblas},
          {"hipblas_2", "hip", "hipblas2", hip::LoadDriver, old},
          {"mublas", "musa", "matrices", musa::LoadDriver, musa::LoadMublas},
          {"mublas_old", "musa", "matrices", musa::LoadDriver, musa::LoadMublas, 1}};
}

uint16_t Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}
float Float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

class MatricesTest : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    driver_ = FakeOf(GetParam().driver);
    library_ = FakeOf(GetParam().library);
    for (VendorFake* fake : {driver_, library_}) {
      fake->violations.clear();
      fake->Arm(0, 0);
    }
    library_->parameters = GetParam().release;
  }
  void TearDown() override {
    library_->parameters = 0;
    for (VendorFake* fake : {driver_, library_}) {
      EXPECT_EQ(fake->Alive(), 0u);
      EXPECT_THAT(fake->violations, testing::IsEmpty());
    }
  }
  absl::StatusOr<std::unique_ptr<Device>> Open(bool with_library = true) {
    cuda::CompilerMaker maker = hip::Hiprtc();
    maker.libraries = {FakeLibrary("hip")};
    CudaOptions options;
    options.memory_bytes = 16 << 20;
    if (with_library) {
      options.matrices = [] { return GetParam().load(FakeLibrary(GetParam().library)); };
    }
    return CreateCudaDevice(options, GetParam().load_driver(FakeLibrary(GetParam().driver)).value(),
                            cuda::Compiler::Open(maker).value());
  }

  // A product of odd sizes whose rows have gaps.
  absl::Status Scenario() {
    constexpr int kRows = 37, kX = 11, kCols = 40;
    constexpr int64_t kWStride = 48, kXStride = 40, kOutStride = 41;
    auto device = Open();
    if (!device.ok()) return device.status();
    auto stream = (*device)->CreateStream().value();
    auto* matrices = dynamic_cast<MatrixStream*>(stream.get());
    if (matrices == nullptr) return absl::InternalError("no matrices");
    Random random(7);
    std::byte* const data = (*device)->Allocate(1 << 20).value();
    auto* w = reinterpret_cast<uint16_t*>(data);
    auto* x = w + kRows * kWStride;
    auto* out = reinterpret_cast<float*>(data + (512 << 10));
    for (int64_t i = 0; i < kRows * kWStride; ++i) w[i] = Bf16(random.Signed());
    for (int64_t i = 0; i < kX * kXStride; ++i) x[i] = Bf16(random.Signed());
    for (int64_t i = 0; i < kX * kOutStride; ++i) out[i] = 12345.0f;
    MatrixProduct product;
    product.w = data;
    product.w_rows = kRows;
    product.w_stride = kWStride;
    product.x = reinterpret_cast<const std::byte*>(x);
    product.x_rows = kX;
    product.x_stride = kXStride;
    product.cols = kCols;
    product.out = out;
    product.out_stride = kOutStride;
    absl::Status status = matrices->OpenMatrices();
    if (status.ok()) status = matrices->Multiply(product);
    // Whatever the library said, the stream goes on.
    EXPECT_TRUE(stream->Synchronize().ok());
    for (int64_t i = 0; status.ok() && i < kX; ++i) {
      for (int64_t j = 0; j < kOutStride; ++j) {
        double want = 0, size = 0;
        for (int64_t k = 0; k < kCols && j < kRows; ++k) {
          const double term = double{Float(w[j * kWStride + k])} * Float(x[i * kXStride + k]);
          want += term;
          size += std::fabs(term);
        }
        if (j >= kRows) want = 12345.0;
        EXPECT_NEAR(out[i * kOutStride + j], want, kCols * 0x1p-24 * size) << i << ", " << j;
      }
    }
    (*device)->Free(data, 1 << 20);
    return status;
  }

  VendorFake* driver_ = nullptr;
  VendorFake* library_ = nullptr;
};

TEST_P(MatricesTest, ProductsAreRight) {
  const uint64_t before = library_->launch_calls;
  const absl::Status status = Scenario();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(library_->launch_calls, before + 1);
}

TEST_P(MatricesTest, EachCallThatFailsIsToldAndLeavesNothing) {
  ASSERT_TRUE(Scenario().ok());
  const int calls = library_->calls;
  ASSERT_GE(calls, 3);
  for (int code = 1; code <= 16; ++code) {
    for (int n = 1; n <= calls; ++n) {
      library_->Arm(n, code);
      const absl::Status status = Scenario();
      SCOPED_TRACE(testing::Message() << "code " << code << " from " << library_->failed_call);
      ASSERT_TRUE(library_->failed);
      // A way of summing that is refused is followed by another, if there is one.
      const bool first_of_two = GetParam().release != 0 && n == 3;
      EXPECT_EQ(status.ok(), first_of_two) << status;
      ASSERT_EQ(library_->Alive(), 0u);
      ASSERT_EQ(driver_->Alive(), 0u);
      ASSERT_THAT(library_->violations, testing::IsEmpty());
    }
  }
  library_->Arm(0, 0);
  EXPECT_TRUE(Scenario().ok());
}

TEST_P(MatricesTest, WhatIsNotThereIsSaid) {
  auto device = Open(false).value();
  auto stream = device->CreateStream().value();
  auto* matrices = dynamic_cast<MatrixStream*>(stream.get());
  ASSERT_NE(matrices, nullptr);
  EXPECT_EQ(matrices->OpenMatrices().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetParam().load("libterrace-no-such-library.so").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(GetParam().load(FakeLibrary("ascend")).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_P(MatricesTest, OperandsOutsideTheDevicesMemoryAreRefused) {
  auto device = Open().value();
  auto stream = device->CreateStream().value();
  auto* matrices = dynamic_cast<MatrixStream*>(stream.get());
  std::byte* const data = device->Allocate(64 << 10).value();
  MatrixProduct good{data, 16, 64, data + 4096, 8, 64, 64};
  good.out = reinterpret_cast<float*>(data + 8192);
  good.out_stride = 16;
  EXPECT_TRUE(matrices->Multiply(good).ok());
  const auto refused = [&](const std::function<void(MatrixProduct&)>& change) {
    MatrixProduct product = good;
    change(product);
    return absl::IsInvalidArgument(matrices->Multiply(product));
  };
  EXPECT_TRUE(refused([](MatrixProduct& p) { p.w_rows = 1 << 20; }));
  EXPECT_TRUE(refused([](MatrixProduct& p) { p.x_rows = 0; }));
  EXPECT_TRUE(refused([](MatrixProduct& p) { p.w_stride = 32; }));
  EXPECT_TRUE(refused([](MatrixProduct& p) { p.out_stride = 15; }));
  EXPECT_TRUE(refused([](MatrixProduct& p) { p.x = nullptr; }));
  EXPECT_TRUE(refused([&](MatrixProduct& p) { p.out = reinterpret_cast<float*>(&good); }));
  device->Free(data, 64 << 10);
}

INSTANTIATE_TEST_SUITE_P(Makers, MatricesTest, testing::ValuesIn(Makers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace::device
