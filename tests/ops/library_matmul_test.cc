// Matrices of many rows by a maker's library: an OpenCL device stands in, whose streams multiply as
// such a library does, so that the kernels that unpack weights run for real. Results are held to
// exact sums within what rounding both operands to bfloat16 can do; a library that fails is told
// of once and replaced by kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "device/matrix_stream.h"
#include "device/opencl/opencl_device.h"
#include "operands.h"
#include "ops/opencl/kernel_backend.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

using device::CopyDirection;

struct Library {
  bool installed = true;
  int fail_at = 0;  // the product that fails; 0: none
  int products = 0;
};

// A stream of another device, with products.
class LibraryStream final : public device::Stream, public device::MatrixStream {
 public:
  LibraryStream(std::unique_ptr<device::Stream> inner, Library* library)
      : inner_(std::move(inner)), library_(library) {}

  absl::Status CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                         uint64_t bytes) override {
    return inner_->CopyAsync(direction, to, from, bytes);
  }
  absl::Status HostCallback(std::function<void(absl::Status)> callback) override {
    return inner_->HostCallback(std::move(callback));
  }
  absl::Status Launch(const device::Kernel& kernel, const device::LaunchShape& shape,
                      std::span<const device::KernelArgument> arguments) override {
    return inner_->Launch(kernel, shape, arguments);
  }
  absl::Status Record(device::Event* event) override { return inner_->Record(event); }
  absl::Status Wait(const device::Event& event) override { return inner_->Wait(event); }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  void ClearError() override { inner_->ClearError(); }

  absl::Status OpenMatrices() override {
    return library_->installed ? absl::OkStatus() : absl::NotFoundError("not installed");
  }
  absl::Status Multiply(const device::MatrixProduct& p) override {
    if (++library_->products == library_->fail_at) return absl::InternalError("made to fail");
    std::vector<uint16_t> w = Down<uint16_t>(p.w, int64_t{p.w_rows} * p.w_stride);
    std::vector<uint16_t> x = Down<uint16_t>(p.x, int64_t{p.x_rows} * p.x_stride);
    std::vector<float> row(static_cast<size_t>(p.w_rows));
    for (int64_t i = 0; i < p.x_rows; ++i) {
      for (int64_t j = 0; j < p.w_rows; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < p.cols; ++k) {
          sum += Bf16ToFloat(w[static_cast<size_t>(j * p.w_stride + k)]) *
                 Bf16ToFloat(x[static_cast<size_t>(i * p.x_stride + k)]);
        }
        row[static_cast<size_t>(j)] = sum;
      }
      RETURN_IF_ERROR(inner_->CopyAsync(
          CopyDirection::kHostToDevice, reinterpret_cast<std::byte*>(p.out + i * p.out_stride),
          reinterpret_cast<const std::byte*>(row.data()), row.size() * 4));
      RETURN_IF_ERROR(inner_->Synchronize());
    }
    return absl::OkStatus();
  }

 private:
  template <typename T>
  std::vector<T> Down(const std::byte* from, int64_t count) {
    std::vector<T> data(static_cast<size_t>(count));
    EXPECT_TRUE(inner_
                    ->CopyAsync(CopyDirection::kDeviceToHost,
                                reinterpret_cast<std::byte*>(data.data()), from,
                                data.size() * sizeof(T))
                    .ok());
    EXPECT_TRUE(inner_->Synchronize().ok());
    return data;
  }

  const std::unique_ptr<device::Stream> inner_;
  Library* const library_;
};

