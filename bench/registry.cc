// The list of benchmarks.
#include "base/status.h"
#include "bench.h"

namespace terrace::bench {
namespace {

// For benchmarks that return all rows together.
template <absl::StatusOr<std::vector<Row>> (*run)(const Context&)>
absl::Status AtEnd(const Context& context) {
  ASSIGN_OR_RETURN(const std::vector<Row> rows, run(context));
  for (const Row& row : rows) {
    if (context.WantsLaw(row.law)) context.report(row);
  }
  return absl::OkStatus();
}

constexpr Bench kBenches[] = {
    {"engine", "prefill and decode by format and batch, as shares of the machine's limits",
     RunEngine},
    {"gpu", "an accelerator: decode, prefill and switching as shares of its limits", RunGpu},
    {"switch", "switching between models: in memory, from disk, from an object store, over a link",
     AtEnd<RunSwitch>},
    {"link", "a cold model behind a link of set speed: loading beside computing", AtEnd<RunLink>},
    {"zipf", "20 models, memory for five: eviction policies on a trace and in a run",
     AtEnd<RunZipf>},
    {"larger", "a model three times the budget, dense and with experts: bytes a token",
     AtEnd<RunStream>},
    {"kv", "conversations that return, from each tier", AtEnd<RunKv>},
    {"streams", "streams that share a model; prompts that arrive beside them", AtEnd<RunStreams>},
    {"arbiter", "the decision what runs next, with 10,000 queued requests", AtEnd<RunArbiter>},
    {"frontend", "parsing, keys, template, tokenizer and limits, without an engine",
     AtEnd<RunFrontend>},
    {"grammar", "what a constraint costs a token, for JSON schemas of 2 KB", AtEnd<RunGrammar>},
};

}  // namespace

std::span<const Bench> Benches() { return kBenches; }

}  // namespace terrace::bench
