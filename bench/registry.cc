// The list of benchmarks.
#include "bench.h"

namespace terrace::bench {
namespace {

constexpr Bench kBenches[] = {
    {"engine", "prefill and decode by format and batch, as shares of the machine's limits",
     RunEngine},
    {"switch", "switching between models: in memory and from disk", RunSwitch},
    {"kv", "conversations that return, from each tier; streams beside a long prompt", RunKv},
};

}  // namespace

std::span<const Bench> Benches() { return kBenches; }

}  // namespace terrace::bench
