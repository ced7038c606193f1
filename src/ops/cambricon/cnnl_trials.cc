#include "ops/cambricon/cnnl_trials.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "tensor/half.h"

namespace terrace::ops::cambricon {
namespace {

constexpr uint64_t kRoomBytes = 16 << 10;
constexpr uint64_t kPlaceBytes = 1 << 10;  // of an operand

class Trials {
 public:
  Trials(device::DriverDevice* device, device::Stream* stream, CnnlCalls* calls)
      : device_(device), stream_(stream), calls_(calls) {}
  ~Trials() { device_->Free(room_, kRoomBytes); }
  Trials(const Trials&) = delete;
  Trials& operator=(const Trials&) = delete;

  absl::StatusOr<Numbers> Run() {
    ASSIGN_OR_RETURN(room_, device_->Allocate(kRoomBytes));
    Numbers numbers;
    numbers.transpose_b = First(kLastAttribute, [&](int number) { return Product(number); });
    numbers.add = First(kLastOperation, [&](int number) { return Sum(number); });
    for (const bool half : {true, false}) {
      int& to = half ? numbers.to_half : numbers.to_bf16;
      int& from = half ? numbers.from_half : numbers.from_bf16;
      to = First(kLastCast, [&](int number) { return Cast(number, half, true); });
      from = First(kLastCast, [&](int number) { return Cast(number, half, false); });
    }
    numbers.norm = Norm();
    numbers.fill = Fill();
    return numbers;
  }

 private:
  // The first number that a trial is right with; -1 if none is.
  static int First(int end, const std::function<bool(int)>& trial) {
    for (int number = 0; number < end; ++number) {
      if (trial(number)) return number;
    }
    return -1;
  }

  template <typename T>
  Dense Put(int place, int dtype, std::vector<int> dims, const std::vector<T>& values) {
    std::byte* const to = room_ + static_cast<uint64_t>(place) * kPlaceBytes;
    const absl::Status queued = stream_->CopyAsync(
        device::CopyDirection::kHostToDevice, to, reinterpret_cast<const std::byte*>(values.data()),
        values.size() * sizeof(T));
    put_ = queued.ok() && stream_->Synchronize().ok();
    return {to, dtype, std::move(dims)};
  }
  // Whether `status` is OK and `at` then holds `want`, within rounding.
  template <typename T>
  bool Gives(const absl::Status& status, const Dense& at, const std::vector<T>& want,
             double tolerance = 0) {
    if (!put_ || !status.ok() || !calls_->Synchronize().ok()) return false;
    std::vector<T> got(want.size());
    const absl::Status queued = stream_->CopyAsync(
        device::CopyDirection::kDeviceToHost, reinterpret_cast<std::byte*>(got.data()),
        static_cast<const std::byte*>(at.data), got.size() * sizeof(T));
    if (!queued.ok() || !stream_->Synchronize().ok()) return false;
    for (size_t i = 0; i < want.size(); ++i) {
      if (!(std::abs(double(got[i]) - double(want[i])) <= tolerance)) return false;
    }
    return true;
  }

  bool Product(int number) {
    const Dense a = Put<float>(0, kFloat, {2, 4}, {1, 2, 3, 4, -1, 0, 2, 1});
    const Dense b = Put<float>(1, kFloat, {3, 4}, {1, 0, 0, 1, 2, 1, 0, 0, 0, 0, 1, -1});
    const Dense d = Put<float>(2, kFloat, {2, 3}, {9, 9, 9, 9, 9, 9});
    return Gives<float>(calls_->MatMul(number, a, b, d), d, {5, 4, -1, 0, -2, 1});
  }
  bool Sum(int number) {
    const Dense a = Put<float>(0, kFloat, {2, 3}, {1, 2, 3, 4, 5, 6});
    const Dense b = Put<float>(1, kFloat, {3}, {10, 20, 30});
    return Gives<float>(calls_->Add(number, a, b), a, {11, 22, 33, 14, 25, 36});
  }
  bool Cast(int number, bool half, bool narrow) {
    const std::vector<float> wide = {1.0f, -2.5f, 0.25f, 300.0f};
    std::vector<uint16_t> bits;
    for (const float value : wide) bits.push_back(half ? FloatToHalf(value) : FloatToBf16(value));
    const int dtype = half ? kHalf : kBf16;
    if (narrow) {
      const Dense in = Put<float>(0, kFloat, {4}, wide);
      const Dense out = Put<uint16_t>(1, dtype, {4}, {7, 7, 7, 7});
      return Gives<uint16_t>(calls_->Cast(number, in, out), out, bits);
    }
    const Dense in = Put<uint16_t>(0, dtype, {4}, bits);
    const Dense out = Put<float>(1, kFloat, {4}, {7, 7, 7, 7});
    return Gives<float>(calls_->Cast(number, in, out), out, wide);
  }
  bool Norm() {
    const Dense x = Put<float>(0, kFloat, {2, 4}, {1, 1, 1, 1, 2, 0, 0, 0});
    const Dense weight = Put<float>(1, kFloat, {4}, {1, 2, 3, 4});
    const Dense y = Put<float>(2, kFloat, {2, 4}, std::vector<float>(8, 9));
    const Dense rms = Put<float>(3, kFloat, {2}, {9, 9});
    return Gives<float>(calls_->RmsNorm(x, weight, 0.0f, y, rms), y, {1, 2, 3, 4, 2, 0, 0, 0},
                        1e-4);
  }
  bool Fill() {
    const Dense x = Put<float>(0, kFloat, {2, 2}, {1, 2, 3, 4});
    return Gives<float>(calls_->Zero(x), x, {0, 0, 0, 0});
  }

  device::DriverDevice* const device_;
  device::Stream* const stream_;
  CnnlCalls* const calls_;
  std::byte* room_ = nullptr;
  bool put_ = false;  // what was put last has arrived
};

}  // namespace

absl::StatusOr<Numbers> FindNumbers(device::DriverDevice* device, device::Stream* stream,
                                    CnnlCalls* calls) {
  Trials trials(device, stream, calls);
  return trials.Run();
}

}  // namespace terrace::ops::cambricon
