// The operators of an Ascend NPU over a stand-in for its library: which of them the chip computes,
// that they give what the reference gives, and that each call that fails is told and leaves nothing
// behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "conformance/vendor/vendor_codes.h"
#include "conformance/vendor_library.h"
#include "device/ascend/ascend_device.h"
#include "device/cpu/thread_team.h"
#include "ops/ascend/ascend_backend.h"
#include "ops/ref/ref_backend.h"
#include "tensor/half.h"

namespace terrace::ops {
namespace {

constexpr int kRows = 3, kCols = 48, kOut = 40;

// Operands on the device, one after the other.
class Bench {
 public:
  Bench() {
    device::AscendOptions options;
    options.library = device::FakeLibrary("ascend");
    options.memory_bytes = 8 << 20;
    auto made = device::CreateAscendDevice(options);
    status_ = made.status();
    if (!status_.ok()) return;
    device_ = *std::move(made);
    auto backend = CreateAscendBackend(device_.get(), CreateRefBackend(&team_), options.library);
    status_ = backend.status();
    if (!status_.ok()) return;
    backend_ = *std::move(backend);
    auto stream = device_->CreateStream();
    status_ = stream.status();
    if (!status_.ok()) return;
    stream_ = *std::move(stream);
    auto room = device_->Allocate(kRoom);
    status_ = room.status();
    if (status_.ok()) room_ = *room;
  }
  ~Bench() {
    stream_.reset();
    backend_.reset();
    if (room_ != nullptr) device_->Free(room_, kRoom);
  }

  const std::byte* Up(const void* data, size_t bytes) {
    std::byte* to = room_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    Keep(stream_->CopyAsync(device::CopyDirection::kHostToDevice, to,
                            static_cast<const std::byte*>(data), bytes));
    Keep(stream_->Synchronize());
    return to;
  }
  Matrix Up(const std::vector<float>& data, int rows, int cols) {
    return {reinterpret_cast<float*>(const_cast<std::byte*>(Up(data.data(), data.size() * 4))),
            rows, cols, cols};
  }
  Vector Up(const std::vector<float>& data) {
    return {reinterpret_cast<const float*>(Up(data.data(), data.size() * 4)),
            static_cast<int32_t>(data.size())};
  }
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  Backend& backend() { return *backend_; }
  const absl::Status& status() const { return status_; }

 private:
  static constexpr uint64_t kRoom = 1 << 20;
  ThreadTeam team_{1};
  absl::Status status_;
  std::unique_ptr<device::DriverDevice> device_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<device::Stream> stream_;
  std::byte* room_ = nullptr;
  uint64_t used_ = 0;
};

struct Operands {
  Operands() : random(77) {
    const auto fill = [&](std::vector<float>* to, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        to->push_back(static_cast<float>(random.Below(2001)) / 1000.0f - 1.0f);
      }
    };
    fill(&x, kRows * kCols);
    fill(&y, kRows * kCols);
    fill(&norm, kCols);
    fill(&weights, kOut * kCols);
    fill(&bias, kOut);
    for (float w : weights) halves.push_back(FloatToHalf(w));
  }
  Random random;
  std::vector<float> x, y, norm, weights, bias;
  std::vector<uint16_t> halves;
};

// Runs every operator that is the chip's, and one of the host's. Results of all, one after the
// other.
std::vector<float> RunAll(Backend& b, absl::Status* status, Matrix x, Matrix y, Matrix out,
                          Vector norm, Vector bias, const std::byte* weights,
                          const std::byte* halves) {
  std::vector<float> results;
  const auto keep = [&](const absl::Status& told) {
    if (status->ok()) *status = told;
  };
  const auto read = [&](const Matrix& m) {
    std::vector<float> here(static_cast<size_t>(m.rows) * static_cast<size_t>(m.cols));
    keep(b.Read(m, here));
    results.insert(results.end(), here.begin(), here.end());
  };
  keep(b.RmsNorm(x, norm, 1e-5f, y));
  read(y);
  keep(b.Add(y, x));
  keep(b.Scale(y, 0.75f));
  read(y);
  keep(b.Glu(Activation::kSilu, x, y, y));
  read(y);
  keep(b.Glu(Activation::kGeluTanh, y, x, y));
  read(y);
  const Weight wide{DType::kF32, Layout::kPlain, kOut, kCols, weights};
  const Weight narrow{DType::kF16, Layout::kPlain, kOut, kCols, halves};
  for (const Weight& weight : {wide, narrow}) {
    const MatMulTarget target{weight, bias, out};
    keep(b.MatMul(x, {&target, 1}));
    read(out);
  }
  keep(b.Softcap(y, 2.0f));
  read(y);
  keep(b.Zero(y));
  read(y);
  return results;
}

std::vector<float> OnChip(const Operands& o, absl::Status* status) {
  Bench bench;
  *status = bench.status();
  if (!status->ok()) return {};
  const Matrix x = bench.Up(o.x, kRows, kCols), y = bench.Up(o.y, kRows, kCols);
  const Matrix out = bench.Up(std::vector<float>(kRows * kOut), kRows, kOut);
  const Vector norm = bench.Up(o.norm), bias = bench.Up(o.bias);
  const std::byte* weights = bench.Up(o.weights.data(), o.weights.size() * 4);
  const std::byte* halves = bench.Up(o.halves.data(), o.halves.size() * 2);
  *status = bench.status();
  if (!status->ok()) return {};
  return RunAll(bench.backend(), status, x, y, out, norm, bias, weights, halves);
}

class AscendBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_ = device::FakeOf("ascend");
    fake_->violations.clear();
    fake_->launched.clear();
    fake_->Arm(0, 0);
  }
  device::VendorFake* fake_ = nullptr;
  const Operands operands_;
};

