// Prefill and decode of one model by format, context and batch, beside what the machine could do in
// the same run, and beside llama.cpp where its llama-bench is found.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>

#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "format/gguf.h"
#include "generate_model.h"
#include "kv/sequence.h"
#include "ops/measure.h"
#include "support.h"

namespace terrace::bench {
namespace {

constexpr int32_t kChunk = 512;  // prompt tokens of one step

struct FormatGoals {
  const char* format;
  double decode;       // share of bandwidth
  double decode_peer;  // times llama.cpp
  double prefill_peer;
  bool word_peak;  // prefill against 16-bit dot products instead of 8-bit ones
};

constexpr FormatGoals kFormats[] = {
    {"Q4_0", 0.85, 2.5, 2.5, false}, {"Q4_K_M", 0.75, 2.5, 2.5, false},
    {"Q8_0", 0.85, 2.5, 2.5, false}, {"F16", 0.85, 1.7, 2, true},
    {"BF16", 0.85, 1.7, 2, true},
};
constexpr double kPrefillShare = 0.60;
constexpr double kBatch8Gain = 4;

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

struct PeerRates {
  double prefill512 = 0;  // tokens/s
  double decode = 0;
};

// The path of llama.cpp's llama-bench: TERRACE_LLAMA_BENCH, else from PATH; empty if there is none.
std::string FindLlamaBench() {
  if (const char* set = std::getenv("TERRACE_LLAMA_BENCH"); set != nullptr) return set;
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    std::string file = fmt::format("{}/llama-bench", rest.substr(0, end));
    if (access(file.c_str(), X_OK) == 0) return file;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return "";
}

// Nothing if it fails: a peer is not what is measured.
std::optional<PeerRates> RunLlamaBench(const std::string& program, const std::string& model,
                                       int threads, int repeats) {
  const std::string command =
      fmt::format("'{}' -m '{}' -p 512 -n 64 -t {} -r {} -o json 2>/dev/null", program, model,
                  threads, repeats);
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe.get())) > 0;) text.append(buffer, n);
  boost::system::error_code error;
  const boost::json::value json = boost::json::parse(text, error);
  const boost::json::array* tests = json.if_array();
  if (error || tests == nullptr) return std::nullopt;
  PeerRates rates;
  for (const boost::json::value& test : *tests) {
    const boost::json::object* object = test.if_object();
    if (object == nullptr) continue;
    const boost::json::value* rate = object->if_contains("avg_ts");
    const boost::json::value* prompt = object->if_contains("n_prompt");
    if (rate == nullptr || prompt == nullptr || !rate->is_number()) continue;
    (prompt->is_int64() && prompt->as_int64() > 0 ? rates.prefill512 : rates.decode) =
        rate->to_number<double>();
  }
  return rates;
}

class EngineBench {
 public:
  explicit EngineBench(const Context& context)
      : context_(context), buffer_(context.quick ? 64 * kMiB : 512 * kMiB) {
    std::fill_n(buffer_.data(), buffer_.size(), std::byte{1});
    if (context.quick) shape_ = *FindShape("small");
  }

  absl::StatusOr<std::vector<Row>> Run() {
    const std::string peer = FindLlamaBench();
    context_.say(peer.empty() ? "llama-bench is not found: no comparison"
                              : fmt::format("comparing with {}", peer));
    for (const FormatGoals& goals : kFormats) RETURN_IF_ERROR(RunFormat(goals, peer));
    return std::move(rows_);
  }

