// Several threads do random things to one manager whose disk errs now and then; after each step
// every invariant holds, every pin shows its own bytes, and in the end nothing is left booked.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "testing.h"
#include "tier/parts.h"

namespace terrace::tier {
namespace {

constexpr int kModels = 4;
constexpr int kThreads = 4;
constexpr int kSteps = 150;

struct World {
  explicit World(uint64_t seed, bool sim) {
    Random random(seed);
    if (sim) {
      device::SimDeviceOptions options;
      options.memory_bytes = 24 * kMiB;
      options.before_copy = [this](device::CopyDirection) {
        return Roll(40) ? absl::UnavailableError("copy failed") : absl::OkStatus();
      };
      device = device::CreateSimDevice(options, &clock).value();
    } else {
      device = device::CreateCpuDevice();
    }
    TierManagerOptions options;
    options.device_budget_bytes = 20 * kMiB;
    options.pin_wait_us = 2'000;
    options.staging_bytes = 8 * kMiB;
    TierManagerParts parts;
    auto reader = std::make_unique<FaultyReader>(storage::DiskReader::Create({}).value());
    reader->before = [this](int, uint64_t) {
      return Roll(30) ? absl::UnavailableError("read failed") : absl::OkStatus();
    };
    reader->after = [this](int, std::span<std::byte> bytes) {
      if (Roll(20)) bytes[bytes.size() - 1] ^= std::byte{1};
    };
    parts.reader = std::move(reader);
    parts.checks = std::make_unique<os::WorkerPool>("check", 2);
    parts.producers = std::make_unique<os::WorkerPool>("import", 1);
    parts.policy = CreateEvictionPolicy("lru").value();
    faults = std::make_unique<Random>(seed + 1);
    manager = TierManager::CreateFromParts(options, device.get(), &clock, std::move(parts)).value();
    for (int m = 0; m < kModels; ++m) {
      std::vector<uint64_t> sizes;
      for (uint64_t i = 0; i < 3 + random.Below(6); ++i) {
        sizes.push_back(4096 * (1 + random.Below(600)));
      }
      const std::string name = "m" + std::to_string(m);
      auto source = std::make_shared<TestSource>(folder.path() + "/" + name, Hash64(name, seed),
                                                 sizes, 4096 * (1 + random.Below(200)));
      const uint64_t odd = random.Below(3);
      source->produces = [odd](uint32_t segment) { return odd == 0 && segment % 2 == 1; };
      ids.push_back(manager->Register(source->Spec(name, source, random.Below(2000))).value());
      sources.push_back(source);
      counts.push_back(static_cast<uint32_t>(sizes.size()));
    }
  }

  bool Roll(uint64_t one_in) {
    absl::MutexLock lock(&mutex);
    return faults->Below(one_in) == 0;
  }

  RealClock clock;
  TestFolder folder;
  absl::Mutex mutex;
  std::unique_ptr<Random> faults;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<TierManager> manager;
  std::vector<std::shared_ptr<TestSource>> sources;
  std::vector<ModelId> ids;
  std::vector<uint32_t> counts;
};

struct Held {
  Pin pin;
  size_t model;
  uint32_t segment;
};

void Act(World& world, uint64_t seed, std::atomic<int>* served) {
  Random random(seed);
  std::vector<Held> pins;
  std::vector<DeviceBuffer> buffers;
  for (int step = 0; step < kSteps; ++step) {
    const size_t m = random.Below(kModels);
    const auto segment = static_cast<uint32_t>(random.Below(world.counts[m]));
    const uint64_t action = random.Below(100);
    if (action < 55) {
      CancelFlag cancel;
      cancel.cancelled = random.Below(20) == 0;
      auto pin = world.manager->Acquire(world.ids[m], segment, Priority::kDemand, &cancel);
      if (pin.ok()) {
        ++*served;
        pins.push_back({*std::move(pin), m, segment});
      } else {
        const absl::StatusCode code = pin.status().code();
        ASSERT_TRUE(code == absl::StatusCode::kResourceExhausted ||
                    code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDataLoss ||
                    code == absl::StatusCode::kCancelled)
            << pin.status();
      }
    } else if (action < 75 && !pins.empty()) {
      pins.erase(pins.begin() + static_cast<long>(random.Below(pins.size())));
    } else if (action < 82) {
      auto buffer = world.manager->Allocate({"m", "t", Kind::kKv}, 1 + random.Below(3 * kMiB));
      if (buffer.ok()) {
        std::memset(buffer->data(), 0xee, buffer->bytes());
        buffers.push_back(*std::move(buffer));
      }
    } else if (action < 90) {
      if (!buffers.empty()) buffers.pop_back();
    } else if (action < 95) {
      world.manager->Prefetch(world.ids[m], segment, 3,
                              random.Below(2) == 0 ? Priority::kNextLayer : Priority::kPredicted);
    } else {
      world.manager->EvictModel(world.ids[m]);
    }
    while (pins.size() > 5) pins.erase(pins.begin());
    for (const Held& held : pins) {
      ASSERT_TRUE(HoldsSegment(world.sources[held.model]->seed(), held.segment, held.pin.data(),
                               held.pin.bytes()));
    }
    absl::Status invariants = world.manager->CheckInvariants();
    ASSERT_TRUE(invariants.ok()) << invariants;
  }
}

class PropertyTest : public testing::TestWithParam<bool> {};

TEST_P(PropertyTest, InvariantsHoldUnderRandomUse) {
  // TERRACE_SEED replays one seed.
  const char* given = std::getenv("TERRACE_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const uint64_t last = given != nullptr ? first : 6;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed, GetParam());
    std::atomic<int> served{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] { Act(world, seed * 100 + t, &served); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(served, kSteps / 4);  // errors are rare enough that most is served
    for (ModelId id : world.ids) EXPECT_TRUE(world.manager->Unregister(id).ok());
    EXPECT_EQ(world.manager->Snapshot().device_used_bytes, 0u);
    EXPECT_EQ(world.device->GetMemoryInfo().allocated_bytes, 0u);
    if (testing::Test::HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PropertyTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "sim" : "cpu"; });

}  // namespace
}  // namespace terrace::tier
