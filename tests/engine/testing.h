// A whole engine over the tiny golden models, for tests: device, backend, tier manager, opened
// model.
#ifndef TERRACE_TESTS_ENGINE_TESTING_H_
#define TERRACE_TESTS_ENGINE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/thread_team.h"
#include "device/opencl/opencl_device.h"
#include "device/sim/sim_device.h"
#include "engine/engine.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/opencl/kernel_backend.h"
#include "ops/ref/ref_backend.h"
#include "tier/parts.h"
#include "tier/tier_manager.h"
#include "weights/model_weights.h"

namespace terrace::engine {

// A golden model's expectations.
struct Golden {
  std::vector<int32_t> tokens;
  std::vector<int32_t> greedy;
  std::vector<double> greedy_margin;
  std::vector<float> logits;  // [tokens, vocab]
  int32_t vocab = 0;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

// `base` without its extension, e.g. ".../arch/llama".
inline Golden ReadGolden(const std::string& base) {
  Golden golden;
  boost::json::value json = boost::json::parse(ReadFile(base + ".json"));
  golden.tokens = boost::json::value_to<std::vector<int32_t>>(json.at("tokens"));
  golden.greedy = boost::json::value_to<std::vector<int32_t>>(json.at("greedy"));
  golden.greedy_margin = boost::json::value_to<std::vector<double>>(json.at("greedy_margin"));
  golden.vocab = json.at("vocab_size").to_number<int32_t>();
  std::string raw = ReadFile(base + ".logits.f32");
  golden.logits.resize(raw.size() / sizeof(float));
  std::memcpy(golden.logits.data(), raw.data(), golden.logits.size() * sizeof(float));
  EXPECT_EQ(golden.logits.size(), golden.tokens.size() * static_cast<size_t>(golden.vocab));
  return golden;
}

// A folder that is gone when the test ends.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Whether this machine has an OpenCL device.
inline bool HaveOpenCl() {
  const auto found = device::ListOpenClDevices();
  return found.ok() && !found->empty();
}

// One for the whole program, so that kernels are compiled once. Its memory lies in several buffers.
inline device::Device* SharedOpenCl() {
  static const std::unique_ptr<device::Device> shared = [] {
    device::OpenClOptions options;
    options.memory_bytes = 256 * kMiB;
    options.buffer_bytes = 64 * kMiB;
    auto made = device::CreateOpenClDevice(options);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }();
  return shared.get();
}

// The largest difference of two sets of logits, rows of `cols`, when the `flips` rows that differ
// most are left out: where a router's choice is close, rounding may send a token to another expert,
// whose answer is another.
inline double WorstError(std::span<const float> got, std::span<const float> want, size_t cols,
                         size_t flips = 0) {
  std::vector<double> worst(want.size() / cols);
  for (size_t i = 0; i < want.size(); ++i) {
    worst[i / cols] = std::max(worst[i / cols], std::abs(double{got[i]} - want[i]));
  }
  std::sort(worst.begin(), worst.end());
  return worst[worst.size() - 1 - std::min(flips, worst.size() - 1)];
}

class Rig {
 public:
  // `variant` "ref", the name of a CPU variant, or a device with memory of its own: "opencl" (see
  // HaveOpenCl), or "sim" with the best CPU variant. `deterministic`: a row's result does not
  // depend on how many others are computed with it, as tests need that compare batches exactly.
  // `freed`: see tier::TierManagerOptions.
  Rig(const std::string& variant, uint64_t budget_bytes, int threads = 2,
      bool deterministic = false, std::function<void(const std::byte*)> freed = nullptr)
      : freed_(std::move(freed)), team_(threads), cpu_(device::CreateCpuDevice()) {
    device::Device* device = cpu_.get();
    if (variant == "opencl") {
      device = SharedOpenCl();
      auto backend = ops::CreateKernelBackend(device);
      EXPECT_TRUE(backend.ok()) << backend.status();
      backend_ = *std::move(backend);
    } else if (variant == "sim") {
      device::SimDeviceOptions options;
      options.memory_bytes = 256 * kMiB;
      options.to_device = options.to_host = {8e9, 10};
      cpu_ = device::CreateSimDevice(options, &clock_).value();
      device = cpu_.get();
      ops::CpuOptions cpu;
      cpu.deterministic = deterministic;
      backend_ = ops::CreateCpuBackend(ops::BestCpuVariant(), &team_, cpu).value();
    } else if (variant == "ref") {
      backend_ = ops::CreateRefBackend(&team_);
    } else {
      auto backend = ops::CreateCpuBackend(variant, &team_, {.deterministic = deterministic});
      EXPECT_TRUE(backend.ok()) << backend.status();
      backend_ = *std::move(backend);
    }
    Begin(device, budget_bytes);
  }

  // On `device`, by `backend` for it; with `parts` of the manager's, reads run one at a time.
  Rig(std::unique_ptr<device::Device> device, std::unique_ptr<ops::Backend> backend,
      uint64_t budget_bytes, tier::TierManagerParts parts = {})
      : team_(1), cpu_(std::move(device)), backend_(std::move(backend)) {
    Begin(cpu_.get(), budget_bytes, std::move(parts));
  }

  // `more`: options of the engine model beside its name; `open`: of its weights.
  std::shared_ptr<EngineModel> Open(const std::string& path, const std::string& name,
                                    bool write_image = false, EngineModelOptions more = {},
                                    weights::OpenOptions options = {}) {
    options.name = name;
    options.source_path = path;
    options.image_folder = images_.path();
    options.write_image = write_image;
    auto weights = weights::ModelWeights::Open(options, backend_.get(), manager_.get());
    EXPECT_TRUE(weights.ok()) << weights.status();
    if (!weights.ok()) return nullptr;
    more.name = name;
    auto model = EngineModel::Create(std::move(more), *std::move(weights));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *model : nullptr;
  }

  Engine& engine() { return *engine_; }
  tier::TierManager& manager() { return *manager_; }
  ops::Backend& backend() { return *backend_; }
  const Clock& clock() const { return clock_; }

 private:
  void Begin(device::Device* device, uint64_t budget_bytes, tier::TierManagerParts parts = {}) {
    tier::TierManagerOptions options;
    options.device_budget_bytes = budget_bytes;
    options.freed = freed_;
    const bool given = parts.reader != nullptr;
    if (given) options.read_depth = 1;
    auto manager =
        given ? tier::TierManager::CreateFromParts(options, device, &clock_, std::move(parts))
              : tier::TierManager::Create(options, device, &clock_);
    EXPECT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
    engine_ = std::make_unique<Engine>(backend_.get(), manager_.get(), &clock_);
  }

  TempFolder images_;
  const std::function<void(const std::byte*)> freed_;
  RealClock clock_;
  ThreadTeam team_;
  std::unique_ptr<device::Device> cpu_;  // or the one that was given
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<tier::TierManager> manager_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace terrace::engine

#endif  // TERRACE_TESTS_ENGINE_TESTING_H_