// Another device whose streams have products.
class LibraryDevice final : public device::Device {
 public:
  LibraryDevice(device::Device* inner, Library* library) : inner_(inner), library_(library) {}
  const device::DeviceInfo& info() const override { return inner_->info(); }
  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override { return inner_->Allocate(bytes); }
  void Free(std::byte* data, uint64_t bytes) override { inner_->Free(data, bytes); }
  device::MemoryInfo GetMemoryInfo() const override { return inner_->GetMemoryInfo(); }
  absl::StatusOr<std::unique_ptr<device::Stream>> CreateStream() override {
    ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream, inner_->CreateStream());
    return std::unique_ptr<device::Stream>(
        std::make_unique<LibraryStream>(std::move(stream), library_));
  }
  absl::StatusOr<std::unique_ptr<device::Event>> CreateEvent() override {
    return inner_->CreateEvent();
  }
  absl::StatusOr<std::unique_ptr<device::Kernel>> CreateKernel(
      const device::KernelSource& source) override {
    return inner_->CreateKernel(source);
  }
  uint64_t KernelAddress(const std::byte* address) const override {
    return inner_->KernelAddress(address);
  }
  absl::StatusOr<device::Telemetry> ReadTelemetry() override { return inner_->ReadTelemetry(); }

 private:
  device::Device* const inner_;
  Library* const library_;
};

// 64 MiB of memory: 1 MiB for the library, so that matrices come in pieces. By whether an item is a
// lane.
device::Device* SharedDevice(bool lanes) {
  static std::unique_ptr<device::Device> devices[2];
  std::unique_ptr<device::Device>& device = devices[lanes ? 1 : 0];
  if (device == nullptr) {
    device::OpenClOptions options;
    options.memory_bytes = uint64_t{64} << 20;
    options.scalar_items = lanes;
    auto made = device::CreateOpenClDevice(options);
    EXPECT_TRUE(made.ok()) << made.status();
    device = *std::move(made);
  }
  return device.get();
}

class LibraryMatMulTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HaveKernelDevice()) GTEST_SKIP() << "no device compiles kernels here";
  }
  std::unique_ptr<Backend> Open(bool lanes, bool deterministic = false) {
    inner_.push_back(std::make_unique<LibraryDevice>(SharedDevice(lanes), &library_));
    device::Device* const device = inner_.back().get();
    KernelOptions options;
    options.deterministic = deterministic;
    options.library_rows = 2;
    options.tell = [this](const std::string& what) { told_.push_back(what); };
    auto made = CreateKernelBackend(device, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    return CreateStagedBackend(device, *std::move(made));
  }

  // Two matrices of one x, of which the first has a bias.
  void Check(Backend& backend, DType dtype, int rows, int cols, int n, bool rounded) {
    SCOPED_TRACE(testing::Message()
                 << Info(dtype).name << " " << rows << "x" << cols << " n " << n);
    Random random(20261130 + static_cast<uint64_t>(rows));
    const int64_t stride = cols + 3, out_stride = rows + 5;
    const std::vector<float> x = RandomFloats(static_cast<size_t>(n * stride), random);
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(rows), random);
    std::vector<std::byte> plain[2], packed[2];
    std::vector<float> out[2];
    MatMulTarget targets[2];
    for (int t = 0; t < 2; ++t) {
      plain[t] = RandomWeight(dtype, rows, cols, random);
      packed[t].resize(backend.PackedBytes(Layout::kRows16, dtype, rows, cols));
      ASSERT_TRUE(backend.Pack(Layout::kRows16, dtype, rows, cols, plain[t], packed[t]).ok());
      out[t].assign(static_cast<size_t>(n * out_stride), kUntouched);
      targets[t].weight = {dtype, Layout::kRows16, rows, cols, packed[t].data()};
      targets[t].out = View(out[t], n, rows, out_stride);
    }
    targets[0].bias = {bias.data(), rows};
    auto& view = const_cast<std::vector<float>&>(x);
    const absl::Status status = backend.MatMul(View(view, n, cols, stride), targets);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<float> w(static_cast<size_t>(cols));
    for (int t = 0; t < 2; ++t) {
      for (int r = 0; r < rows; ++r) {
        const uint64_t bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
        DequantizeRow(dtype, plain[t].data() + bytes * static_cast<uint64_t>(r), w);
        for (int i = 0; i < n; ++i) {
          double want = t == 0 ? double{bias[static_cast<size_t>(r)]} : 0.0, products = 0;
          for (int c = 0; c < cols; ++c) {
            const double product =
                double{w[static_cast<size_t>(c)]} * double{x[static_cast<size_t>(i * stride + c)]};
            want += product;
            products += std::fabs(product);
          }
          // Each factor may be off by 2^-8 of itself, each sum by 2^-24 of what was summed; kernels
          // round less.
          const double tolerance = (rounded ? 2.02 * 0x1p-8 : 8 * 0x1p-24) * products +
                                   2 * cols * 0x1p-24 * products + 2 * 0x1p-24 * std::fabs(want);
          ASSERT_NEAR(out[t][static_cast<size_t>(i * out_stride + r)], want, tolerance)
              << "matrix " << t << " feature " << r << " row " << i;
        }
      }
      EXPECT_TRUE(NothingPastRows(out[t], n, rows, out_stride));
    }
  }

  Library library_;
  std::vector<std::unique_ptr<LibraryDevice>> inner_;
  std::vector<std::string> told_;
};

