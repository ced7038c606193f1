#include "sim_world.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "os/direct_file.h"
#include "sim_parts.h"
#include "tier/parts.h"
#include "tier/tier_manager.h"

namespace terrace::sim {
namespace {

using tier::CancelFlag;
using tier::DeviceBuffer;
using tier::ModelId;
using tier::Pin;
using tier::Priority;

// Callers that may be under way inside each other: what concurrent threads are to the manager.
constexpr int kMostNested = 4;
// Far more than any call needs; a call that takes more does not end.
constexpr uint64_t kMostStepsACall = 300'000;

class SimSource final : public tier::SegmentSource {
 public:
  SimSource(Random* random, const Weather* weather, uint64_t seed)
      : random_(random), weather_(weather) {
    char name[] = "/tmp/terrace-sim-XXXXXX";
    const int fd = ::mkstemp(name);
    if (fd >= 0) ::close(fd);
    file_ = os::DirectFile::OpenForRead(name).value();
    ::unlink(name);
    Random content(seed);
    const uint64_t segments = 2 + random->Below(9);
    for (uint64_t i = 0; i < segments; ++i) {
      const uint64_t bytes = 4096 * (1 + random->Below(random->Below(4) == 0 ? 16 : 5));
      const uint64_t block = 4096 * (1 + random->Below(4));
      const uint64_t start = image_.size();
      for (uint64_t at = 0; at < bytes; at += 8) {
        const uint64_t word = content.Next();
        const auto* raw = reinterpret_cast<const std::byte*>(&word);
        image_.insert(image_.end(), raw, raw + 8);
      }
      std::vector<tier::DiskBlock> blocks;
      for (uint64_t at = 0; at < bytes; at += block) {
        const uint64_t size = std::min(block, bytes - at);
        blocks.push_back(
            {start + at, static_cast<uint32_t>(size), Hash64(image_.data() + start + at, size)});
      }
      sums_.push_back(Hash64(image_.data() + start, bytes));
      starts_.push_back(start);
      sizes_.push_back(bytes);
      blocks_.push_back(std::move(blocks));
    }
    // Some images are still being written when their model is first used.
    if (random->Below(3) == 0)
      written_ = random->Below(segments + 1);
    else
      written_ = segments;
    good_image_ = image_;
  }

  OnDisk Locate(uint32_t segment) const override {
    if (segment >= written_) return {};
    return {file_.get(), blocks_[segment]};
  }
  absl::Status Produce(uint32_t segment, std::span<std::byte> out,
                       const CancelFlag* cancel) override {
    if (cancel->cancelled) return absl::CancelledError("told to stop");
    if (weather_->produce_error != 0 && random_->Below(weather_->produce_error) == 0) {
      return absl::UnavailableError("simulated source error");
    }
    std::memcpy(out.data(), good_image_.data() + starts_[segment], out.size());
    if (segment < written_ && random_->Below(2) == 0) {  // the disk takes it back, or not
      std::memcpy(image_.data() + starts_[segment], out.data(), out.size());
    }
    if (written_ < sizes_.size() && random_->Below(2) == 0) ++written_;
    return absl::OkStatus();
  }

  bool Right(uint32_t segment, std::span<const std::byte> bytes) const {
    return bytes.size() == sizes_[segment] && Hash64(bytes.data(), bytes.size()) == sums_[segment];
  }
  // A byte on the disk goes bad, or all are well again.
  void Rot() { image_[random_->Below(image_.size())] ^= std::byte{0x10}; }
  void Repair() { image_ = good_image_; }

  const os::DirectFile* file() const { return file_.get(); }
  const std::vector<std::byte>* image() const { return &image_; }
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 private:
  Random* random_;
  const Weather* weather_;
  std::unique_ptr<os::DirectFile> file_;
  std::vector<std::byte> image_;
  std::vector<std::byte> good_image_;
  std::vector<uint64_t> sums_, starts_, sizes_;
  std::vector<std::vector<tier::DiskBlock>> blocks_;
  uint64_t written_ = 0;
};

struct SimModel {
  ModelId id = 0;
  std::shared_ptr<SimSource> source;
  std::vector<bool> experts;  // by segment
};

struct HeldPin {
  Pin pin;
  std::shared_ptr<SimSource> source;
  uint32_t segment = 0;
};

struct HeldBuffer {
  DeviceBuffer buffer;
  std::byte mark{};
};

class World {
 public:
  explicit World(const SimOptions& options) : options_(options), random_(options.seed) {
    MakeDevice();
    MakeManager();
    const uint64_t models = 2 + random_.Below(5);
    for (uint64_t i = 0; i < models; ++i) models_.push_back(AddModel());
  }

