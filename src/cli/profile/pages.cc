// terrace profile pages: which 4 KiB pages of a running model's weights are read, and how often.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "cli/ask.h"
#include "cli/cli.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

constexpr int kCells = 48;
// From never to as often as the page that is read most, by powers of it.
constexpr std::string_view kShades = " .:-=+*#%@";

struct ProfileOptions {
  std::string url = "http://127.0.0.1:8003";
  std::string ca, model;
};

char Shade(double reads, double most) {
  if (reads <= 0) return kShades[0];
  const double share = std::log1p(reads) / std::log1p(most);
  const auto last = static_cast<double>(kShades.size() - 1);
  return kShades[static_cast<size_t>(std::clamp(std::ceil(share * last), 1.0, last))];
}

absl::Status Profile(const ProfileOptions& options, Invocation* invocation) {
  ASSIGN_OR_RETURN(
      const json::value answer,
      AskAdmin(options.url, fmt::format("/admin/pages?cells={}&model={}", kCells, options.model),
               {.key = invocation->io->Variable("TERRACE_KEY"), .ca = options.ca}));
  std::ostream& out = *invocation->io->out;
  if (invocation->json) {
    out << json::serialize(answer) << "\n";
    return absl::OkStatus();
  }
  const json::array& segments = answer.as_object().at("segments").as_array();
  double most = 1;
  for (const json::value& segment : segments) {
    for (const json::value& reads : segment.as_object().at("reads").as_array()) {
      most = std::max(most, reads.to_number<double>());
    }
  }
  out << fmt::format("{:<16} {:>8} {:>8}  reads of its pages, from '{}' (never) to '{}' ({:.0f})\n",
                     "segment", "pages", "read", kShades.front(), kShades.back(), most);
  for (const json::value& value : segments) {
    const json::object& segment = value.as_object();
    std::string map;
    for (const json::value& reads : segment.at("reads").as_array()) {
      map.push_back(Shade(reads.to_number<double>(), most));
    }
    out << fmt::format("{:<16} {:>8} {:>8}  |{}|\n",
                       std::string_view(segment.at("name").as_string()),
                       segment.at("pages").to_number<uint64_t>(),
                       segment.at("read_pages").to_number<uint64_t>(), map);
  }
  return absl::OkStatus();
}

}  // namespace

void AddProfilePages(Command profile, Invocation* invocation) {
  auto options = std::make_shared<ProfileOptions>();  // lives as long as the parser's callbacks
  Command command =
      profile.Add("pages", "Which pages of a model's weights are read (memory.trace_pages: on)",
                  [invocation, options] { return Profile(*options, invocation); });
  command.Argument("model", &options->model, {"MODEL", "Its name, as the server calls it", true});
  command.Option("--url", &options->url,
                 {"URL", "Of the admin port (default http://127.0.0.1:8003)"});
  command.Option("--ca", &options->ca,
                 {"FILE", "Certificates (PEM) that may sign the server's; else the system's"});
}

}  // namespace terrace::cli
