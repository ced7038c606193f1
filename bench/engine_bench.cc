// Prefill and decode of one model by format, context and batch, beside what the machine could do in
// the same run, and beside llama.cpp where its library is found.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "format/gguf.h"
#include "generate_model.h"
#include "kv/sequence.h"
#include "llama_peer.h"
#include "ops/measure.h"
#include "support.h"

namespace terrace::bench {
namespace {

constexpr int32_t kChunk = 512;  // prompt tokens of one step

struct FormatGoals {
  const char* format;
  double decode;       // share of bandwidth
  double decode_peer;  // times llama.cpp; 0: it does not know the format
  double prefill_peer;
  bool word_peak;  // prefill against 16-bit dot products instead of 8-bit ones
};

constexpr FormatGoals kFormats[] = {
    {"Q4_0", 0.85, 2.5, 2.5, false}, {"Q4_K_M", 0.75, 2.5, 2.5, false},
    {"Q8_0", 0.85, 2.5, 2.5, false}, {"F16", 0.85, 1.7, 2, true},
    {"BF16", 0.85, 1.7, 2, true},    {"W8A8", 0.85, 0, 0, false},
};
constexpr double kPrefillShare = 0.60;
constexpr double kBatch8Gain = 4;
constexpr double kBatch8Peer = 5;

// What one pass over the model reads and computes.
struct Work {
  double weight_bytes = 0;        // of all tensors; each is read once a step
  double layer_parameters = 0;    // of matrices that every token passes
  double attention_per_pair = 0;  // operations of a query token with one key, all layers
};

absl::StatusOr<Work> Measure(const std::string& path, const engine::EngineModel& model) {
  ASSIGN_OR_RETURN(format::ModelSource source, format::OpenGguf(path));
  Work work;
  for (const format::TensorInfo& tensor : source.tensors) {
    work.weight_bytes += static_cast<double>(tensor.bytes);
    if (tensor.shape.size() == 2 && tensor.name.starts_with("blk.")) {
      work.layer_parameters +=
          static_cast<double>(tensor.shape[0]) * static_cast<double>(tensor.shape[1]);
    }
  }
  const model::Config& c = model.architecture().config();
  work.attention_per_pair = 2.0 * c.layer_count() * c.heads * (c.key_dim + c.value_dim);
  return work;
}

// Runs one model on the engine.
class Player {
 public:
  Player(const Context& context, Bed* bed, engine::EngineModel* model)
      : clock_(*context.clock), bed_(*bed), model_(*model), random_(1) {}

  // Seconds of a prompt of `tokens` tokens, to its last logits.
  absl::StatusOr<double> Prefill(int32_t tokens) {
    kv::Sequence sequence = NewSequence();
    return Feed(&sequence, tokens);
  }

  // Seconds of one step of `batch` sequences that hold about `context` tokens each.
  absl::StatusOr<double> Decode(int32_t context, int32_t batch, int steps) {
    std::deque<kv::Sequence> sequences;
    for (int32_t i = 0; i < batch; ++i) {
      sequences.push_back(NewSequence());
      RETURN_IF_ERROR(Feed(&sequences.back(), context).status());
    }
    std::vector<double> times;
    for (int step = 0; step <= steps; ++step) {
      std::vector<int32_t> tokens(static_cast<size_t>(batch));
      std::vector<engine::StepEntry> entries;
      for (int32_t i = 0; i < batch; ++i) {
        tokens[static_cast<size_t>(i)] = Token();
        entries.push_back({.kv = &sequences[static_cast<size_t>(i)],
                           .tokens = {&tokens[static_cast<size_t>(i)], 1},
                           .want_logits = true});
      }
      ASSIGN_OR_RETURN(double seconds, Step(entries));
      if (step > 0) times.push_back(seconds);  // the first grows the workspace
    }
    return Median(std::move(times));
  }

 private:
  kv::Sequence NewSequence() {
    return kv::Sequence(&bed_.runtime().manager(), nullptr, {},
                        {.model = model_.name(), .kind = tier::Kind::kKv},
                        model_.kv_geometry().block_bytes());
  }
  int32_t Token() {
    return static_cast<int32_t>(random_.Below(static_cast<uint64_t>(model_.vocab_size())));
  }

