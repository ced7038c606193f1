// The parts of the benchmark "switch" that stand in a file of their own. Each adds its rows;
// `hot_us` is the first token's time of a model that is there.
#ifndef TERRACE_BENCH_SWITCH_BENCH_H_
#define TERRACE_BENCH_SWITCH_BENCH_H_

#include <vector>

#include "absl/status/status.h"
#include "bench.h"

namespace terrace::bench {

absl::Status SwitchFromObject(const Context& context, double hot_us, std::vector<Row>* rows);
absl::Status SwitchOverLink(const Context& context, std::vector<Row>* rows);
// What decoding loses while another model is loaded.
absl::Status DecodeBesideLoad(const Context& context, std::vector<Row>* rows);

}  // namespace terrace::bench

#endif  // TERRACE_BENCH_SWITCH_BENCH_H_