TEST_F(LibraryMatMulTest, EveryFormatWithinRounding) {
  for (const bool lanes : {false, true}) {
    const auto backend = Open(lanes);
    for (const DType dtype : MatrixTypes()) {
      const int before = library_.products;
      const bool floats = dtype == DType::kF16 || dtype == DType::kBF16;
      const int n = floats ? 3 : 2 * kLibraryFactor;
      Check(*backend, dtype, 40, 256, n, true);
      EXPECT_EQ(library_.products - before, dtype == DType::kF32 ? 0 : 2) << Info(dtype).name;
    }
    // Rows that end within a group of columns.
    Check(*backend, DType::kBF16, 33, 72, 5, true);
  }
  EXPECT_THAT(told_, testing::IsEmpty());
}

TEST_F(LibraryMatMulTest, LargeMatricesComeInPieces) {
  const auto backend = Open(false);
  Check(*backend, DType::kF16, 600, 1024, 2, true);
  // 512 KiB hold 256 rows of 1024 columns.
  EXPECT_EQ(library_.products, 2 * 3);
  // More of x than half of the room goes to the kernels.
  Check(*backend, DType::kF16, 16, 1024, 300, false);
  EXPECT_EQ(library_.products, 2 * 3);
}

TEST_F(LibraryMatMulTest, FewRowsAndUniformOnesAreTheKernels) {
  const auto backend = Open(false);
  Check(*backend, DType::kF16, 40, 256, 1, false);
  Check(*backend, DType::kQ4_0, 40, 256, 2 * kLibraryFactor - 1, false);
  Check(*backend, DType::kF16, 40, 36, 8, false);  // rows of no whole 16 bytes
  backend->SetUniform(true);
  Check(*backend, DType::kF16, 40, 256, 8, false);
  const auto exact = Open(false, true);
  Check(*exact, DType::kF16, 40, 256, 8, false);
  EXPECT_EQ(library_.products, 0);
}

TEST_F(LibraryMatMulTest, ALibraryThatFailsIsReplacedAndToldOfOnce) {
  for (const int fail_at : {1, 2}) {
    told_.clear();
    library_ = {.fail_at = fail_at};
    const auto backend = Open(false);
    Check(*backend, DType::kF16, 40, 256, 8, true);
    EXPECT_EQ(library_.products, fail_at);
    Check(*backend, DType::kF16, 40, 256, 8, false);
    EXPECT_EQ(library_.products, fail_at);
    EXPECT_THAT(told_, testing::ElementsAre(testing::HasSubstr("made to fail")));
  }
}

TEST_F(LibraryMatMulTest, ALibraryThatIsNotThereIsSaid) {
  library_.installed = false;
  const auto backend = Open(false);
  Check(*backend, DType::kF16, 40, 256, 8, false);
  EXPECT_THAT(told_, testing::ElementsAre(testing::HasSubstr("not installed")));
}

}  // namespace
}  // namespace terrace::ops
