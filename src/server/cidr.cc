#include "server/cidr.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/text.h"

namespace terrace::server {
namespace {

using Bytes = std::array<uint8_t, 16>;

std::optional<Bytes> ReadAddress(std::string_view text, bool* v4) {
  const std::string zero_ended(text);
  Bytes out{};
  in_addr four;
  *v4 = inet_pton(AF_INET, zero_ended.c_str(), &four) == 1;
  if (*v4) {
    out[10] = out[11] = 0xff;
    std::memcpy(out.data() + 12, &four, 4);
    return out;
  }
  if (inet_pton(AF_INET6, zero_ended.c_str(), out.data()) == 1) return out;
  return std::nullopt;
}

bool SameBits(const Bytes& a, const Bytes& b, int bits) {
  const int whole = bits / 8;
  if (!std::equal(a.begin(), a.begin() + whole, b.begin())) return false;
  if (bits % 8 == 0) return true;
  const auto mask = static_cast<uint8_t>(0xff << (8 - bits % 8));
  return ((a[static_cast<size_t>(whole)] ^ b[static_cast<size_t>(whole)]) & mask) == 0;
}

}  // namespace

absl::StatusOr<CidrList> CidrList::Parse(std::string_view text) {
  CidrList list;
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), ' ', ',');
  for (const std::string_view part : Split(spaced, ',')) {
    if (part.empty()) continue;
    Net net;
    net.text = part;
    const size_t slash = part.find('/');
    bool v4 = false;
    const auto address = ReadAddress(part.substr(0, slash), &v4);
    const int most = v4 ? 32 : 128;
    int bits = most;
    bool good = address.has_value();
    if (good && slash != std::string_view::npos) {
      const std::string_view digits = part.substr(slash + 1);
      const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
      good = ec == std::errc() && end == digits.data() + digits.size() && bits >= 0 && bits <= most;
    }
    if (!good) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is not a network: write an address, or one with a length such as 10.0.0.0/8 or "
          "2001:db8::/32",
          part));
    }
    net.address = *address;
    net.bits = v4 ? bits + 96 : bits;
    list.nets_.push_back(std::move(net));
  }
  return list;
}

bool CidrList::Allows(std::string_view address) const {
  if (nets_.empty()) return true;
  bool v4 = false;
  const auto bytes = ReadAddress(address.substr(0, address.find('%')), &v4);  // without a scope
  if (!bytes) return false;
  return std::any_of(nets_.begin(), nets_.end(),
                     [&](const Net& net) { return SameBits(net.address, *bytes, net.bits); });
}

std::string CidrList::ToString() const {
  std::string out;
  for (const Net& net : nets_) out += (out.empty() ? "" : ", ") + net.text;
  return out;
}

bool IsLoopbackAddress(std::string_view address) {
  bool v4 = false;
  const auto bytes = ReadAddress(address, &v4);
  if (!bytes) return false;
  if ((*bytes)[10] == 0xff && (*bytes)[11] == 0xff) return (*bytes)[12] == 127;
  Bytes one{};
  one[15] = 1;
  return *bytes == one;
}

}  // namespace terrace::server
