// The operators of Cambricon's CNNL over a stand-in for it: trials find the numbers that are not
// public, operators give what the reference gives, and what fails or is wrong is computed by the
// host instead.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "conformance/vendor_library.h"
#include "device/cambricon/cambricon_device.h"
#include "device/cpu/thread_team.h"
#include "ops/cambricon/cambricon_backend.h"
#include "ops/ref/ref_backend.h"
#include "tensor/half.h"

namespace terrace::ops {
namespace {

using testing::HasSubstr;

constexpr int kRows = 3, kCols = 48, kOut = 40;

struct Operands {
  Operands() {
    Random random(77);
    const auto fill = [&](std::vector<float>* to, size_t count) {
      for (size_t i = 0; i < count; ++i) to->push_back(random.Signed());
    };
    fill(&x, kRows * kCols);
    fill(&norm, kCols);
    fill(&head_norm, kCols / 2);
    fill(&weights, kOut * kCols);
    fill(&bias, kOut);
    for (const float w : weights) {
      halves.push_back(FloatToHalf(w));
      bfloats.push_back(FloatToBf16(w));
    }
  }
  std::vector<float> x, norm, head_norm, weights, bias;
  std::vector<uint16_t> halves, bfloats;
};

// Every operator that CNNL may compute, and one that it may not, over `up`, which brings operands
// to where the backend wants them. Results of all, one after the other.
template <typename Up>
std::vector<float> RunAll(Backend& b, const Operands& o, absl::Status* status, const Up& up) {
  std::vector<float> results;
  const auto keep = [&](const absl::Status& told) {
    if (status->ok()) *status = told;
  };
  const auto read = [&](const Matrix& m) {
    std::vector<float> here(static_cast<size_t>(m.rows) * static_cast<size_t>(m.cols));
    keep(b.Read(m, here));
    results.insert(results.end(), here.begin(), here.end());
  };
  const auto floats = [&](const std::vector<float>& v) {
    return reinterpret_cast<float*>(up(v.data(), v.size() * 4));
  };
  const std::vector<float> none(kRows * kCols), empty(kRows * kOut);
  const Matrix x{floats(o.x), kRows, kCols, kCols}, y{floats(none), kRows, kCols, kCols};
  const Matrix out{floats(empty), kRows, kOut, kOut};
  keep(b.RmsNorm(x, {floats(o.norm), kCols}, 1e-5f, y));
  read(y);
  keep(b.RmsNormHeads(y, 2, {floats(o.head_norm), kCols / 2}, 1e-5f));
  read(y);
  keep(b.Add(y, x));
  keep(b.Scale(y, 0.75f));
  read(y);
  const Vector bias{floats(o.bias), kOut};
  const Weight weights[] = {
      {DType::kF32, Layout::kPlain, kOut, kCols, up(o.weights.data(), o.weights.size() * 4)},
      {DType::kF16, Layout::kPlain, kOut, kCols, up(o.halves.data(), o.halves.size() * 2)},
      {DType::kBF16, Layout::kPlain, kOut, kCols, up(o.bfloats.data(), o.bfloats.size() * 2)}};
  for (const Weight& weight : weights) {
    const MatMulTarget target{weight, bias, out};
    keep(b.MatMul(x, {&target, 1}));
    read(out);
  }
  keep(b.Zero(y));
  read(y);
  return results;
}

class CnnlBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_ = device::FakeOf("cambricon");
    fake_->violations.clear();
    fake_->launched.clear();
    fake_->Arm(0, 0);
    ThreadTeam team(1);
    absl::Status status;
    std::vector<std::vector<std::byte>> kept;
    want_ =
        RunAll(*CreateRefBackend(&team), operands_, &status, [&](const void* data, size_t bytes) {
          const auto* begin = static_cast<const std::byte*>(data);
          kept.emplace_back(begin, begin + bytes);
          return kept.back().data();
        });
    ASSERT_TRUE(status.ok()) << status;
  }

  absl::Status OnChip(bool library, std::vector<float>* results, const std::string& name = "") {
    ThreadTeam team(1);
    device::CambriconOptions options;
    options.library = device::FakeLibrary("cambricon");
    options.memory_bytes = 8 << 20;
    auto device = device::CreateCambriconDevice(options);
    if (!device.ok()) return device.status();
    auto made =
        CreateCambriconBackend(device->get(), CreateRefBackend(&team),
                               {library, name.empty() ? device::FakeLibrary("cambricon") : name});
    if (!made.ok()) return made.status();
    note_ = made->note;
    constexpr uint64_t kRoom = 1 << 20;
    auto room = (*device)->Allocate(kRoom);
    auto stream = (*device)->CreateStream();
    absl::Status status = room.ok() ? stream.status() : room.status();
    if (status.ok()) {
      uint64_t used = 0;
      *results = RunAll(*made->backend, operands_, &status, [&](const void* data, size_t bytes) {
        std::byte* to = *room + used;
        used += (bytes + 63) / 64 * 64;
        absl::Status copied = (*stream)->CopyAsync(device::CopyDirection::kHostToDevice, to,
                                                   static_cast<const std::byte*>(data), bytes);
        if (copied.ok()) copied = (*stream)->Synchronize();
        if (status.ok()) status = copied;
        return to;
      });
    }
    if (stream.ok()) stream->reset();
    made->backend.reset();
    if (room.ok()) (*device)->Free(*room, kRoom);
    return status;
  }