  SimReport Run() {
    for (int i = 0; i < options_.operations && Ok(); ++i) {
      Operate();
      for (uint64_t j = random_.Below(20); j > 0 && Ok(); --j) Step();
    }
    if (Ok()) End();
    report_.faults += reader_->faults();
    Destroy();
    return report_;
  }

 private:
  bool Ok() const { return report_.failure.empty(); }
  void Fail(std::string failure) {
    if (Ok()) report_.failure = std::move(failure);
  }

  void MakeDevice() {
    if (random_.Below(2) == 0) {
      device_ = device::CreateCpuDevice();
      return;
    }
    device::SimDeviceOptions options;
    options.memory_bytes = 4096 * (40 + random_.Below(60));
    options.to_device = {1e6 * static_cast<double>(200 + random_.Below(2000)), 5};
    options.stepped = true;
    options.before_copy = [this](device::CopyDirection) {
      if (weather_.copy_error == 0 || random_.Below(weather_.copy_error) != 0) {
        return absl::OkStatus();
      }
      ++report_.faults;
      return absl::UnavailableError("simulated copy error");
    };
    auto stepped = device::CreateSimDevice(options, &clock_).value();
    stepped_device_ = stepped.get();
    device_ = std::move(stepped);
  }

  void MakeManager() {
    tier::TierManagerOptions options;
    options.device_budget_bytes = 4096 * (30 + random_.Below(60));
    options.read_depth = static_cast<uint32_t>(1 + random_.Below(8));
    options.staging_bytes = tier::kMaxBlockBytes * (1 + random_.Below(3));
    options.pin_wait_us = 20'000;
    if (random_.Below(2) == 0) options.expert_upload_bytes = 4096 * random_.Below(20);
    options.strict_check = random_.Below(4) == 0;
    if (random_.Below(3) == 0) options.decode_slowdown = 0;
    if (random_.Below(3) > 0) {
      options.host_budget_bytes = options.staging_bytes + 4096 * (20 + random_.Below(100));
    }
    budget_ = options.device_budget_bytes;
    tier::TierManagerParts parts;
    auto reader = std::make_unique<StepReader>(&clock_, &random_, &weather_);
    auto checks = std::make_unique<StepExecutor>();
    auto producers = std::make_unique<StepExecutor>();
    reader_ = reader.get();
    checks_ = checks.get();
    producers_ = producers.get();
    parts.reader = std::move(reader);
    parts.checks = std::move(checks);
    parts.producers = std::move(producers);
    static constexpr const char* kPolicies[] = {"lru", "lru-k", "lfu", "cost"};
    parts.policy = tier::CreateEvictionPolicy(kPolicies[random_.Below(4)]).value();
    parts.step = [this] { Step(); };
    manager_ = tier::TierManager::CreateFromParts(options, device_.get(), &clock_, std::move(parts))
                   .value();
  }

