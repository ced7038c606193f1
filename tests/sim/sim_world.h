// The seeded simulator: the real tier manager over a stepped device, a fake disk and executors that
// run when told, on a manual clock and in one thread. A seed settles everything: models, arrivals,
// the order of completions, and the faults. After every step all invariants are checked.
#ifndef TERRACE_TESTS_SIM_SIM_WORLD_H_
#define TERRACE_TESTS_SIM_SIM_WORLD_H_

#include <cstdint>
#include <string>

namespace terrace::sim {

struct SimOptions {
  uint64_t seed = 1;
  int operations = 120;  // of the callers; each takes many steps of the world
};

struct SimReport {
  std::string failure;  // empty: clean
  uint64_t steps = 0;
  uint64_t served = 0;
  uint64_t refused = 0;
  uint64_t loads = 0;
  uint64_t loads_from_host = 0;
  uint64_t evictions = 0;
  uint64_t faults = 0;
  uint64_t checksum_failures = 0;
};

SimReport RunSimulation(const SimOptions& options);

}  // namespace terrace::sim

#endif  // TERRACE_TESTS_SIM_SIM_WORLD_H_
