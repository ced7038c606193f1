// The list of benchmarks.
#include "bench.h"

namespace terrace::bench {
namespace {

constexpr Bench kBenches[] = {
    {"switch", "switching between models: in memory and from disk", RunSwitch},
};

}  // namespace

std::span<const Bench> Benches() { return kBenches; }

}  // namespace terrace::bench
