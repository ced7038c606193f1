// terrace verify parallel: a model divided among devices against the same model on one.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <ostream>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/member_group.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "model/share.h"
#include "parallel/mpi.h"

namespace terrace::cli {
namespace {

struct ParallelOptions {
  ConfigOptions config;
  std::string model;
  int32_t tensor = 1, expert = 1;
  int32_t tokens = 48;
};

// Relative size of the error that an operator may add: activations in int8 by runs of 256 values,
// the coarsest that kernels round to (tests/engine/golden_test.cc derives it), on both sides.
constexpr double kOperatorError = 0.0068 * 1.4142136;
constexpr int kOperatorsALayer = 6;

struct Comparison {
  double worst = 0;      // difference of logits
  double rms = 0;        // of the logits
  double tolerance = 0;  // for `worst`
  uint64_t sent_bytes = 0, formula_bytes = 0;
  int32_t devices = 0;
  bool holds() const { return worst <= tolerance && sent_bytes == formula_bytes; }
};

// What the leader alone is to send of the bytes that all members send in a pass.
uint64_t LeadersPart(const model::Config& config, int64_t rows) {
  const auto size = static_cast<int64_t>(config.share.size);
  const uint64_t all = model::PassTraffic(config, rows, rows);
  if (!config.share.tensor) return all / static_cast<uint64_t>(size);
  // Of logits it sends its part of the vocabulary, which need not be as large as the others'.
  const auto gathered = static_cast<uint64_t>(4 * (size - 1) * rows * config.vocab_size);
  const int64_t mine = model::VocabularyOf(config, config.share.rank).size();
  return (all - gathered) / static_cast<uint64_t>(size) +
         static_cast<uint64_t>(4 * (size - 1) * rows * mine);
}

absl::Status Compare(Runtime& runtime, engine::EngineModel& whole, engine::EngineModel& divided,
                     std::span<const int32_t> tokens, Comparison* out) {
  ASSIGN_OR_RETURN(const std::vector<float> want, runtime.engine().AllLogits(whole, tokens));
  const uint64_t before = runtime.group()->traffic().sent_bytes;
  ASSIGN_OR_RETURN(const std::vector<float> got, runtime.engine().AllLogits(divided, tokens));
  out->sent_bytes = runtime.group()->traffic().sent_bytes - before;
  const model::Config& config = divided.architecture().config();
  out->formula_bytes = LeadersPart(config, static_cast<int64_t>(tokens.size()));
  out->devices = config.share.size;
  double squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    // Written so that NaN counts.
    const double difference = std::abs(double{got[i]} - want[i]);
    if (!(difference <= out->worst)) out->worst = difference;
    squares += double{want[i]} * want[i];
  }
  out->rms = std::sqrt(squares / static_cast<double>(want.size()));
  out->tolerance = out->rms * kOperatorError *
                   std::sqrt(1.0 * kOperatorsALayer * config.layer_count() + 1) *
                   std::sqrt(2 * std::log(static_cast<double>(want.size())));
  return absl::OkStatus();
}

void Print(const Invocation& invocation, const Comparison& c, int32_t tokens) {
  if (invocation.json) {
    *invocation.io->out << boost::json::serialize(
                               boost::json::object{{"devices", c.devices},
                                                   {"processes", parallel::MpiProcesses()},
                                                   {"worst_error", c.worst},
                                                   {"rms", c.rms},
                                                   {"tolerance", c.tolerance},
                                                   {"sent_bytes", c.sent_bytes},
                                                   {"formula_bytes", c.formula_bytes},
                                                   {"tokens", tokens},
                                                   {"holds", c.holds()}})
                        << "\n";
    return;
  }
  *invocation.io->out << fmt::format(
      "{} devices in {} process{}: logits differ by {:.2e} at most (RMS {:.2e}, tolerance {:.2e})\n"
      "the leader sent {} bytes for {} tokens with logits; the formula says {}\n",
      c.devices, parallel::MpiProcesses(), parallel::MpiProcesses() == 1 ? "" : "es", c.worst,
      c.rms, c.tolerance, c.sent_bytes, tokens, c.formula_bytes);
}

absl::Status VerifyParallel(const Invocation& invocation, const ParallelOptions& options) {
  if (options.tensor < 2 && options.expert < 2) {
    return absl::InvalidArgumentError("--tensor or --expert: 2 devices or more");
  }
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  server::Config& config = loaded.config;
  ASSIGN_OR_RETURN(std::string path, FindModel(config, options.model));
  server::ModelConfig divided;
  divided.name = "divided";
  divided.source = path;
  divided.tensor_parallel = std::max(1, options.tensor);
  divided.expert_parallel = std::max(1, options.expert);
  config.models = {divided};
  config.kv.disk_bytes = 0;
  if (IsFollowingProcess()) return FollowLeader(config, invocation.io);
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(config));
  runtime->SetNotice([&](const std::string& subject, const std::string& message) {
    *invocation.io->err << fmt::format("terrace: {}: {}\n", subject, message);
  });
  runtime->set_write_images(false);
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> whole,
                   runtime->OpenModel("whole", path, 0, 0));
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> parts,
                   runtime->OpenModel(divided.name, path, 0, 0, {}, TermsOf(divided)));
  if (options.tokens < 1 || options.tokens > whole->max_context()) {
    return absl::InvalidArgumentError(
        fmt::format("--tokens: not between 1 and the context of {}", whole->max_context()));
  }
  Random random(1);
  std::vector<int32_t> tokens(static_cast<size_t>(options.tokens));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random.Next() % static_cast<uint64_t>(whole->vocab_size()));
  }
  Comparison comparison;
  RETURN_IF_ERROR(Compare(*runtime, *whole, *parts, tokens, &comparison));
  Print(invocation, comparison, options.tokens);
  if (comparison.holds()) return absl::OkStatus();
  return absl::InternalError("the divided model does not compute what the whole one does");
}

}  // namespace

void AddVerifyParallel(Command verify, Invocation* invocation) {
  auto options = std::make_shared<ParallelOptions>();  // lives as long as the parser's callbacks
  Command command = verify.Add(
      "parallel",
      "Compute a model on several devices of this process, or on those of the processes that "
      "mpirun "
      "has started, and compare with one; fails beyond the tolerance, or if other bytes are "
      "exchanged than the formula says",
      [invocation, options] { return VerifyParallel(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  command.Option("--tensor", &options->tensor,
                 {"DEVICES", "Divide attention, FFNs and vocabulary among so many"});
  command.Option("--expert", &options->expert, {"DEVICES", "Divide experts among so many"});
  command.Option("--tokens", &options->tokens, {"NUMBER", "Tokens, by chance (default: 48)"});
  options->config.AddTo(command, {"memory", "storage", "device"});
}

}  // namespace terrace::cli
