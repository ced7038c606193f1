// terrace_sim [--seeds N] [--seed S] [--operations K]: runs the simulator for N seeds from S on;
// the first failing seed is printed and ends the run with status 1.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "sim_world.h"

int main(int argc, char** argv) {
  uint64_t first = 1;
  uint64_t count = 200;
  terrace::sim::SimOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (key == "--seeds") {
      count = value;
    } else if (key == "--seed") {
      first = value;
      count = 1;
    } else if (key == "--operations") {
      options.operations = static_cast<int>(value);
    } else {
      std::fprintf(stderr, "usage: terrace_sim [--seeds N] [--seed S] [--operations K]\n");
      return 2;
    }
  }
  terrace::sim::SimReport sum;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    options.seed = seed;
    const terrace::sim::SimReport report = terrace::sim::RunSimulation(options);
    sum.steps += report.steps;
    sum.served += report.served;
    sum.refused += report.refused;
    sum.loads += report.loads;
    sum.loads_from_host += report.loads_from_host;
    sum.evictions += report.evictions;
    sum.faults += report.faults;
    sum.checksum_failures += report.checksum_failures;
    if (!report.failure.empty()) {
      std::printf("seed %llu failed: %s\nreplay: terrace_sim --seed %llu --operations %d\n",
                  static_cast<unsigned long long>(seed), report.failure.c_str(),
                  static_cast<unsigned long long>(seed), options.operations);
      return 1;
    }
  }
  auto show = [](const char* name, uint64_t value) {
    std::printf("%-18s %llu\n", name, static_cast<unsigned long long>(value));
  };
  show("seeds", count);
  show("steps", sum.steps);
  show("segments served", sum.served);
  show("refused", sum.refused);
  show("loads", sum.loads);
  show("from the host", sum.loads_from_host);
  show("evictions", sum.evictions);
  show("faults", sum.faults);
  show("bad checksums", sum.checksum_failures);
  std::printf("clean\n");
  return 0;
}
