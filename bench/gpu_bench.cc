// Prefill, decode and switching on an accelerator, each as a share of what the same chip, its
// memory and its link were measured to give just before. On a machine without one an OpenCL device
// stands in, so that it is seen to run; its figures say nothing of a chip.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "device/pinned_range.h"
#include "generate_model.h"
#include "llama_peer.h"
#include "os/mapping.h"
#include "support.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

using device::CopyDirection;
using device::KernelArgument;

// The most that the chip's circuits can multiply: operands stay in registers.
constexpr const char* kPeakSource = R"cl(
KERNEL(peak)(MEM(out), int rounds) {
#if TILES
  TILE_STORAGE(4)
  uint a[4];
  uint b[2];
  float sums[8][4];
  for (int i = 0; i < 4; ++i) a[i] = 0x3f803f80U;
  for (int i = 0; i < 2; ++i) b[i] = 0x3f803f80U + ITEM(0);
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) sums[j][i] = 0.0f;
  }
  for (int r = 0; r < rounds; ++r) {
    for (int j = 0; j < 8; ++j) MULTIPLY_TILES(sums[j], a, b);
  }
  float total = 0.0f;
  for (int j = 0; j < 8; ++j) total += sums[j][0] + sums[j][1] + sums[j][2] + sums[j][3];
#elif VECTOR_ITEMS
  float16 sums[8];
  for (int j = 0; j < 8; ++j) sums[j] = (float16)(j);
  const float16 factor = (float16)(1.0f + 0.5f * rounds);
  for (int r = 0; r < rounds; ++r) {
    for (int j = 0; j < 8; ++j) sums[j] = fma(sums[j], factor, factor);
  }
  float total = 0.0f;
  for (int j = 0; j < 8; ++j) total += sums[j].s0 + sums[j].s7;
#else
  float sums[16];
  for (int j = 0; j < 16; ++j) sums[j] = (float)(j + ITEM(0));
  const float factor = 1.0f + 0.5f * (float)rounds;
  for (int r = 0; r < rounds; ++r) {
    for (int j = 0; j < 16; ++j) sums[j] = fma(sums[j], factor, factor);
  }
  float total = 0.0f;
  for (int j = 0; j < 16; ++j) total += sums[j];
#endif
  PTR(float, out)[(long)GROUP(0) * ITEMS(0) * ITEMS(1) + ITEM(1) * ITEMS(0) + ITEM(0)] = total;
}
)cl";

struct Limits {
  double memory_bytes_per_s = 0;
  double link_bytes_per_s = 0;  // from pinned host memory, where the device pins
  double flops = 0;
};

// The fastest of a few runs.
absl::StatusOr<double> BestSeconds(const Clock& clock, device::Stream& stream,
                                   const std::function<absl::Status()>& work) {
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const int64_t start = clock.NowUs();
    RETURN_IF_ERROR(work());
    RETURN_IF_ERROR(stream.Synchronize());
    const double seconds = static_cast<double>(clock.NowUs() - start) * 1e-6;
    if (i > 0 && (best == 0 || seconds < best)) best = seconds;
  }
  return std::max(best, 1e-6);
}

// Needs 2 `bytes` of device memory for a moment.
absl::StatusOr<Limits> MeasureLimits(const Context& context, device::Device& device,
                                     uint64_t bytes) {
  Limits limits;
  ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream, device.CreateStream());
  ASSIGN_OR_RETURN(std::byte* const room, device.Allocate(2 * bytes));
  ASSIGN_OR_RETURN(const os::Mapping host, os::Mapping::Anonymous(bytes, {.populate = true}));
  const device::PinnedRange pin(&device, host.span());
  absl::Status status = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const double copied, BestSeconds(*context.clock, *stream, [&] {
                       return stream->CopyAsync(CopyDirection::kDeviceToDevice, room + bytes, room,
                                                bytes);
                     }));
    limits.memory_bytes_per_s = 2.0 * static_cast<double>(bytes) / copied;  // read and written
    ASSIGN_OR_RETURN(const double sent, BestSeconds(*context.clock, *stream, [&] {
                       return stream->CopyAsync(CopyDirection::kHostToDevice, room, host.data(),
                                                bytes);
                     }));
    limits.link_bytes_per_s = static_cast<double>(bytes) / sent;
    const device::DeviceInfo& info = device.info();
    ASSIGN_OR_RETURN(const std::unique_ptr<device::Kernel> kernel,
                     device.CreateKernel({"peak", nullptr, kPeakSource,
                                          fmt::format("TILES={}", int{info.tile_product})}));
    const int32_t rounds = info.vector_items ? 20'000 : 4'000;
    device::LaunchShape shape;
    shape.groups = {info.vector_items ? 64u : 2048u, 1, 1};
    if (!info.vector_items) shape.items = {32, 4, 1};
    const double items = 1.0 * shape.groups[0] * shape.items[0] * shape.items[1];
    // A warp's product of tiles is 2 x 16 x 8 x 16 operations of 32 items.
    const double each = info.tile_product ? 8 * 2 * 64 : info.vector_items ? 8 * 32 : 16 * 2;
    const KernelArgument arguments[] = {KernelArgument::Memory(room),
                                        KernelArgument::Value(rounds)};
    ASSIGN_OR_RETURN(const double computed, BestSeconds(*context.clock, *stream, [&] {
                       return stream->Launch(*kernel, shape, arguments);
                     }));
    limits.flops = items * each * rounds / computed;
    return absl::OkStatus();
  }();
  device.Free(room, 2 * bytes);
  RETURN_IF_ERROR(status);
  return limits;
}

