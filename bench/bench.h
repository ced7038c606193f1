// What a benchmark is: a named function that measures laws of performance and reports a row for
// each, always beside a reference measured in the same run on the same machine. bench/registry.cc
// lists them all; `terrace_bench NAME` runs one.
#ifndef TERRACE_BENCH_BENCH_H_
#define TERRACE_BENCH_BENCH_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace terrace::bench {

// Which side of the goal is good.
enum class Goal : uint8_t { kNone, kAtLeast, kAtMost };

struct Row {
  std::string law;  // what was measured, in words
  double measured = 0;
  std::string unit;                 // "GB/s", "tokens/s", "ms"
  std::optional<double> reference;  // in the same unit: the machine's limit, a peer, the hot case
  std::string reference_name;       // what that is; shown in the table only
  // With a reference the goal is for measured / reference, else for `measured` itself.
  Goal goal_kind = Goal::kNone;
  double goal = 0;

  std::optional<double> ratio() const;
  // Absent if there is no goal.
  std::optional<bool> holds() const;
  std::string goal_text() const;  // ">= 0.8", or ""
};

struct Context {
  const Clock* clock = nullptr;
  std::string cache_folder;  // generated models are kept here between runs
  int threads = 1;
  bool quick = false;  // fewer repetitions and smaller sizes: to see that it runs
  // What to measure, for benchmarks that measure much: formats by name in any case, empty for all,
  // and a part of the law's text, empty for all.
  std::vector<std::string> formats;
  std::string only;
  std::string peer_library;  // llama.cpp's, for comparison; empty: looked for (llama_peer.h)
  bool compare = true;
  // Progress, a line each, to standard error.
  std::function<void(std::string_view)> say;
  // Takes each row as soon as it is measured.
  std::function<void(const Row&)> report;

  bool WantsFormat(std::string_view format) const;
  bool WantsLaw(std::string_view law) const { return law.find(only) != std::string_view::npos; }
};

struct Bench {
  std::string_view name;
  std::string_view help;
  absl::Status (*run)(const Context& context);  // calls context.report
};

// All benchmarks, in the order in which `terrace_bench` lists them.
std::span<const Bench> Benches();

// Each in a file of its own.
absl::StatusOr<std::vector<Row>> RunSwitch(const Context& context);
absl::StatusOr<std::vector<Row>> RunLink(const Context& context);
absl::StatusOr<std::vector<Row>> RunKv(const Context& context);
absl::StatusOr<std::vector<Row>> RunStreams(const Context& context);
absl::StatusOr<std::vector<Row>> RunArbiter(const Context& context);
absl::StatusOr<std::vector<Row>> RunFrontend(const Context& context);
absl::Status RunEngine(const Context& context);
absl::Status RunGpu(const Context& context);
absl::StatusOr<std::vector<Row>> RunZipf(const Context& context);
absl::StatusOr<std::vector<Row>> RunStream(const Context& context);
absl::StatusOr<std::vector<Row>> RunGrammar(const Context& context);

// {"law","measured","unit","reference","ratio","goal","holds"}; null for absent.
std::string RowJson(const Row& row);
// One line of a table whose columns have fixed widths, so that rows can be written one by one.
std::string RowLine(const Row& row);
std::string HeaderLine();

double Median(std::vector<double> values);

}  // namespace terrace::bench

#endif  // TERRACE_BENCH_BENCH_H_