  // Float32 within a few roundings of sums of 48 terms; of 16-bit matrices activations and results
  // are rounded, too, to 11 and to 8 bits: 48 terms of at most 1 in random order, and a result
  // below 16.
  void ExpectRight(const std::vector<float>& got) const {
    ASSERT_EQ(got.size(), want_.size());
    const size_t halves = 3 * kRows * kCols + kRows * kOut, bfloats = halves + kRows * kOut;
    for (size_t i = 0; i < got.size(); ++i) {
      double tolerance = 64 * 0x1p-24 * (1 + std::fabs(want_[i]));
      if (i >= halves && i < bfloats) tolerance = std::sqrt(48.0) * 0x1p-12 + 0x1p-8;
      if (i >= bfloats && i < bfloats + kRows * kOut) {
        tolerance = std::sqrt(48.0) * 0x1p-9 + 0x1p-5;
      }
      ASSERT_NEAR(got[i], want_[i], tolerance) << i;
    }
  }

  device::VendorFake* fake_ = nullptr;
  const Operands operands_;
  std::vector<float> want_;
  std::string note_;
};

TEST_F(CnnlBackendTest, GivesWhatTheReferenceGives) {
  std::vector<float> got;
  const absl::Status status = OnChip(true, &got);
  ASSERT_TRUE(status.ok()) << status;
  ExpectRight(got);
  EXPECT_THAT(note_, HasSubstr("matrices of F32, of F16, of BF16, RMS norms, sums, zeros"));
  for (const char* name :
       {"cnnlMatMul_v2", "cnnlRmsNormForward", "cnnlOpTensor", "cnnlCastDataType", "cnnlFill_v3"}) {
    EXPECT_THAT(fake_->launched, testing::Contains(name));
  }
  // Three products beside the trial's, each with a bias.
  EXPECT_GE(std::count(fake_->launched.begin(), fake_->launched.end(), "cnnlMatMul_v2"), 4);
  EXPECT_EQ(fake_->Alive(), 0u);
  EXPECT_THAT(fake_->violations, testing::IsEmpty());
  for (const std::string& function : device::FunctionsOf("cambricon")) {
    if (!function.starts_with("cnnl") || function == "cnnlGetErrorString") continue;
    EXPECT_TRUE(fake_->called.contains(function)) << function;
  }
}

TEST_F(CnnlBackendTest, WhateverFailsTheHostComputes) {
  std::vector<float> got;
  ASSERT_TRUE(OnChip(true, &got).ok());
  const int calls = fake_->calls;
  ASSERT_GT(calls, 200);
  int replaced = 0;
  for (int n = 1; n <= calls; ++n) {
    fake_->Arm(n, n % 8 + 1);
    got.clear();
    const absl::Status status = OnChip(true, &got);
    SCOPED_TRACE(testing::Message() << "call " << n << ", " << fake_->failed_call);
    ASSERT_EQ(fake_->Alive(), 0u);
    ASSERT_THAT(fake_->violations, testing::IsEmpty());
    // What the runtime fails at is told, unless it was within a trial.
    if (!fake_->failed || !fake_->failed_call.starts_with("cnnl")) continue;
    ASSERT_TRUE(status.ok()) << status;
    ExpectRight(got);
    ++replaced;
  }
  EXPECT_GT(replaced, 100);
}

TEST_F(CnnlBackendTest, IsUsedOnRequestOnlyAndSaysWhatItLacks) {
  std::vector<float> got;
  ASSERT_TRUE(OnChip(false, &got).ok());
  EXPECT_EQ(got, want_);
  EXPECT_THAT(note_, HasSubstr("the host computes all operators"));
  EXPECT_THAT(fake_->launched, testing::IsEmpty());
  ASSERT_TRUE(OnChip(true, &got, "libterrace-no-such-library.so").ok());
  EXPECT_EQ(got, want_);
  EXPECT_THAT(note_, HasSubstr("could not be opened"));
  ASSERT_TRUE(OnChip(true, &got, device::FakeLibrary("ascend")).ok());
  EXPECT_THAT(note_, HasSubstr("CNNL lacks cnnlCreate"));
}

}  // namespace
}  // namespace terrace::ops