  absl::StatusOr<double> Step(std::span<const engine::StepEntry> entries) {
    const int64_t start_us = clock_.NowUs();
    ASSIGN_OR_RETURN(engine::StepResult result,
                     bed_.runtime().engine().Step(model_, entries, nullptr));
    const int64_t us = clock_.NowUs() - start_us;
    for (const engine::EntryResult& entry : result.entries) RETURN_IF_ERROR(entry.status);
    return static_cast<double>(us) / 1e6;
  }

  absl::StatusOr<double> Feed(kv::Sequence* sequence, int32_t tokens) {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    for (int32_t& token : prompt) token = Token();
    double seconds = 0;
    for (int32_t done = 0; done < tokens; done += kChunk) {
      const int32_t count = std::min(kChunk, tokens - done);
      const engine::StepEntry entry{.kv = sequence,
                                    .tokens = std::span(prompt).subspan(static_cast<size_t>(done),
                                                                        static_cast<size_t>(count)),
                                    .want_logits = done + count == tokens};
      ASSIGN_OR_RETURN(double step, Step({&entry, 1}));
      seconds += step;
    }
    return seconds;
  }

  const Clock& clock_;
  Bed& bed_;
  engine::EngineModel& model_;
  Random random_;
};

class EngineBench {
 public:
  explicit EngineBench(const Context& context)
      : context_(context), buffer_(context.quick ? 64 * kMiB : 512 * kMiB) {
    std::fill_n(buffer_.data(), buffer_.size(), std::byte{1});
    if (context.quick) shape_ = *FindShape("small");
  }

