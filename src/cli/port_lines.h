// What a server that has begun says of its ports. Plain data.
#ifndef TERRACE_CLI_PORT_LINES_H_
#define TERRACE_CLI_PORT_LINES_H_

#include <cstdint>
#include <optional>
#include <string>

namespace terrace::cli {

struct PortLines {
  std::string host;
  std::string admin_host;
  bool secure = false;  // TLS on all but the metrics
  uint16_t port = 0;
  std::optional<uint16_t> grpc;
  std::optional<uint16_t> metrics;
  std::optional<uint16_t> admin;

  // A line each, for people.
  std::string Text() const;
  // One line; null for a port that is off.
  std::string Json() const;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_PORT_LINES_H_
