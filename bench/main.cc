// terrace_bench: lists benchmarks, runs one, or writes the models that they run on.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "bench.h"
#include "device/cpu/cpu_info.h"
#include "generate_model.h"

namespace terrace::bench {
namespace {

std::string DefaultCacheFolder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return std::string(cache) + "/terrace-bench";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return std::string(home) + "/.cache/terrace-bench";
  }
  return (std::filesystem::temp_directory_path() / "terrace-bench").string();
}

void List(std::ostream& out) {
  for (const Bench& bench : Benches()) out << fmt::format("{:<10}  {}\n", bench.name, bench.help);
}

int Fail(const absl::Status& status) {
  std::cerr << fmt::format("terrace_bench: {}\n", Message(status));
  return 1;
}

int RunBench(const std::string& name, bool json, Context context) {
  for (const Bench& bench : Benches()) {
    if (bench.name != name) continue;
    // Each row is written when it is measured: a run that is cut short has shown what it had.
    bool first = true;
    context.report = [&](const Row& row) {
      if (json) {
        std::cout << (first ? "[\n" : ",\n") << RowJson(row) << std::flush;
      } else {
        if (first) std::cout << HeaderLine() << "\n";
        std::cout << RowLine(row) << std::endl;
      }
      first = false;
    };
    const absl::Status status = bench.run(context);
    if (json) std::cout << (first ? "[]\n" : "\n]\n") << std::flush;
    if (!status.ok()) return Fail(status);
    if (first) std::cerr << "terrace_bench: the filters leave nothing to measure\n";
    return first ? 1 : 0;
  }
  std::cerr << fmt::format("terrace_bench: no benchmark '{}'; there are:\n", name);
  List(std::cerr);
  return 2;
}

int Main(int argc, char** argv) {
  std::string name, cache = DefaultCacheFolder(), shape = "qwen3-0.6b", out;
  bool json = false;
  GenerateOptions generate;
  RealClock clock;
  Context context;
  context.clock = &clock;
  context.threads = CpuCount();
  context.say = [](std::string_view line) { std::cerr << line << std::endl; };

  CLI::App app("Measures Terrace against its laws of performance; without NAME, lists them.",
               "terrace_bench");
  app.add_option("name", name, "Benchmark to run")->type_name("NAME");
  app.add_flag("--json", json, "Write one JSON array");
  app.add_flag("--quick", context.quick, "Small and short: to see that it runs, not to measure");
  app.add_option("--threads", context.threads, "Threads that compute")->check(CLI::Range(1, 1024));
  app.add_option("--cache", cache, "Folder for generated models and their images")
      ->type_name("FOLDER");
  app.add_option("--formats", context.formats, "Formats to measure, such as q4_0,f16; else all")
      ->delimiter(',')
      ->type_name("NAMES");
  app.add_option("--only", context.only, "Measure only laws whose text has this in it")
      ->type_name("TEXT");
  app.add_option("--peer", context.peer_library,
                 "llama.cpp's library (libllama.so) to compare with; else looked for")
      ->type_name("FILE");
  app.add_flag("!--no-peer", context.compare, "Do not compare with llama.cpp");
  CLI::App* write = app.add_subcommand("generate", "Write a model with random weights");
  write->add_option("--shape", shape, "qwen3-0.6b, small, tiny, small-moe or medium-moe");
  write->add_option("--format", generate.format, "Q4_0, Q4_K_M, Q8_0, F16, BF16, F32 or W8A8");
  write->add_option("--seed", generate.seed, "Other seeds give other weights");
  write->add_option("--out", out, "File to write")->required()->type_name("FILE");
  CLI11_PARSE(app, argc, argv);

  context.cache_folder = std::filesystem::absolute(cache).string();
  if (write->parsed()) {
    absl::StatusOr<ModelShape> found = FindShape(shape);
    if (!found.ok()) return Fail(found.status());
    generate.shape = *found;
    absl::Status status = GenerateModel(generate, out);
    return status.ok() ? 0 : Fail(status);
  }
  if (name.empty()) {
    List(std::cout);
    return 0;
  }
  return RunBench(name, json, context);
}

}  // namespace
}  // namespace terrace::bench

int main(int argc, char** argv) { return terrace::bench::Main(argc, argv); }
