// How long a switch to a large model takes in simulated time: the real tier manager, a host tier
// that holds all weights, and a link of set speed on a manual clock. Bytes are a 256th of the
// model's and so is the link's speed; blocks, copies and their latency are as many and as long as
// they would be.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/units.h"
#include "device/sim/sim_device.h"
#include "os/direct_file.h"
#include "sim_parts.h"
#include "tier/parts.h"
#include "tier/tier_manager.h"

namespace terrace::sim {
namespace {

constexpr uint64_t kScale = 256;
constexpr double kLinkBytesPerS = 32e9;
constexpr int64_t kLatencyUs = 10;

// A decoder of 14 billion weights in 16 bits: 28 GB in an embedding, 40 layers of an attention and
// an FFN segment each, and a head.
std::vector<uint64_t> SegmentBytes() {
  const auto scaled = [](double bytes) {
    return AlignUp(static_cast<uint64_t>(bytes) / kScale, tier::kBlockAlignment);
  };
  std::vector<uint64_t> sizes = {scaled(1.5e9)};
  for (int i = 0; i < 40; ++i) sizes.insert(sizes.end(), {scaled(0.135e9), scaled(0.49e9)});
  sizes.push_back(scaled(1.5e9));
  return sizes;
}

class Source final : public tier::SegmentSource {
 public:
  explicit Source(const std::vector<uint64_t>& sizes) {
    char name[] = "/tmp/terrace-switch-XXXXXX";
    const int fd = ::mkstemp(name);
    if (fd >= 0) ::close(fd);
    file_ = os::DirectFile::OpenForRead(name).value();
    ::unlink(name);
    constexpr uint64_t kBlock = tier::kMaxBlockBytes / kScale;
    for (uint64_t bytes : sizes) {
      const uint64_t start = image_.size();
      image_.resize(start + bytes, static_cast<std::byte>(blocks_.size() + 1));
      std::vector<tier::DiskBlock>& blocks = blocks_.emplace_back();
      for (uint64_t at = 0; at < bytes; at += kBlock) {
        const uint64_t size = std::min(kBlock, bytes - at);
        blocks.push_back(
            {start + at, static_cast<uint32_t>(size), Hash64(image_.data() + start + at, size)});
      }
    }
  }

  OnDisk Locate(uint32_t segment) const override { return {file_.get(), blocks_[segment]}; }
  absl::Status Produce(uint32_t, std::span<std::byte>, const tier::CancelFlag*) override {
    return absl::UnimplementedError("the image is complete");
  }
  const os::DirectFile* file() const { return file_.get(); }
  const std::vector<std::byte>* image() const { return &image_; }

 private:
  std::unique_ptr<os::DirectFile> file_;
  std::vector<std::byte> image_;
  std::vector<std::vector<tier::DiskBlock>> blocks_;
};

// Moves on when told: nothing takes time but the link, the disk and what the test says.
class SwitchTest : public testing::Test {
 protected:
  void SetUp() override {
    for (uint64_t bytes : sizes_) bytes_ += bytes;
    device::SimDeviceOptions device;
    device.memory_bytes = bytes_ + bytes_ / 100;  // one model, hardly more
    device.to_device = {kLinkBytesPerS / kScale, kLatencyUs};
    device.stepped = true;
    device_ = device::CreateSimDevice(device, &clock_).value();
    tier::TierManagerOptions options;
    options.device_budget_bytes = device.memory_bytes;
    options.staging_bytes = 4 * tier::kMaxBlockBytes;
    options.host_budget_bytes = options.staging_bytes + 2 * bytes_ + 64 * kMiB;
    tier::TierManagerParts parts;
    auto reader = std::make_unique<StepReader>(&clock_, &random_, &weather_);
    auto checks = std::make_unique<StepExecutor>();
    auto producers = std::make_unique<StepExecutor>();
    reader_ = reader.get();
    executors_ = {checks.get(), producers.get()};
    parts.reader = std::move(reader);
    parts.checks = std::move(checks);
    parts.producers = std::move(producers);
    parts.policy = tier::CreateEvictionPolicy("cost").value();
    parts.step = [this] { Step(); };
    manager_ = tier::TierManager::CreateFromParts(options, device_.get(), &clock_, std::move(parts))
                   .value();
  }
  void TearDown() override {
    EXPECT_TRUE(manager_->CheckInvariants().ok()) << manager_->CheckInvariants();
    manager_.reset();
    EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
  }

