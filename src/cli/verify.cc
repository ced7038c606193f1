// terrace verify: checks this machine's kernels against the reference.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "cli/cli.h"
#include "device/cpu/cpu_info.h"
#include "device/cpu/thread_team.h"
#include "ops/verify.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct VerifyCommand {
  ops::VerifyOptions options;
  int32_t threads = 0;
  bool no_rates = false;
};

void WriteText(const std::vector<ops::VerifyRow>& rows, std::ostream& out) {
  out << fmt::format("{:<12} {:<20} {:<8} {:>10} {:>10} {:<6} {:>9} {:<6} {:>6}\n", "variant",
                     "operator", "format", "error", "tolerance", "holds", "rate", "", "share");
  for (const ops::VerifyRow& row : rows) {
    out << fmt::format("{:<12} {:<20} {:<8} {:>10.2e} {:>10.2e} {:<6}", row.variant, row.op,
                       row.dtype, row.worst_error, row.tolerance, row.holds ? "yes" : "NO");
    if (!row.unit.empty()) {
      out << fmt::format(" {:>9.1f} {:<6} {:>5.0f}%", row.rate, row.unit, row.share * 100);
    }
    out << "\n";
  }
}

void WriteJson(const std::vector<ops::VerifyRow>& rows, std::ostream& out) {
  json::array array;
  for (const ops::VerifyRow& row : rows) {
    json::object object = {{"variant", row.variant},     {"op", row.op},
                           {"dtype", row.dtype},         {"worst_error", row.worst_error},
                           {"tolerance", row.tolerance}, {"holds", row.holds}};
    const bool measured = !row.unit.empty();
    object["rate"] = measured ? json::value(row.rate) : json::value();
    object["unit"] = measured ? json::value(row.unit) : json::value();
    object["share"] = measured ? json::value(row.share) : json::value();
    array.push_back(std::move(object));
  }
  out << json::serialize(array) << "\n";
}

absl::Status VerifyOperators(const Invocation& invocation, VerifyCommand command) {
  if (command.threads < 0 || command.threads > 1024) {
    return absl::InvalidArgumentError("--threads: not between 1 and 1024");
  }
  command.options.measure = !command.no_rates;
  ThreadTeam team(command.threads > 0 ? command.threads : CpuCount());
  ASSIGN_OR_RETURN(std::vector<ops::VerifyRow> rows, ops::VerifyOps(command.options, &team));
  (invocation.json ? WriteJson : WriteText)(rows, *invocation.io->out);
  size_t wrong = 0;
  for (const ops::VerifyRow& row : rows) wrong += row.holds ? 0 : 1;
  if (wrong == 0) return absl::OkStatus();
  return absl::InternalError(
      fmt::format("{} of {} rows are beyond their tolerance: do not serve with these kernels",
                  wrong, rows.size()));
}

}  // namespace

void AddVerifyCommand(Command root, Invocation* invocation) {
  Command verify = root.AddGroup("verify", "Check this machine's kernels, models and servers");
  auto options = std::make_shared<VerifyCommand>();  // lives as long as the parser's callbacks
  Command ops = verify.Add(
      "ops",
      "Run every operator and weight format against the reference, and time it; fails if one is "
      "beyond its tolerance",
      [invocation, options] { return VerifyOperators(*invocation, *options); });
  ops.Option("--variant", &options->options.variant,
             {"NAME", "Only these kernels (default: all that run here)"});
  ops.Option("--threads", &options->threads,
             {"NUMBER", "Threads (default: the processors that this process may use)"});
  ops.Flag("--no-rates", &options->no_rates, "Check only, do not measure");
  AddVerifyPerplexity(verify, invocation);
  AddVerifyParallel(verify, invocation);
  AddVerifyContext(verify, invocation);
  AddVerifyStability(verify, invocation);
}

}  // namespace terrace::cli