// Float32 operators differ from the reference by a few roundings of sums of 48 terms; 16-bit
// matrices round activations and results to 11 bits: 48 terms of at most 1 in random order err by
// sqrt(48) 2^-12, and a result below 16 by 2^-8.
TEST_F(AscendBackendTest, GivesWhatTheReferenceGives) {
  absl::Status status;
  const std::vector<float> got = OnChip(operands_, &status);
  ASSERT_TRUE(status.ok()) << status;
  ThreadTeam team(1);
  auto ref = CreateRefBackend(&team);
  Operands o = operands_;
  std::vector<float> out(kRows * kOut);
  const std::vector<float> want =
      RunAll(*ref, &status, {o.x.data(), kRows, kCols, kCols}, {o.y.data(), kRows, kCols, kCols},
             {out.data(), kRows, kOut, kOut}, {o.norm.data(), kCols}, {o.bias.data(), kOut},
             reinterpret_cast<const std::byte*>(o.weights.data()),
             reinterpret_cast<const std::byte*>(o.halves.data()));
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(got.size(), want.size());
  const size_t narrow_begin = 4 * kRows * kCols + kRows * kOut;
  for (size_t i = 0; i < got.size(); ++i) {
    const bool narrow = i >= narrow_begin && i < narrow_begin + kRows * kOut;
    const double tolerance =
        narrow ? std::sqrt(48.0) * 0x1p-12 + 0x1p-8 : 64 * 0x1p-24 * (1 + std::fabs(want[i]));
    ASSERT_NEAR(got[i], want[i], tolerance) << i;
  }
  for (const char* name :
       {"aclnnRmsNorm", "aclnnInplaceAdd", "aclnnInplaceMuls", "aclnnSilu", "aclnnGelu", "aclnnMul",
        "aclnnMatmul", "aclnnCast", "aclnnInplaceZero"}) {
    EXPECT_THAT(fake_->launched, testing::Contains(name));
  }
  EXPECT_EQ(fake_->Alive(), 0u);
  EXPECT_THAT(fake_->violations, testing::IsEmpty());
}

TEST_F(AscendBackendTest, EachCallThatFailsIsToldAndNothingLeaks) {
  absl::Status status;
  OnChip(operands_, &status);
  ASSERT_TRUE(status.ok()) << status;
  const int calls = fake_->calls;
  ASSERT_GT(calls, 100);
  for (int n = 1; n <= calls; ++n) {
    fake_->Arm(n, 507015);  // AICORE_EXCEPTION
    OnChip(operands_, &status);
    SCOPED_TRACE(testing::Message() << "call " << n << ", " << fake_->failed_call);
    // Nobody is there to be told when what ends waits: the bench's stream, the backend for the
    // chip's and for the host's work, and its stream.
    if (fake_->failed && n <= calls - 4) {
      EXPECT_FALSE(status.ok());
    }
    ASSERT_EQ(fake_->Alive(), 0u);
    ASSERT_THAT(fake_->violations, testing::IsEmpty());
  }
}

// Every code that the runtime has, at each of its functions and of the operators'; those that
// answer with an object have no codes, and give none.
TEST_F(AscendBackendTest, EveryCodeAtEachFunctionIsToldAndNothingLeaks) {
  absl::Status status;
  OnChip(operands_, &status);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<std::string> order = fake_->order;
  std::map<std::string, std::vector<int>> calls;
  for (size_t i = 0; i + 4 < order.size(); ++i) calls[order[i]].push_back(static_cast<int>(i) + 1);
  ASSERT_GT(calls.size(), 25u);
  std::vector<int> codes = device::CodesOf(device::kAclCodes);
  codes.insert(codes.end(), {161001, 161002, 361001, 561003, 561103, 561107, 561112});
  int told = 0;
  for (const auto& [function, at] : calls) {
    for (size_t i = 0; i < codes.size(); ++i) {
      fake_->Arm(at[i % at.size()], codes[i]);
      OnChip(operands_, &status);
      SCOPED_TRACE(testing::Message() << function << " answers " << codes[i]);
      ASSERT_EQ(fake_->failed_call, function);
      const bool harmless = function == "aclInit" && codes[i] == 100002;
      ASSERT_EQ(status.ok(), harmless) << status;
      told += int{!harmless};
      ASSERT_EQ(fake_->Alive(), 0u);
      ASSERT_THAT(fake_->violations, testing::IsEmpty());
    }
  }
  std::printf("%zu codes at %zu functions, %d failures told\n", codes.size(), calls.size(), told);
  for (const std::string& function : device::FunctionsOf("ascend")) {
    // Of the runtime's, events are another test's (tests/conformance/vendor_contract_test.cc).
    if (function.starts_with("aclrt")) continue;
    EXPECT_TRUE(fake_->called.contains(function)) << function;
  }
}

TEST_F(AscendBackendTest, WhatIsNotThereIsSaid) {
  device::AscendOptions options;
  options.library = device::FakeLibrary("ascend");
  options.memory_bytes = 8 << 20;
  auto device = device::CreateAscendDevice(options).value();
  ThreadTeam team(1);
  EXPECT_EQ(CreateAscendBackend(device.get(), CreateRefBackend(&team), "libterrace-no-such.so")
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(
      CreateAscendBackend(device.get(), CreateRefBackend(&team), device::FakeLibrary("cambricon"))
          .status()
          .code(),
      absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace terrace::ops
