// The fixture of the tier manager's tests: one manager over a disk that can err, on either kind of
// device.
#ifndef TERRACE_TESTS_TIER_MANAGER_FIXTURE_H_
#define TERRACE_TESTS_TIER_MANAGER_FIXTURE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "testing.h"
#include "tier/parts.h"
#include "tier/tier_manager.h"

namespace terrace::tier {

class TierManagerTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "cpu") {
      device_ = device::CreateCpuDevice();
    } else {
      device::SimDeviceOptions options;
      options.memory_bytes = 256 * kMiB;
      options.to_device = {8e9, 10};
      options.before_copy = [this](device::CopyDirection) {
        return copy_fault_ != nullptr ? copy_fault_() : absl::OkStatus();
      };
      options.after_copy = [this](device::CopyDirection direction, std::span<std::byte> bytes) {
        if (spoil_copy_ != nullptr && direction == device::CopyDirection::kHostToDevice) {
          spoil_copy_(bytes);
        }
      };
      device_ = device::CreateSimDevice(options, &clock_).value();
    }
  }
  void TearDown() override {
    if (manager_ != nullptr) {
      EXPECT_TRUE(manager_->CheckInvariants().ok()) << manager_->CheckInvariants();
    }
    manager_.reset();
    EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
  }

  void Start(uint64_t budget, int64_t pin_wait_us = 20'000) {
    options_.device_budget_bytes = budget;
    options_.pin_wait_us = pin_wait_us;
    options_.staging_bytes = 16 * kMiB;
    TierManagerParts parts;
    auto reader = std::make_unique<FaultyReader>(storage::DiskReader::Create({}).value());
    reader_ = reader.get();
    parts.reader = std::move(reader);
    parts.checks = std::make_unique<os::WorkerPool>("check", 2);
    parts.producers = std::make_unique<os::WorkerPool>("import", 1);
    parts.policy = CreateEvictionPolicy("lru").value();
    manager_ =
        TierManager::CreateFromParts(options_, device_.get(), Clock(), std::move(parts)).value();
  }
  const terrace::Clock* Clock() const { return &manual_; }

  std::shared_ptr<TestSource> MakeSource(const std::string& name, std::vector<uint64_t> sizes,
                                         uint64_t block = kMaxBlockBytes) {
    return std::make_shared<TestSource>(folder_.path() + "/" + name, Hash64(name), std::move(sizes),
                                        block);
  }
  ModelId Add(const std::string& name, std::shared_ptr<TestSource> source,
              int64_t hot_keep_us = 0) {
    return manager_->Register(source->Spec(name, source, hot_keep_us)).value();
  }
  ModelState State(ModelId id) { return manager_->Snapshot().models[id - 1]; }
  std::vector<bool> Resident(ModelId id) {
    std::vector<bool> resident;
    for (const SegmentState& segment : State(id).segments) resident.push_back(segment.resident);
    return resident;
  }
  absl::StatusOr<Pin> Acquire(ModelId id, uint32_t segment, const CancelFlag* cancel = nullptr) {
    manual_.AdvanceUs(1);
    return manager_->Acquire(id, segment, Priority::kDemand, cancel);
  }
  // Runs through the model as an engine would; true if every segment held its own bytes.
  bool Pass(ModelId id, const TestSource& source) {
    const size_t count = State(id).segments.size();
    for (uint32_t i = 0; i < count; ++i) {
      absl::StatusOr<Pin> pin = Acquire(id, i);
      if (!pin.ok() || !HoldsSegment(source.seed(), i, pin->data(), pin->bytes())) {
        ADD_FAILURE() << "segment " << i << ": " << pin.status();
        return false;
      }
    }
    return true;
  }
  void Settle() {  // until nothing is being loaded
    for (int i = 0; i < 5000; ++i) {
      bool loading = false;
      for (const ModelState& model : manager_->Snapshot().models) {
        for (const SegmentState& segment : model.segments) loading = loading || segment.loading;
      }
      if (!loading) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FAIL() << "a load does not end";
  }

  RealClock clock_;
  ManualClock manual_{1'000'000};
  TestFolder folder_;
  std::function<absl::Status()> copy_fault_;
  std::function<void(std::span<std::byte>)> spoil_copy_;
  std::unique_ptr<device::Device> device_;
  TierManagerOptions options_;
  FaultyReader* reader_ = nullptr;
  std::unique_ptr<TierManager> manager_;
};

}  // namespace terrace::tier

#endif  // TERRACE_TESTS_TIER_MANAGER_FIXTURE_H_