  absl::Status Run() {
    RETURN_IF_ERROR(LoadPeer());
    for (const FormatGoals& goals : kFormats) {
      if (context_.WantsFormat(goals.format)) RETURN_IF_ERROR(RunFormat(goals));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status LoadPeer() {
    if (!context_.compare) return absl::OkStatus();
    const std::string library = FindLlamaLibrary(context_.peer_library, context_.cache_folder);
    if (library.empty()) {
      context_.say(
          fmt::format("llama.cpp is not found: no comparison. To have one: npm install --prefix {} "
                      "@node-llama-cpp/linux-x64@3.21.1",
                      context_.cache_folder));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(peer_, LlamaPeer::Load(library, context_.threads, context_.clock));
    context_.say(fmt::format("comparing with {}", library));
    return absl::OkStatus();
  }

  absl::Status RunFormat(const FormatGoals& goals) {
    context_.say(goals.format);
    ASSIGN_OR_RETURN(std::string path,
                     CachedModel({.shape = shape_, .format = goals.format}, context_.cache_folder));
    ASSIGN_OR_RETURN(bed_, Bed::Create(context_, 0));
    ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model, bed_->Open(goals.format, path));
    ASSIGN_OR_RETURN(work_, Measure(path, *model));
    ASSIGN_OR_RETURN(limits_, ops::MeasureLimits(bed_->runtime().backend().name(), buffer_,
                                                 &bed_->runtime().team()));
    with_peer_ = peer_ != nullptr && goals.decode_peer > 0;
    if (with_peer_) RETURN_IF_ERROR(peer_->Open(path));
    Player player(context_, bed_.get(), model.get());
    RETURN_IF_ERROR(player.Prefill(kChunk).status());  // loads the weights
    for (int32_t tokens : {128, 512, 2048}) RETURN_IF_ERROR(Prefill(goals, tokens, &player));
    struct Case {
      int32_t context, batch;
    };
    single_ = 0;
    for (Case c : {Case{128, 1}, {4096, 1}, {128, 4}, {128, 8}, {128, 16}}) {
      if (context_.quick && c.context > 128) continue;
      RETURN_IF_ERROR(Decode(goals, c.context, c.batch, *model, &player));
    }
    return absl::OkStatus();
  }

  absl::Status Prefill(const FormatGoals& goals, int32_t tokens, Player* player) {
    const std::string law = fmt::format("{} prefill {}", goals.format, tokens);
    if (!context_.WantsLaw(law)) return absl::OkStatus();
    double best = 1e9;
    double theirs = 1e9;
    for (int i = 0; i < (context_.quick ? 1 : tokens > 1000 ? 2 : 3); ++i) {
      if (with_peer_) {
        ASSIGN_OR_RETURN(double seconds, peer_->Prefill(tokens));
        theirs = std::min(theirs, seconds);
      }
      ASSIGN_OR_RETURN(double seconds, player->Prefill(tokens));
      best = std::min(best, seconds);
    }
    const double word_peak =
        limits_.word_ops_per_s > 0 ? limits_.word_ops_per_s : limits_.float_ops_per_s;
    const double peak = goals.word_peak ? word_peak : limits_.int8_ops_per_s;
    const double n = tokens;
    const double operations =
        2 * work_.layer_parameters * n + work_.attention_per_pair * n * (n + 1) / 2;
    context_.report({.law = law,
                     .measured = n / best,
                     .unit = "tokens/s",
                     .reference = n / (operations / peak),
                     .reference_name = goals.word_peak ? "16-bit peak" : "int8 peak",
                     .goal_kind = tokens == 512 ? Goal::kAtLeast : Goal::kNone,
                     .goal = kPrefillShare});
    if (with_peer_) Compare(law, n / best, n / theirs, tokens == 512 ? goals.prefill_peer : 0);
    return absl::OkStatus();
  }

  // Bandwidth now, beside what is compared with it.
  absl::StatusOr<double> Read() {
    return ops::MeasureRead(bed_->runtime().backend().name(), buffer_, &bed_->runtime().team());
  }

  absl::Status Decode(const FormatGoals& goals, int32_t context, int32_t batch,
                      const engine::EngineModel& model, Player* player) {
    const std::string law =
        fmt::format("{} decode, context {}, batch {}", goals.format, context, batch);
    const bool is_single = batch == 1 && context == 128;
    if (!context_.WantsLaw(law) && !is_single) return absl::OkStatus();
    const int steps = context_.quick ? 4 : 32;
    double theirs = 1e9;
    const auto run_peer = [&]() -> absl::Status {
      if (!with_peer_ || !context_.WantsLaw(law)) return absl::OkStatus();
      ASSIGN_OR_RETURN(double seconds, peer_->Decode(context, batch, steps / 2));
      theirs = std::min(theirs, seconds);
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(run_peer());
    ASSIGN_OR_RETURN(double before, Read());
    ASSIGN_OR_RETURN(double seconds, player->Decode(context, batch, steps));
    ASSIGN_OR_RETURN(double after, Read());
    RETURN_IF_ERROR(run_peer());
    const double rate = batch / seconds;
    if (is_single) single_ = rate;
    if (!context_.WantsLaw(law)) return absl::OkStatus();
    Row row{.law = law, .measured = rate, .unit = "tokens/s"};
    if (batch == 1) {
      const double bytes =
          work_.weight_bytes + static_cast<double>(model.KvBytes(context + steps / 2));
      row.reference = std::max(before, after) / bytes;
      row.reference_name = "memory bandwidth";
      row.goal_kind = is_single ? Goal::kAtLeast : Goal::kNone;
      row.goal = goals.decode;
    } else {
      row.reference = single_;
      row.reference_name = "batch 1";
      row.goal_kind = batch == 8 ? Goal::kAtLeast : Goal::kNone;
      row.goal = kBatch8Gain;
    }
    context_.report(row);
    if (with_peer_) {
      const double goal = is_single ? goals.decode_peer : batch == 8 ? kBatch8Peer : 0;
      Compare(law, rate, batch / theirs, goal);
    }
    return absl::OkStatus();
  }

  // `goal` 0: none.
  void Compare(const std::string& law, double ours, double theirs, double goal) {
    context_.report({.law = law + " against llama.cpp",
                     .measured = ours,
                     .unit = "tokens/s",
                     .reference = theirs,
                     .reference_name = "llama.cpp",
                     .goal_kind = goal > 0 ? Goal::kAtLeast : Goal::kNone,
                     .goal = goal});
  }

  const Context& context_;
  const ops::LargeBuffer buffer_;
  ModelShape shape_;
  std::unique_ptr<LlamaPeer> peer_;
  bool with_peer_ = false;
  std::unique_ptr<Bed> bed_;
  Work work_;
  ops::MachineLimits limits_;
  double single_ = 0;  // tokens/s of one sequence with a short context
};

}  // namespace

absl::Status RunEngine(const Context& context) { return EngineBench(context).Run(); }

}  // namespace terrace::bench
