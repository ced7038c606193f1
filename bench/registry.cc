// The list of benchmarks.
#include "bench.h"

namespace terrace::bench {
namespace {

constexpr Bench kBenches[] = {
    {"engine", "prefill and decode by format and batch, as shares of the machine's limits",
     RunEngine},
    {"switch", "switching between models: in memory and from disk", RunSwitch},
    {"zipf", "20 models, memory for five: eviction policies on a trace and in a run", RunZipf},
    {"larger", "a model three times the budget, dense and with experts: bytes a token", RunStream},
    {"kv", "conversations that return, from each tier", RunKv},
    {"streams", "streams that share a model; prompts that arrive beside them", RunStreams},
    {"arbiter", "the decision what runs next, with 10,000 queued requests", RunArbiter},
    {"frontend", "parsing, keys, template, tokenizer and limits, without an engine", RunFrontend},
};

}  // namespace

std::span<const Bench> Benches() { return kBenches; }

}  // namespace terrace::bench
