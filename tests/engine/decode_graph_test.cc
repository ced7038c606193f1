// Decode steps of a whole model on GPUs' devices, whose driver is a stand-in that notes what runs:
// with graphs of launches the same kernels run in the same order on the same operands, tables of
// the step at hand included, in fewer calls of the driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "conformance/vendor_library.h"
#include "device/cuda/cuda_device.h"
#include "device/hip/hip_device.h"
#include "engine/testing.h"

namespace terrace::engine {
namespace {

constexpr int kSteps = 12;

// A kernel's parameters: two words an address, one a number.
size_t ParametersOf(const std::string& kernel) {
  static const std::map<std::string, size_t> known = {
      {"embed", 11},    {"rms_norm", 11},  {"rope", 10},        {"glu", 14},
      {"add", 8},       {"matmul_1", 15},  {"matmul_8", 15},    {"matmul_tiles", 15},
      {"store_kv", 14}, {"attention", 21}, {"gather_rows", 10}, {"scale_or_cap", 7}};
  const auto found = known.find(kernel);
  EXPECT_NE(found, known.end()) << kernel;
  return found == known.end() ? 0 : found->second;
}

// What a launch computes from, apart from where things happen to lie.
class Trace {
 public:
  explicit Trace(const device::VendorFake* fake) : fake_(fake) {}

  void Add(const device::FakeLaunch& launch) {
    std::vector<uint64_t> line(launch.shape.begin(), launch.shape.end());
    for (const uint64_t value : launch.values) {
      line.push_back(OnDevice(value) ? addresses_.emplace(value, addresses_.size()).first->second
                                     : value);
    }
    // Tables of the step: a token's number, its angle, its position.
    if (launch.name == "embed") line.push_back(*At(launch.values[2]));
    if (launch.name == "rope") line.push_back(*At(launch.values[2]));
    if (launch.name == "attention") line.push_back(At(launch.values[8])[1]);
    lines.emplace_back(launch.name, std::move(line));
  }

  std::vector<std::pair<std::string, std::vector<uint64_t>>> lines;

 private:
  static const uint32_t* At(uint64_t address) { return reinterpret_cast<const uint32_t*>(address); }
  bool OnDevice(uint64_t value) const {
    for (const auto& [begin, bytes] : fake_->reserved) {
      if (value >= begin && value < begin + bytes) return true;
    }
    return false;
  }

  const device::VendorFake* const fake_;
  std::map<uint64_t, uint64_t> addresses_;  // by their first appearance
};

struct Decoded {
  std::vector<std::pair<std::string, std::vector<uint64_t>>> lines;
  std::vector<uint64_t> calls;  // that launched, of each decode step
  uint64_t captured = 0;
};

Decoded Decode(bool graphs, const std::string& architecture) {
  device::VendorFake* fake = device::FakeOf("cuda");
  fake->violations.clear();
  fake->Arm(0, 0);
  Trace trace(fake);
  Decoded run;
  {
    device::cuda::CompilerMaker maker = device::hip::Hiprtc();
    maker.libraries = {device::FakeLibrary("hip")};
    device::CudaOptions options;
    options.memory_bytes = 128 * kMiB;
    options.graphs = graphs;
    auto device = device::CreateCudaDevice(
        options, device::cuda::LoadDriver(device::FakeLibrary("cuda")).value(),
        device::cuda::Compiler::Open(maker).value());
    EXPECT_TRUE(device.ok()) << device.status();
    auto backend = ops::CreateKernelBackend(device->get()).value();
    fake->parameters_of = ParametersOf;
    fake->run = [&](const device::FakeLaunch& launch) { trace.Add(launch); };
    Rig rig(*std::move(device), std::move(backend), 64 * kMiB);
    const std::string base = std::string(TERRACE_TEST_DATA) + "/golden/arch/" + architecture;
    auto model = rig.Open(base + ".gguf", "m");
    kv::Sequence kv(&rig.manager(), nullptr, {}, {"m", "", tier::Kind::kKv},
                    model->kv_geometry().block_bytes());
    std::vector<int32_t> next = {1, 2, 3};
    for (int i = 0; i < kSteps; ++i) {
      const uint64_t before = fake->launch_calls;
      StepEntry entry{&kv, next, true};
      auto step = rig.engine().Step(*model, {&entry, 1}, nullptr);
      EXPECT_TRUE(step.ok()) << step.status();
      if (i > 0) run.calls.push_back(fake->launch_calls - before);
      next = {4 + i};
    }
    fake->run = nullptr;
    fake->parameters_of = nullptr;
  }
  for (const std::string& call : fake->order) run.captured += call == "cuStreamBeginCapture_v2";
  EXPECT_EQ(fake->Alive(), 0u);
  EXPECT_THAT(fake->violations, testing::IsEmpty());
  fake->executed.clear();
  run.lines = std::move(trace.lines);
  return run;
}

TEST(DecodeGraphTest, TheSameRunsInFewerCalls) {
  for (const char* architecture : {"llama", "qwen3", "gemma3"}) {
    SCOPED_TRACE(architecture);
    const Decoded without = Decode(false, architecture), with = Decode(true, architecture);
    EXPECT_EQ(without.captured, 0u);
    EXPECT_GT(with.captured, 0u);
    ASSERT_EQ(with.lines.size(), without.lines.size());
    for (size_t i = 0; i < with.lines.size(); ++i) {
      ASSERT_EQ(with.lines[i], without.lines[i]) << "launch " << i << ", " << with.lines[i].first;
    }
    // Positions went on: the tables were those of the step at hand.
    std::vector<uint64_t> positions;
    for (const auto& [name, line] : with.lines) {
      if (name == "attention" && line.size() > 0) positions.push_back(line.back());
    }
    EXPECT_EQ(positions.back(), positions.front() + kSteps + 1);
    std::printf("%s: %llu calls a decode step one by one, %llu with graphs\n", architecture,
                static_cast<unsigned long long>(without.calls.back()),
                static_cast<unsigned long long>(with.calls.back()));
    // The first decode step is new, the second is captured, all others replayed.
    EXPECT_EQ(with.calls[0], without.calls[0]);
    for (size_t i = 1; i < with.calls.size(); ++i) {
      EXPECT_LT(3 * with.calls[i], without.calls[i]) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace terrace::engine
