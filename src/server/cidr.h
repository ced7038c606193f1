// Lists of networks that may call, as 10.0.0.0/8 or 2001:db8::/32 or single addresses.
#ifndef TERRACE_SERVER_CIDR_H_
#define TERRACE_SERVER_CIDR_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::server {

class CidrList {
 public:
  // From entries with commas or spaces between; InvalidArgument names the one that is not a
  // network. Empty text gives a list that allows everyone.
  static absl::StatusOr<CidrList> Parse(std::string_view text);

  bool empty() const { return nets_.empty(); }
  // True if the list is empty or `address` (text) is in one of its networks. IPv4 addresses inside
  // IPv6 (::ffff:10.0.0.1) count as what they hold.
  bool Allows(std::string_view address) const;
  std::string ToString() const;

 private:
  struct Net {
    std::array<uint8_t, 16> address{};  // IPv4 as ::ffff:a.b.c.d
    int bits = 128;
    std::string text;
  };
  std::vector<Net> nets_;
};

// True for 127.0.0.0/8 and ::1.
bool IsLoopbackAddress(std::string_view address);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_CIDR_H_
