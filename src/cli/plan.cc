// terrace plan: what a set of models needs of device memory, before anything is loaded. The numbers
// come from the code that serves (the layout of weights, KV blocks, the engine's workspace), so
// that they are what the ledger will show.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "engine/adapter.h"
#include "model/architecture.h"

namespace terrace::cli {
namespace {

struct PlanOptions {
  ConfigOptions config;
  std::vector<std::string> models;
  int32_t context = 4096;
  int32_t concurrent = 1;
};

// What one model needs, in bytes.
struct Need {
  std::string model;
  int32_t context = 0;  // tokens of each request, prompt and answer
  uint64_t weights = 0;
  uint64_t kv_request = 0;  // of one request
  uint64_t kv = 0;          // of all at once
  uint64_t workspace = 0;   // activations of the largest step
  uint64_t segment = 0;     // the largest piece of weights: the least to run with
  uint64_t adapters = 0;    // of the adapters that are planned with it
  std::vector<std::string> adapter_names;
  int32_t devices = 1;  // that it is divided among; all of the above is of the fullest one
};

// What device `rank` of those that `model` is divided among needs, or the one that has it whole.
absl::StatusOr<std::shared_ptr<engine::EngineModel>> OpenFor(const server::Config& config,
                                                             const server::ModelConfig& model,
                                                             Runtime* runtime, int32_t rank,
                                                             int32_t devices) {
  ASSIGN_OR_RETURN(const std::string path, FindModel(config, model.name));
  engine::EngineModelOptions more = KvOptions(config, model);
  if (devices == 1) return runtime->OpenModel(model.name, path, model.max_context, 0, more);
  more.max_context = model.max_context;
  return runtime->OpenPart(model.name, path, more, TermsOf(model), rank, devices);
}

absl::StatusOr<Need> NeedOn(const server::Config& config, const server::ModelConfig& model,
                            const PlanOptions& options, Runtime* runtime, int32_t device,
                            int32_t devices) {
  ASSIGN_OR_RETURN(std::shared_ptr<engine::EngineModel> opened,
                   OpenFor(config, model, runtime, device, devices));
  Need need{.model = model.name};
  need.devices = devices;
  need.context = std::min(options.context, opened->max_context());
  need.weights = opened->weights().total_bytes();
  need.kv_request = opened->KvBytes(need.context);
  need.kv = need.kv_request * static_cast<uint64_t>(options.concurrent);
  // A step holds a piece of a prompt beside the other requests' tokens, and logits for each.
  int32_t rank = 0;
  for (const server::ModelConfig& adapter : config.models) {
    if (adapter.base != model.name) continue;
    ASSIGN_OR_RETURN(std::shared_ptr<const engine::Adapter> with,
                     runtime->OpenAdapter(adapter.name, adapter.source, 0, *opened, {}));
    need.adapters += with->weights().total_bytes();
    need.adapter_names.push_back(adapter.name);
    rank = std::max(rank, with->weights().max_rank());
  }
  const int32_t rows = std::max(options.concurrent, std::min(config.scheduler.step_tokens,
                                                             need.context * options.concurrent));
  need.workspace = AlignUp(
      opened->architecture().WorkspaceBytes(rows, std::min(options.concurrent, rows), rank), kMiB);
  for (const tier::SegmentSpec& segment : opened->weights().segments()) {
    need.segment = std::max(need.segment, segment.bytes);
  }
  return need;
}

// On the device that needs most.
absl::StatusOr<Need> NeedOf(const server::Config& config, const server::ModelConfig& model,
                            const PlanOptions& options, Runtime* runtime) {
  const int32_t devices = std::max({1, model.tensor_parallel, model.expert_parallel});
  Need most;
  for (int32_t rank = 0; rank < devices; ++rank) {
    ASSIGN_OR_RETURN(Need need, NeedOn(config, model, options, runtime, rank, devices));
    const auto all = [](const Need& n) { return n.weights + n.kv + n.workspace; };
    if (rank == 0 || all(need) > all(most)) most = std::move(need);
  }
  return most;
}

struct Total {
  uint64_t all = 0;      // every model at once
  uint64_t largest = 0;  // the one that needs most, alone
  uint64_t least = 0;    // weights streamed segment by segment: slow, but it runs
};

Total Sum(const std::vector<Need>& needs) {
  Total total;
  uint64_t workspace = 0;
  for (const Need& need : needs) {
    workspace = std::max(workspace, need.workspace);  // the engine's one workspace
    const uint64_t weights = need.weights + need.adapters;
    total.all += weights + need.kv;
    total.largest = std::max(total.largest, weights + need.kv + need.workspace);
    total.least =
        std::max(total.least, 2 * need.segment + need.adapters + need.kv_request + need.workspace);
  }
  total.all += workspace;
  return total;
}

void WriteJson(const std::vector<Need>& needs, const Total& total, uint64_t budget,
               std::ostream& out) {
  boost::json::array models;
  for (const Need& need : needs) {
    models.push_back(boost::json::object{{"model", need.model},
                                         {"context", need.context},
                                         {"weights_bytes", need.weights},
                                         {"kv_bytes_per_request", need.kv_request},
                                         {"kv_bytes", need.kv},
                                         {"workspace_bytes", need.workspace},
                                         {"adapters", boost::json::value_from(need.adapter_names)},
                                         {"adapter_bytes", need.adapters},
                                         {"devices", need.devices}});
  }
  const boost::json::object all = {{"models", std::move(models)},
                                   {"all_bytes", total.all},
                                   {"largest_bytes", total.largest},
                                   {"least_bytes", total.least},
                                   {"budget_bytes", budget},
                                   {"all_fit", total.all <= budget},
                                   {"each_fits", total.largest <= budget}};
  out << boost::json::serialize(all) << "\n";
}

std::string Verdict(const Total& total, uint64_t budget) {
  if (total.all <= budget) return "All of them fit at once: nothing is ever swapped.";
  if (total.largest <= budget) {
    return "Each fits alone: models that are used at different times swap; those used together "
           "share the budget.";
  }
  if (total.least <= budget) {
    return "The largest does not fit: its weights stream through memory at each step, which is "
           "slow. Raise memory.device_budget, or lower the context or the number of requests.";
  }
  return "The largest cannot run. Raise memory.device_budget, or lower the context.";
}

void WriteText(const std::vector<Need>& needs, const Total& total, uint64_t budget,
               const PlanOptions& options, std::ostream& out) {
  out << fmt::format("{} requests at once of up to {} tokens each\n\n", options.concurrent,
                     options.context);
  out << fmt::format("{:<28} {:>8} {:>11} {:>11} {:>11} {:>11}\n", "MODEL", "CONTEXT", "WEIGHTS",
                     "KV/REQUEST", "KV", "WORKSPACE");
  for (const Need& need : needs) {
    out << fmt::format("{:<28} {:>8} {:>11} {:>11} {:>11} {:>11}\n", need.model, need.context,
                       FormatBytes(need.weights), FormatBytes(need.kv_request),
                       FormatBytes(need.kv), FormatBytes(need.workspace));
    if (need.devices > 1) {
      out << fmt::format("  on each of {} devices\n", need.devices);
    }
    if (need.adapter_names.empty()) continue;
    const std::string names = fmt::format("{}", fmt::join(need.adapter_names, ", "));
    out << fmt::format("  with {:<30} {:>11}\n", names, FormatBytes(need.adapters));
  }
  out << fmt::format(
      "\nall at once      {:>11}\nthe largest one  {:>11}\nbudget           {:>11}\n\n"
      "{}\n",
      FormatBytes(total.all), FormatBytes(total.largest), FormatBytes(budget),
      Verdict(total, budget));
}

// Leaves the models of these names, and the bases of adapters among them.
void KeepNamed(std::vector<std::string> names, std::vector<server::ModelConfig>* models) {
  const auto named = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const server::ModelConfig& model : *models) {
    if (!model.base.empty() && named(model.name)) names.push_back(model.base);
  }
  std::erase_if(*models, [&](const auto& model) { return !named(model.name); });
}

absl::Status Plan(const PlanOptions& options, Invocation* invocation) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation->io));
  if (options.context < 1 || options.concurrent < 1) {
    return absl::InvalidArgumentError("--context and --concurrent are 1 or more");
  }
  server::Config& config = loaded.config;
  for (const std::string& name : options.models) {
    server::ModelConfig model;
    model.name = name;
    model.source = name;
    const bool known = std::any_of(config.models.begin(), config.models.end(),
                                   [&](const auto& each) { return each.name == name; });
    if (!known) config.models.push_back(std::move(model));
  }
  if (!options.models.empty()) KeepNamed(options.models, &config.models);
  if (config.models.empty()) {
    return absl::InvalidArgumentError("name models, or list them in terrace.yaml");
  }
  // What is planned may be more than this machine has; nothing is allocated.
  ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime, Runtime::Create(config));
  runtime->set_write_images(false);
  std::vector<Need> needs;
  for (const server::ModelConfig& model : config.models) {
    if (!model.base.empty()) continue;  // counted with its base
    ASSIGN_OR_RETURN(Need need, NeedOf(config, model, options, runtime.get()));
    needs.push_back(std::move(need));
  }
  const Total total = Sum(needs);
  const uint64_t budget = runtime->device_budget_bytes();
  if (invocation->json) {
    WriteJson(needs, total, budget, *invocation->io->out);
  } else {
    WriteText(needs, total, budget, options, *invocation->io->out);
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<PlanOptions>();  // lives as long as the parser's callbacks
  Command command = root.Add(
      "plan", "Say what models need of device memory: weights, KV cache, workspace; and what fits",
      [invocation, options] { return Plan(*options, invocation); });
  command.Argument("models", &options->models,
                   {"MODEL", "Models (default: those of the configuration)"});
  command.Option("--context", &options->context, {"TOKENS", "Of each request (default 4096)"});
  command.Option("--concurrent", &options->concurrent, {"N", "Requests at once (default 1)"});
  options->config.AddTo(command, {"memory", "storage", "scheduler", "kv", "device"});
  options->config.AddModels(command);
}

}  // namespace terrace::cli
