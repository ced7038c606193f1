// Launches that come again are replayed as one graph: what runs is the same, in the same order, as
// without; other arguments, shapes and addresses are another graph; and where a driver has none, or
// fails to make one, launches go one by one. Over stand-ins for drivers that carry kernels out on
// host memory, at once or when a graph is replayed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_driver.h"
#include "device/driver_graphs.h"
#include "device/hip/hip_device.h"
#include "device/musa/musa_device.h"
#include "vendor_library.h"

namespace terrace::device {
namespace {

constexpr int kElements = 64;
constexpr int kLaunches = 5;  // of a step

absl::StatusOr<cuda::Driver> LoadOf(const std::string& vendor) {
  const std::string library = FakeLibrary(vendor);
  if (vendor == "hip") return hip::LoadDriver(library);
  if (vendor == "musa") return musa::LoadDriver(library);
  return cuda::LoadDriver(library);
}

class LaunchGraphsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fake_ = FakeOf(GetParam());
    fake_->violations.clear();
    fake_->Arm(0, 0);
    // y[i] = a x[i] + table[i], in the dialect's parameters: addresses are two words.
    fake_->parameters_of = [](const std::string&) { return size_t{7}; };
    fake_->run = [](const FakeLaunch& launch) {
      const auto* x = reinterpret_cast<const float*>(launch.values[0]);
      const auto* table = reinterpret_cast<const float*>(launch.values[2]);
      auto* y = reinterpret_cast<float*>(launch.values[4]);
      float a;
      std::memcpy(&a, &launch.values[6], sizeof(a));
      for (int i = 0; i < kElements; ++i) y[i] = a * x[i] + table[i];
    };
  }
  void TearDown() override {
    stream_.reset();
    kernel_.reset();
    device_.reset();
    fake_->parameters_of = nullptr;
    fake_->run = nullptr;
    fake_->executed.clear();
    EXPECT_EQ(fake_->Alive(), 0u);
    EXPECT_THAT(fake_->violations, testing::IsEmpty());
  }

  void Open(bool graphs, const std::function<void(cuda::Driver&)>& change = nullptr) {
    cuda::Driver driver = LoadOf(GetParam()).value();
    if (change != nullptr) change(driver);
    cuda::CompilerMaker maker = hip::Hiprtc();
    maker.libraries = {FakeLibrary("hip")};
    CudaOptions options;
    options.memory_bytes = 8 << 20;
    options.graphs = graphs;
    options.tell = [this](const std::string& what) { told_.push_back(what); };
    device_ = CreateCudaDevice(options, driver, cuda::Compiler::Open(maker).value()).value();
    stream_ = device_->CreateStream().value();
    kernel_ = device_->CreateKernel({"axpy", nullptr, "KERNEL(axpy)(float a) {}"}).value();
    x_ = Floats();
    y_ = Floats();
    table_ = Floats();
    fake_->executed.clear();
    fake_->launch_calls = 0;
  }
  float* Floats() {
    std::byte* data = device_->Allocate(4096).value();
    std::memset(data, 0, 4096);
    return reinterpret_cast<float*>(data);
  }

  // Launches `launches` times, from x to y and back, and waits. The table's contents are new in
  // each step; its address is not.
  void Step(int step, int launches = kLaunches, float* table = nullptr, uint32_t groups = 1) {
    std::vector<float> values(kElements);
    for (int i = 0; i < kElements; ++i) values[i] = static_cast<float>(i * step % 7);
    float* at = table == nullptr ? table_ : table;
    ASSERT_TRUE(stream_
                    ->CopyAsync(CopyDirection::kHostToDevice, reinterpret_cast<std::byte*>(at),
                                reinterpret_cast<const std::byte*>(values.data()), kElements * 4)
                    .ok());
    for (int i = 0; i < launches; ++i) {
      const KernelArgument arguments[] = {KernelArgument::Memory(i % 2 == 0 ? x_ : y_),
                                          KernelArgument::Memory(at),
                                          KernelArgument::Memory(i % 2 == 0 ? y_ : x_),
                                          KernelArgument::Value(0.5f * static_cast<float>(i))};
      ASSERT_TRUE(stream_->Launch(*kernel_, {{groups, 1, 1}, {kElements, 1, 1}}, arguments).ok());
    }
    ASSERT_TRUE(stream_->Synchronize().ok());
  }
  std::vector<float> Result() const { return {y_, y_ + kElements}; }
  int Count(const std::string& part) const {
    int count = 0;
    for (const std::string& call : fake_->order) count += call.find(part) != std::string::npos;
    return count;
  }

  VendorFake* fake_ = nullptr;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Kernel> kernel_;
  float* x_ = nullptr;
  float* y_ = nullptr;
  float* table_ = nullptr;
  std::vector<std::string> told_;
};