class GpuBench {
 public:
  explicit GpuBench(const Context& context) : context_(context) {}

  absl::Status Run() {
    RETURN_IF_ERROR(Choose());
    ASSIGN_OR_RETURN(first_path_, ModelPath(1));
    RETURN_IF_ERROR(LoadPeer());
    RETURN_IF_ERROR(Compute());
    return Switch();
  }

 private:
  absl::StatusOr<std::string> ModelPath(uint64_t seed) {
    GenerateOptions options;
    options.shape = shape_;
    options.seed = seed;
    return CachedModel(options, context_.cache_folder);
  }

  // A GPU, else an OpenCL device.
  absl::Status Choose() {
    server::Config config = Bed::DefaultConfig(context_);
    config.device.kind = server::DeviceKind::kGpu;
    absl::StatusOr<std::unique_ptr<Bed>> bed = Bed::CreateFrom(context_, config);
    real_ = bed.ok();
    if (!real_) {
      context_.say(fmt::format("no GPU is found: {}", Message(bed.status())));
      config.device.kind = server::DeviceKind::kOpenCl;
      config.device.memory_bytes = 2 * kGiB;
      bed = Bed::CreateFrom(context_, config);
      if (!bed.ok()) {
        return WithContext(bed.status(), "no GPU is found, and no OpenCL device in its stead");
      }
      context_.say("an OpenCL device stands in: what follows shows that it runs, and no more");
    }
    config_ = config;
    if (!real_ || context_.quick) {
      ASSIGN_OR_RETURN(shape_, FindShape("small"));
    }
    device::Device& device = (*bed)->runtime().device();
    context_.say(fmt::format("on {}, {}", device.info().name, device.info().description));
    ASSIGN_OR_RETURN(limits_, MeasureLimits(context_, device, real_ ? 256 * kMiB : 32 * kMiB));
    return absl::OkStatus();
  }

