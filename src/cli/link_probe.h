// Bare measurements of the links that the tier manager uses: what it can be held to.
#ifndef TERRACE_CLI_LINK_PROBE_H_
#define TERRACE_CLI_LINK_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"

namespace terrace::cli {

// Bytes a second of copies of memory much larger than any cache, read and written bytes together
// counted once.
double MeasureMemoryCopy(const Clock& clock);

struct DiskProbe {
  bool direct = false;                // past the page cache
  double sequential_bytes_per_s = 0;  // 4 MiB reads, 8 in flight
  double random_reads_per_s = 0;      // 4 KiB reads, 64 in flight
  double latency_us = 0;              // median of single 4 KiB reads
};
// Writes a file of `bytes` in `folder`, reads it for about `budget_us` for each measure, and
// removes it. Errors of the disk as they are.
absl::StatusOr<DiskProbe> MeasureDisk(const std::string& folder, uint64_t bytes, int64_t budget_us,
                                      const Clock& clock);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_LINK_PROBE_H_
