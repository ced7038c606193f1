// On an Ascend NPU, over a stand-in for its runtime, weights of later layers arrive while an
// earlier one computes, from host memory that is pinned, into pages of the policy that prefers huge
// ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "engine/vendor_rig.h"

namespace terrace::engine {
namespace {

TEST(AscendPrefetchTest, LaterLayersArriveWhileTheFirstComputes) {
  device::VendorFake* fake = device::FakeOf("ascend");
  fake->violations.clear();
  ThreadTeam team(1);
  uint64_t arrived = 0, weights = 0;
  {
    const auto rig = MakeRig("ascend", 64 * kMiB, &team);
    // The staging ring.
    EXPECT_GE(fake->pinned.size(), 1u);
    auto model = rig->Open(std::string(TERRACE_TEST_DATA) + "/golden/arch/llama.gguf", "m");
    ASSERT_NE(model, nullptr);
    for (const auto& segment : model->weights().segments()) weights += segment.bytes;
    const uint64_t before = fake->copied[0];
    bool first = true;
    // The first product does not end before everything has arrived, or 20 s have passed.
    fake->before_operator = [&](const char* name) {
      if (!first || std::string(name) != "aclnnMatmul") return;
      first = false;
      for (int i = 0; i < 2000; ++i) {
        {
          const std::lock_guard<std::recursive_mutex> lock(fake->mutex);
          arrived = fake->copied[0] - before;
        }
        if (arrived >= weights) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    };
    kv::Sequence kv(&rig->manager(), nullptr, {}, {"m", "", tier::Kind::kKv},
                    model->kv_geometry().block_bytes());
    const std::vector<int32_t> tokens = {1, 2, 3};
    StepEntry entry{&kv, tokens, true};
    const auto step = rig->engine().Step(*model, {&entry, 1}, nullptr);
    EXPECT_TRUE(step.ok()) << step.status();
    EXPECT_FALSE(first);
    fake->before_operator = nullptr;
  }
  EXPECT_GT(weights, 0u);
  EXPECT_GE(arrived, weights);
  EXPECT_THAT(fake->violations, testing::IsEmpty());
  EXPECT_EQ(fake->Alive(), 0u);
}

}  // namespace
}  // namespace terrace::engine