  absl::Status LoadPeer() {
    if (!context_.compare) return absl::OkStatus();
    const std::string library = FindLlamaLibrary(context_.peer_library, context_.cache_folder);
    if (library.empty()) {
      context_.say("llama.cpp is not found: no comparison (--peer names its library)");
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(peer_, LlamaPeer::Load(library, context_.threads, context_.clock));
    context_.say(fmt::format("comparing with {}, on what that was built for", library));
    return peer_->Open(first_path_);
  }

  void Report(Row row) {
    if (!real_) row.goal_kind = Goal::kNone;  // the laws are for accelerators
    if (context_.WantsLaw(row.law)) context_.report(row);
  }

  // Multiplications and additions of one token, without attention.
  double FlopsPerToken() const {
    const double attention =
        2.0 * shape_.width * shape_.head_dim * (shape_.heads + shape_.kv_heads);
    return 2.0 * shape_.layers * (attention + 3.0 * shape_.width * shape_.ffn_width);
  }

  absl::Status Compute() {
    ASSIGN_OR_RETURN(const std::unique_ptr<Bed> bed, Bed::CreateFrom(context_, config_));
    ASSIGN_OR_RETURN(const auto model, bed->Open("m1", first_path_));
    const int32_t prompt = 512;
    const int32_t tokens = real_ ? 128 : 16;
    RETURN_IF_ERROR(bed->Answer(*model, prompt, tokens, 1).status());  // loads and compiles
    std::vector<double> prefill, decode;
    for (uint64_t salt = 2; salt < 5; ++salt) {
      ASSIGN_OR_RETURN(const Answered answered, bed->Answer(*model, prompt, tokens, salt));
      prefill.push_back(prompt / (static_cast<double>(answered.first_token_us) * 1e-6));
      decode.push_back((tokens - 1) /
                       (static_cast<double>(answered.total_us - answered.first_token_us) * 1e-6));
    }
    const auto weights = static_cast<double>(model->weights().total_bytes());
    const double decoded = Median(decode), filled = Median(prefill);
    Report({.law = "decode, one sequence: bytes of weights a second",
            .measured = decoded * weights / 1e9,
            .unit = "GB/s",
            .reference = limits_.memory_bytes_per_s / 1e9,
            .reference_name = "copying within the device's memory",
            .goal_kind = Goal::kAtLeast,
            .goal = 0.80});
    Report({.law = "prefill of 512 tokens: operations of the layers' matrices a second",
            .measured = filled * FlopsPerToken() / 1e12,
            .unit = "TFLOP/s",
            .reference = limits_.flops / 1e12,
            .reference_name = "a kernel that multiplies in registers"});
    std::optional<double> peer_decode, peer_prefill;
    if (peer_ != nullptr) {
      ASSIGN_OR_RETURN(const double prompt_s, peer_->Prefill(prompt));
      ASSIGN_OR_RETURN(const double step_s, peer_->Decode(prompt, 1, tokens));
      peer_prefill = prompt / prompt_s;
      peer_decode = 1 / step_s;
    }
    Report({.law = "decode, one sequence behind 512 tokens",
            .measured = decoded,
            .unit = "tokens/s",
            .reference = peer_decode,
            .reference_name = "llama.cpp"});
    Report({.law = "prefill of 512 tokens",
            .measured = filled,
            .unit = "tokens/s",
            .reference = peer_prefill,
            .reference_name = "llama.cpp"});
    model_bytes_ = model->weights().total_bytes();
    return absl::OkStatus();
  }

  // Two models take turns in memory for one; both lie in host memory.
  absl::Status Switch() {
    server::Config config = config_;
    // KV and workspace beside the model, but not the other one.
    const uint64_t rest = std::max(model_bytes_ / 8, real_ ? 32 * kMiB : 12 * kMiB);
    const uint64_t budget = AlignUp(model_bytes_ + rest, kMiB);
    config.memory.device_budget_bytes = budget;
    config.memory.host_budget_bytes = 2 * budget + config.memory.staging_bytes;
    ASSIGN_OR_RETURN(const std::string second_path, ModelPath(2));
    ASSIGN_OR_RETURN(const std::unique_ptr<Bed> bed, Bed::CreateFrom(context_, config));
    ASSIGN_OR_RETURN(const auto first, bed->Open("m1", first_path_));
    ASSIGN_OR_RETURN(const auto second, bed->Open("m2", second_path));
    constexpr int32_t kPrompt = 16;
    RETURN_IF_ERROR(bed->FirstToken(*first, kPrompt, 1).status());
    RETURN_IF_ERROR(bed->FirstToken(*second, kPrompt, 1).status());
    std::vector<double> switched, hot, moved;
    for (int i = 0; i < (real_ ? 8 : 3); ++i) {
      for (engine::EngineModel* model : {first.get(), second.get()}) {
        const uint64_t before = bed->LoadedBytes("host-to-device");
        const auto salt = static_cast<uint64_t>(10 + 2 * i);
        ASSIGN_OR_RETURN(const Served loaded, bed->FirstToken(*model, kPrompt, salt));
        moved.push_back(static_cast<double>(bed->LoadedBytes("host-to-device") - before));
        ASSIGN_OR_RETURN(const Served again, bed->FirstToken(*model, kPrompt, salt + 1));
        switched.push_back(static_cast<double>(loaded.first_token_us));
        hot.push_back(static_cast<double>(again.first_token_us));
      }
    }
    RETURN_IF_ERROR(bed->runtime().manager().CheckInvariants());
    if (Median(moved) == 0) {
      return absl::FailedPreconditionError("the models were meant to take turns, but both fitted");
    }
    Report({.law = "switch from host memory: bytes moved over time to the first token",
            .measured = Median(moved) / Median(switched) * 1e6 / 1e9,
            .unit = "GB/s",
            .reference = limits_.link_bytes_per_s / 1e9,
            .reference_name = "one copy from host memory",
            .goal_kind = Goal::kAtLeast,
            .goal = 0.90});
    Report({.law = "switch from host memory: first token",
            .measured = Median(switched) / 1e3,
            .unit = "ms",
            .reference = Median(hot) / 1e3,
            .reference_name = "hot"});
    return absl::OkStatus();
  }

  const Context& context_;
  server::Config config_;
  bool real_ = false;  // on a GPU
  ModelShape shape_;
  Limits limits_;
  std::string first_path_;
  uint64_t model_bytes_ = 0;
  std::unique_ptr<LlamaPeer> peer_;
};

}  // namespace

absl::Status RunGpu(const Context& context) { return GpuBench(context).Run(); }

}  // namespace terrace::bench
