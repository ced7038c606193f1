// What a server makes of its configuration beside the parts that read it themselves.
#ifndef TERRACE_CLI_SERVE_CONFIG_H_
#define TERRACE_CLI_SERVE_CONFIG_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/scheduler.h"
#include "server/config.h"

namespace terrace {
class Logger;
}

namespace terrace::cli {

// Without models in the configuration, those of the store are served under their own names.
// InvalidArgument if there are none either.
absl::Status AddModelsOfStore(server::Config* config);

// All but the KV cache and the seed.
scheduler::SchedulerOptions Scheduling(const server::Config& config);

scheduler::TenantTable Tenants(const server::Config& config);

// Lets this process have many descriptors, as many connections need them: the hard limit is what
// the administrator allows. Puts it, and with `supervised` its parent, under the limits of
// `server.cgroup`; the log says so, or why that cannot be.
void PrepareProcess(const server::Config& config, bool supervised, Logger* log);

// Words with commas between, without the spaces around them.
std::vector<std::string> SplitList(std::string_view text);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_SERVE_CONFIG_H_
