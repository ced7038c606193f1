#include "cli/port_lines.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string_view>

namespace terrace::cli {
namespace {

std::string Url(bool secure, const std::string& host, uint16_t port, std::string_view path) {
  const bool bare = host.find(':') == std::string::npos;
  return fmt::format("{}://{}:{}{}", secure ? "https" : "http",
                     bare ? host : fmt::format("[{}]", host), port, path);
}

}  // namespace

std::string PortLines::Text() const {
  std::string out = fmt::format("API      {}\n", Url(secure, host, port, "/v1"));
  if (grpc) out += fmt::format("gRPC     {}:{}\n", host, *grpc);
  if (metrics) out += fmt::format("metrics  {}\n", Url(false, host, *metrics, "/metrics"));
  if (admin) out += fmt::format("console  {}\n", Url(secure, admin_host, *admin, "/"));
  return out;
}

std::string PortLines::Json() const {
  auto value = [](const std::optional<uint16_t>& each) {
    return each ? boost::json::value(*each) : nullptr;
  };
  const boost::json::object line = {{"host", boost::json::string(host)},
                                    {"port", port},
                                    {"metrics_port", value(metrics)},
                                    {"grpc_port", value(grpc)},
                                    {"admin_port", value(admin)}};
  return boost::json::serialize(line) + "\n";
}

}  // namespace terrace::cli