  SimModel AddModel() {
    SimModel model;
    const uint64_t number = ++models_made_;
    model.source = std::make_shared<SimSource>(&random_, &weather_, options_.seed * 1000 + number);
    reader_->SetImage(model.source->file(), model.source->image());
    tier::ModelSpec spec;
    spec.name = fmt::format("model-{}", number);
    spec.tenant = fmt::format("tenant-{}", number % 2);
    spec.hot_keep_us = static_cast<int64_t>(random_.Below(2) * random_.Below(100'000));
    // Some have experts: a run in the middle of which a pass uses some.
    const bool experts = random_.Below(3) == 0;
    const size_t last = model.source->sizes().size() - 1;
    for (uint64_t bytes : model.source->sizes()) {
      const size_t at = spec.segments.size();
      model.experts.push_back(experts && at > 0 && at < last && random_.Below(3) > 0);
      spec.segments.push_back({fmt::format("s{}", at), bytes, model.experts.back()});
    }
    spec.source = model.source;
    auto id = manager_->Register(std::move(spec));
    if (!id.ok()) Fail(fmt::format("register: {}", Message(id.status())));
    model.id = id.value_or(0);
    return model;
  }

  // One small move of the world: a completion, a task, a copy, or time.
  void Step() {
    ++report_.steps;
    if (++steps_in_call_ > kMostStepsACall) {
      Fail("a call does not end");
      std::fprintf(stderr, "seed %llu: a call does not end\n",
                   static_cast<unsigned long long>(options_.seed));
      std::abort();  // there is no way out of a call that does not end
    }
    if (nested_ < kMostNested && !ending_ && Ok() && random_.Below(40) == 0) {
      Operate();
      return;
    }
    Move();
    Check(report_.steps % 16 == 0);
  }

  void Move() {
    const uint64_t first = random_.Below(4);
    for (uint64_t i = 0; i < 4; ++i) {
      switch ((first + i) % 4) {
        case 0:
          if (checks_->empty()) break;
          checks_->Step(random_.Below(checks_->size()));
          return;
        case 1:
          if (producers_->empty()) break;
          producers_->Step(0);
          return;
        case 2:
          if (reader_->Step()) return;
          break;
        case 3:
          if (stepped_device_ != nullptr && stepped_device_->Step()) return;
          break;
      }
    }
    clock_.AdvanceUs(static_cast<int64_t>(1 + random_.Below(200)));
  }

  void Check(bool contents) {
    if (!Ok()) return;
    absl::Status status = manager_->CheckInvariants();
    if (!status.ok()) {
      Fail(fmt::format("invariant: {}", Message(status)));
      return;
    }
    const uint64_t allocated = device_->GetMemoryInfo().allocated_bytes;
    const tier::TierSnapshot snapshot = manager_->Snapshot();
    const uint64_t booked = snapshot.device_used_bytes;
    if (snapshot.host_budget_bytes != 0 && snapshot.host_used_bytes > snapshot.host_budget_bytes) {
      Fail("the host budget is exceeded");
      return;
    }
    if (allocated != booked || booked > budget_) {
      Fail(fmt::format("device holds {} bytes, {} are booked of {}", allocated, booked, budget_));
      return;
    }
    if (!contents) return;
    for (const HeldPin& held : pins_) {
      if (!held.source->Right(held.segment, {held.pin.data(), held.pin.bytes()})) {
        Fail("a pinned segment changed");
        return;
      }
    }
    for (const HeldBuffer& held : buffers_) {
      for (uint64_t i = 0; i < held.buffer.bytes(); ++i) {
        if (held.buffer.data()[i] != held.mark) {
          Fail("a buffer was written by somebody else");
          return;
        }
      }
    }
    manager_->VisitResident([&](ModelId id, uint32_t segment, std::span<const std::byte> bytes) {
      for (const SimModel& model : models_) {
        if (model.id == id && !model.source->Right(segment, bytes)) {
          Fail(fmt::format("segment {} of model {} is published with wrong bytes", segment, id));
        }
      }
    });
  }

  void Operate() {
    ++nested_;
    const uint64_t outer_steps = steps_in_call_;
    steps_in_call_ = 0;
    const size_t which = Zipf();
    switch (random_.Below(17)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        Pass(which);
        break;
      case 5:
      case 6:
        Hold(which);
        break;
      case 7:
      case 8:
        if (!pins_.empty()) TakeOut(pins_);
        break;
      case 9:
      case 10:
        AllocateKv();
        break;
      case 11:
        if (!buffers_.empty()) TakeOut(buffers_);
        break;
      case 12:
        manager_->Prefetch(models_[which].id, static_cast<uint32_t>(random_.Below(4)), 3,
                           static_cast<Priority>(random_.Below(5)));
        break;
      case 13:
        if (random_.Below(3) == 0) {
          manager_->Lease(models_[which].id,
                          clock_.NowUs() + static_cast<int64_t>(random_.Below(5000)));
        } else {
          manager_->EvictModel(models_[which].id);
        }
        break;
      case 14:
        Replace(which);
        break;
      case 15:
        ChangeWeather();
        break;
      case 16:
        Compute(which);
        break;
    }
    Check(true);
    steps_in_call_ = outer_steps;
    --nested_;
  }

  // Streams of a model decode for some steps while the world goes on, and pause at times.
  void Compute(size_t which) {
    for (uint64_t left = 1 + random_.Below(20); left > 0 && Ok(); --left) {
      manager_->StepBegins({.model = models_[which % models_.size()].id,
                            .rows = static_cast<int32_t>(random_.Below(3)),
                            .gives_way = random_.Below(20) == 0});
      const int64_t began_us = clock_.NowUs();
      for (uint64_t i = random_.Below(8); i > 0; --i) Step();
      manager_->StepEnds(random_.Below(20) == 0 ? 0 : clock_.NowUs() - began_us);
    }
    if (random_.Below(2) == 0) manager_->StepsPause();
  }

  size_t Zipf() {
    double total = 0;
    for (size_t i = 0; i < models_.size(); ++i) total += 1.0 / static_cast<double>(i + 1);
    double at = random_.Uniform() * total;
    for (size_t i = 0; i < models_.size(); ++i) {
      at -= 1.0 / static_cast<double>(i + 1);
      if (at < 0) return i;
    }
    return models_.size() - 1;
  }

  template <typename T>
  void TakeOut(std::vector<T>& from) {
    const size_t which = random_.Below(from.size());
    T gone = std::move(from[which]);
    from.erase(from.begin() + static_cast<long>(which));
  }

  std::optional<HeldPin> TryAcquire(const SimModel& model, uint32_t segment) {
    // A flag that is set while the call waits: some later step sets it.
    CancelFlag cancel;
    cancel.cancelled = random_.Below(60) == 0;
    auto pin = manager_->Acquire(model.id, segment, Priority::kDemand, &cancel);
    if (!pin.ok()) {
      ++report_.refused;
      switch (pin.status().code()) {
        case absl::StatusCode::kUnavailable:
        case absl::StatusCode::kDataLoss:
        case absl::StatusCode::kResourceExhausted:
        case absl::StatusCode::kCancelled:
        case absl::StatusCode::kNotFound:
          break;
        default:
          Fail(fmt::format("acquire: {}", pin.status().ToString()));
      }
      return std::nullopt;
    }
    ++report_.served;
    if (!model.source->Right(segment, {pin->data(), pin->bytes()})) {
      Fail(fmt::format("segment {} was served with wrong bytes", segment));
    }
    return HeldPin{*std::move(pin), model.source, segment};
  }

  void Pass(size_t which) {
    const SimModel model = models_[which];
    std::optional<HeldPin> last;
    for (uint32_t i = 0; i < model.source->sizes().size() && Ok(); ++i) {
      if (model.experts[i]) {
        if (random_.Below(2) == 0) continue;
        if (random_.Below(2) == 0) manager_->Prefetch(model.id, i, 1, Priority::kNextLayer);
      }
      std::optional<HeldPin> next = TryAcquire(model, i);
      if (!next.has_value()) return;
      last = std::move(next);
      for (uint64_t j = random_.Below(4); j > 0; --j) Step();  // the layer computes
    }
  }

  void Hold(size_t which) {
    const SimModel model = models_[which];
    auto segment = static_cast<uint32_t>(random_.Below(model.source->sizes().size()));
    std::optional<HeldPin> held = TryAcquire(model, segment);
    if (held.has_value()) pins_.push_back(*std::move(held));
    while (pins_.size() > 3) TakeOut(pins_);
  }

  void AllocateKv() {
    auto buffer = manager_->Allocate({"model-1", "tenant-1", tier::Kind::kKv},
                                     1 + random_.Below(budget_ / 3));
    if (!buffer.ok()) {
      if (buffer.status().code() != absl::StatusCode::kResourceExhausted) {
        Fail(fmt::format("allocate: {}", buffer.status().ToString()));
      }
      return;
    }
    HeldBuffer held{*std::move(buffer), static_cast<std::byte>(random_.Below(256))};
    std::fill_n(held.buffer.data(), held.buffer.bytes(), held.mark);
    buffers_.push_back(std::move(held));
    while (buffers_.size() > 3) TakeOut(buffers_);
  }

  void Replace(size_t which) {
    const SimModel old = models_[which];
    absl::Status status = manager_->Unregister(old.id);
    if (!status.ok()) {
      if (status.code() != absl::StatusCode::kFailedPrecondition &&
          status.code() != absl::StatusCode::kNotFound) {
        Fail(fmt::format("unregister: {}", status.ToString()));
      }
      return;
    }
    SimModel fresh = AddModel();
    for (SimModel& model : models_) {
      if (model.id == old.id) model = fresh;
    }
  }

  void ChangeWeather() {
    auto maybe = [&](uint64_t one_in) { return random_.Below(2) * (1 + random_.Below(one_in)); };
    weather_ = Weather{};
    if (random_.Below(3) > 0) {
      weather_.read_error = maybe(60);
      weather_.short_read = maybe(60);
      weather_.spoiled_read = maybe(30);
      weather_.copy_error = maybe(40);
      weather_.produce_error = maybe(20);
      weather_.stall = maybe(50);
      weather_.disk_bytes_per_us = 10 + static_cast<double>(random_.Below(3000));
    }
    SimSource& source = *models_[random_.Below(models_.size())].source;
    if (random_.Below(3) == 0) {
      source.Rot();
      ++report_.faults;
    } else {
      source.Repair();
    }
  }

  bool Loading() {
    for (const tier::ModelState& model : manager_->Snapshot().models) {
      for (const tier::SegmentState& segment : model.segments) {
        if (segment.loading) return true;
      }
    }
    return false;
  }

  void End() {
    weather_ = Weather{};
    pins_.clear();
    buffers_.clear();
    manager_->StepsPause();
    // What steps have held back comes to its end.
    steps_in_call_ = 0;
    for (int i = 0; i < 20'000 && Loading(); ++i) Move();
    // In good weather everything works again.
    for (const SimModel& model : models_) {
      model.source->Repair();
      for (uint32_t i = 0; i < model.source->sizes().size() && Ok(); ++i) {
        steps_in_call_ = 0;
        ending_ = true;  // nobody else meanwhile
        auto pin = manager_->Acquire(model.id, i, Priority::kDemand, nullptr);
        // A load that began in bad weather may still fail in good.
        if (!pin.ok()) pin = manager_->Acquire(model.id, i, Priority::kDemand, nullptr);
        if (!pin.ok()) Fail(fmt::format("not served in the end: {}", pin.status().ToString()));
        Check(true);
      }
    }
    for (const tier::ModelState& state : manager_->Snapshot().models) {
      report_.loads += state.loads;
      report_.loads_from_host += state.loads_from_host;
      report_.evictions += state.evictions;
    }
    report_.checksum_failures = manager_->Snapshot().checksum_failures;
    for (const SimModel& model : models_) {
      steps_in_call_ = 0;
      absl::Status status = manager_->Unregister(model.id);
      if (!status.ok()) Fail(fmt::format("unregister in the end: {}", status.ToString()));
    }
    Check(false);
    if (manager_->Snapshot().device_used_bytes != 0) Fail("bytes stay booked in the end");
  }

  void Destroy() {
    ending_ = true;
    steps_in_call_ = 0;
    pins_.clear();
    buffers_.clear();
    manager_.reset();
    if (Ok() && device_->GetMemoryInfo().allocated_bytes != 0) Fail("device memory leaked");
  }

  const SimOptions options_;
  Random random_;
  ManualClock clock_{1'000'000};
  Weather weather_;
  std::unique_ptr<device::Device> device_;
  device::SimDevice* stepped_device_ = nullptr;
  StepReader* reader_ = nullptr;
  StepExecutor* checks_ = nullptr;
  StepExecutor* producers_ = nullptr;
  std::unique_ptr<tier::TierManager> manager_;
  uint64_t budget_ = 0;
  std::vector<SimModel> models_;
  std::vector<HeldPin> pins_;
  std::vector<HeldBuffer> buffers_;
  uint64_t models_made_ = 0;
  uint64_t steps_in_call_ = 0;
  int nested_ = 0;
  bool ending_ = false;
  SimReport report_;
};

}  // namespace

SimReport RunSimulation(const SimOptions& options) { return World(options).Run(); }

}  // namespace terrace::sim