TEST_P(LaunchGraphsTest, ResultsAreEqualAndCallsAreFewer) {
  constexpr int kSteps = 10;
  std::vector<std::vector<float>> without;
  Open(false);
  for (int step = 0; step < kSteps; ++step) {
    Step(step);
    without.push_back(Result());
  }
  EXPECT_EQ(fake_->launch_calls, uint64_t{kSteps} * kLaunches);
  EXPECT_EQ(Count("Graph") + Count("Capture"), 0);
  stream_.reset();
  kernel_.reset();
  Open(true);
  for (int step = 0; step < kSteps; ++step) {
    Step(step);
    EXPECT_EQ(Result(), without[static_cast<size_t>(step)]) << step;
  }
  // The first step one by one, then each as one.
  EXPECT_EQ(fake_->launch_calls, uint64_t{kLaunches} + kSteps - 1);
  EXPECT_EQ(fake_->executed.size(), size_t{kSteps} * kLaunches);
  EXPECT_EQ(Count("BeginCapture"), 1);
  EXPECT_THAT(told_, testing::IsEmpty());
}

TEST_P(LaunchGraphsTest, OtherAddressesShapesAndCountsAreCapturedAnew) {
  Open(true);
  for (int step = 0; step < 3; ++step) Step(step);
  EXPECT_EQ(Count("BeginCapture"), 1);
  float* const moved = Floats();
  for (int step = 0; step < 3; ++step) Step(step, kLaunches, moved);
  EXPECT_EQ(Count("BeginCapture"), 2);
  EXPECT_EQ(fake_->executed.back().values[2], reinterpret_cast<uintptr_t>(moved));
  for (int step = 0; step < 3; ++step) Step(step, kLaunches, nullptr, 2);
  EXPECT_EQ(Count("BeginCapture"), 3);
  EXPECT_EQ(fake_->executed.back().shape[0], 2u);
  for (int step = 0; step < 3; ++step) Step(step, kLaunches + 1);
  EXPECT_EQ(Count("BeginCapture"), 4);
  // What was captured first is still known.
  const uint64_t calls = fake_->launch_calls;
  Step(9);
  EXPECT_EQ(fake_->launch_calls, calls + 1);
  EXPECT_EQ(Count("BeginCapture"), 4);
  // One or two launches are not worth it.
  for (int step = 0; step < 3; ++step) Step(step, 2);
  EXPECT_EQ(Count("BeginCapture"), 4);
}

TEST_P(LaunchGraphsTest, WithoutEntryPointsLaunchesGoOneByOneAndThatIsSaid) {
  Open(true, [](cuda::Driver& driver) { driver.GraphLaunch = nullptr; });
  for (int step = 0; step < 3; ++step) Step(step);
  EXPECT_EQ(fake_->launch_calls, uint64_t{3} * kLaunches);
  EXPECT_THAT(told_, testing::ElementsAre(testing::HasSubstr("has no graphs")));
}

TEST_P(LaunchGraphsTest, ACaptureThatFailsIsSaidOnceAndNothingIsLost) {
  for (const char* call : {"BeginCapture", "EndCapture", "Instantiate", "GraphLaunch"}) {
    SCOPED_TRACE(call);
    told_.clear();
    Open(true);
    Step(1);
    // Where the call comes in a step that makes a graph.
    fake_->Arm(0, 0);
    Step(1);
    int at = 0;
    for (size_t i = 0; i < fake_->order.size(); ++i) {
      if (fake_->order[i].find(call) != std::string::npos) at = static_cast<int>(i) + 1;
    }
    ASSERT_GT(at, 0);
    const std::vector<float> want = Result();
    stream_.reset();
    kernel_.reset();
    Open(true);
    Step(1);
    fake_->Arm(at, 801);
    Step(1);
    EXPECT_TRUE(fake_->failed);
    EXPECT_EQ(Result(), want);
    fake_->Arm(0, 0);
    for (int step = 0; step < 3; ++step) Step(step);
    EXPECT_EQ(Count("Graph") + Count("Capture"), 0);
    EXPECT_EQ(fake_->executed.size(), size_t{5} * kLaunches);
    EXPECT_THAT(told_, testing::ElementsAre(testing::HasSubstr("one by one")));
    stream_.reset();
    kernel_.reset();
  }
}

TEST_P(LaunchGraphsTest, RunsThatDoNotComeAgainAreForgotten) {
  auto opened = cuda::OpenDriver(LoadOf(GetParam()).value(), 0);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const DriverApi& api = *opened->api;
  ASSERT_TRUE(api.Enter().ok());
  void* module = api.LoadModule("text").value();
  void* function = api.GetFunction(module, "axpy").value();
  void* stream = api.CreateStream().value();
  fake_->run = nullptr;
  {
    LaunchGraphs graphs(&api, nullptr, {.fewest_launches = 1, .most_runs = 4});
    const auto launch = [&](uint64_t value) {
      LaunchRun run;
      run.Add(function, {}, std::vector<uint64_t>(7, value));
      ASSERT_TRUE(graphs.Launch(run, stream).ok());
    };
    fake_->Arm(0, 0);
    for (int round = 0; round < 3; ++round) {
      for (uint64_t value = 0; value < 4; ++value) launch(value);
    }
    EXPECT_EQ(Count("BeginCapture"), 4);
    EXPECT_EQ(fake_->graphs.size(), 4u);
    for (uint64_t value = 4; value < 8; ++value) launch(value);
    EXPECT_EQ(fake_->graphs.size(), 0u);
    EXPECT_EQ(fake_->executed.size(), 16u);
  }
  api.DestroyStream(stream);
  api.UnloadModule(module);
}

INSTANTIATE_TEST_SUITE_P(Drivers, LaunchGraphsTest, testing::Values("cuda", "hip", "musa"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::device