 private:
  absl::Status RunFormat(const FormatGoals& goals, const std::string& peer) {
    context_.say(goals.format);
    ASSIGN_OR_RETURN(std::string path,
                     CachedModel({.shape = shape_, .format = goals.format}, context_.cache_folder));
    ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context_, 0));
    ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> model, bed->Open(goals.format, path));
    ASSIGN_OR_RETURN(work_, Measure(path, *model));
    ASSIGN_OR_RETURN(limits_, ops::MeasureLimits(bed->runtime().backend().name(), buffer_,
                                                 &bed->runtime().team()));
    Player player(context_, bed.get(), model.get());
    RETURN_IF_ERROR(player.Prefill(kChunk).status());  // loads the weights

    std::optional<PeerRates> peer_before, peer_after;
    if (!peer.empty()) peer_before = RunLlamaBench(peer, path, context_.threads, 2);
    ASSIGN_OR_RETURN(const double prefill, Prefill(goals, &player));
    ASSIGN_OR_RETURN(const double decode, Decode(goals, *model, &player, bed.get()));
    if (!peer.empty()) peer_after = RunLlamaBench(peer, path, context_.threads, 2);
    if (peer_before && peer_after) {
      Compare(goals.format, "prefill 512", prefill,
              std::max(peer_before->prefill512, peer_after->prefill512), goals.prefill_peer);
      Compare(goals.format, "decode", decode, std::max(peer_before->decode, peer_after->decode),
              goals.decode_peer);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Prefill(const FormatGoals& goals, Player* player) {
    const double word_peak =
        limits_.word_ops_per_s > 0 ? limits_.word_ops_per_s : limits_.float_ops_per_s;
    const double peak = goals.word_peak ? word_peak : limits_.int8_ops_per_s;
    double rate512 = 0;
    for (int32_t tokens : {128, 512, 2048}) {
      double best = 1e9;
      for (int i = 0; i < (context_.quick ? 1 : 3); ++i) {
        ASSIGN_OR_RETURN(double seconds, player->Prefill(tokens));
        best = std::min(best, seconds);
      }
      const double n = tokens;
      const double operations =
          2 * work_.layer_parameters * n + work_.attention_per_pair * n * (n + 1) / 2;
      if (tokens == 512) rate512 = n / best;
      rows_.push_back({.law = fmt::format("{} prefill {}", goals.format, tokens),
                       .measured = n / best,
                       .unit = "tokens/s",
                       .reference = n / (operations / peak),
                       .reference_name = goals.word_peak ? "16-bit peak" : "int8 peak",
                       .goal_kind = tokens == 512 ? Goal::kAtLeast : Goal::kNone,
                       .goal = kPrefillShare});
    }
    return rate512;
  }

  absl::StatusOr<double> Decode(const FormatGoals& goals, const engine::EngineModel& model,
                                Player* player, Bed* bed) {
    const int steps = context_.quick ? 4 : 32;
    double single = 0;
    struct Case {
      int32_t context, batch;
    };
    for (Case c : {Case{128, 1}, {4096, 1}, {128, 4}, {128, 8}, {128, 16}}) {
      if (context_.quick && c.context > 128) continue;
      double limit = 0;
      ASSIGN_OR_RETURN(double before, ops::MeasureRead(bed->runtime().backend().name(), buffer_,
                                                       &bed->runtime().team()));
      ASSIGN_OR_RETURN(double seconds, player->Decode(c.context, c.batch, steps));
      ASSIGN_OR_RETURN(double after, ops::MeasureRead(bed->runtime().backend().name(), buffer_,
                                                      &bed->runtime().team()));
      limit = std::max(before, after);
      const double rate = c.batch / seconds;
      if (c.batch == 1 && c.context == 128) single = rate;
      Row row{
          .law = fmt::format("{} decode, context {}, batch {}", goals.format, c.context, c.batch),
          .measured = rate,
          .unit = "tokens/s"};
      if (c.batch == 1) {
        const double bytes =
            work_.weight_bytes + static_cast<double>(model.KvBytes(c.context + steps / 2));
        row.reference = limit / bytes;
        row.reference_name = "memory bandwidth";
        row.goal_kind = c.context == 128 ? Goal::kAtLeast : Goal::kNone;
        row.goal = goals.decode;
      } else {
        row.reference = single;
        row.reference_name = "batch 1";
        row.goal_kind = c.batch == 8 ? Goal::kAtLeast : Goal::kNone;
        row.goal = kBatch8Gain;
      }
      rows_.push_back(std::move(row));
    }
    return single;
  }

  void Compare(const char* format, const char* what, double ours, double theirs, double goal) {
    rows_.push_back({.law = fmt::format("{} {} against llama.cpp", format, what),
                     .measured = ours,
                     .unit = "tokens/s",
                     .reference = theirs,
                     .reference_name = "llama.cpp",
                     .goal_kind = Goal::kAtLeast,
                     .goal = goal});
  }

  const Context& context_;
  const ops::LargeBuffer buffer_;
  ModelShape shape_;
  Work work_;
  ops::MachineLimits limits_;
  std::vector<Row> rows_;
};

}  // namespace

absl::StatusOr<std::vector<Row>> RunEngine(const Context& context) {
  return EngineBench(context).Run();
}

}  // namespace terrace::bench