  void Step() {
    for (StepExecutor* executor : executors_) {
      if (!executor->empty()) return executor->Step(0);
    }
    if (reader_->Step() || device_->Step()) return;
    clock_.AdvanceUs(1);
  }

  tier::ModelId Add(const std::string& name) {
    auto source = std::make_shared<Source>(sizes_);
    reader_->SetImage(source->file(), source->image());
    tier::ModelSpec spec;
    spec.name = name;
    for (uint64_t bytes : sizes_) {
      spec.segments.push_back({"s" + std::to_string(spec.segments.size()), bytes});
    }
    spec.source = std::move(source);
    return manager_->Register(std::move(spec)).value();
  }

  // A pass: each segment is computed with for its share of `compute_us` while later ones move.
  // Returns the simulated time that it takes.
  int64_t Pass(tier::ModelId model, int64_t compute_us) {
    const int64_t start_us = clock_.NowUs();
    const auto count = static_cast<uint32_t>(sizes_.size());
    manager_->Prefetch(model, 0, count, tier::Priority::kNextLayer);
    for (uint32_t i = 0; i < count; ++i) {
      auto pin = manager_->Acquire(model, i, tier::Priority::kDemand, nullptr);
      EXPECT_TRUE(pin.ok()) << pin.status();
      if (!pin.ok()) break;
      const int64_t until_us = clock_.NowUs() + compute_us / static_cast<int64_t>(count);
      while (clock_.NowUs() < until_us) Step();
    }
    return clock_.NowUs() - start_us;
  }

  uint64_t Moved() { return device_->ReadTelemetry().value().copied_to_device_bytes; }

  const std::vector<uint64_t> sizes_ = SegmentBytes();
  uint64_t bytes_ = 0;
  ManualClock clock_;
  Random random_{14};
  Weather weather_;
  StepReader* reader_ = nullptr;
  std::vector<StepExecutor*> executors_;
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<tier::TierManager> manager_;
};

TEST_F(SwitchTest, TwentyEightGigabytesComeOverTheLinkInUnderASecondBesideComputing) {
  ASSERT_NEAR(static_cast<double>(bytes_ * kScale), 28e9, 0.1e9);
  const tier::ModelId first = Add("first"), second = Add("second");
  // Both leave copies on the host.
  Pass(first, 0);
  Pass(second, 0);
  for (const int64_t compute_us : {int64_t{0}, int64_t{400'000}}) {
    for (const tier::ModelId model : {first, second}) {
      const uint64_t before = Moved();
      const int64_t took_us = Pass(model, compute_us);
      const uint64_t moved = Moved() - before;
      const double link_us = static_cast<double>(moved * kScale) / kLinkBytesPerS * 1e6;
      EXPECT_GT(moved, bytes_ / 100 * 97);
      std::printf("28 GB over 32 GB/s beside %.1f s of computing: %.3f s, the link alone %.3f s\n",
                  static_cast<double>(compute_us) / 1e6, static_cast<double>(took_us) / 1e6,
                  link_us / 1e6);
      EXPECT_LT(took_us, 1'000'000);
      EXPECT_LE(static_cast<double>(took_us),
                1.10 * std::max(link_us, static_cast<double>(compute_us)));
      EXPECT_GE(static_cast<double>(took_us), link_us) << "nothing is faster than its link";
    }
  }
}

}  // namespace
}  // namespace terrace::sim
