#include "server/url.h"

#include <cstddef>

#include "base/text.h"

namespace terrace::server {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool SplitTarget(std::string_view target, std::string* path, std::string* query) {
  if (target == "*") {
    path->assign(1, '*');
    query->clear();
    return true;
  }
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t slash = target.find('/');
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
    break;
  }
  if (target.empty() || target[0] != '/') return false;
  const size_t question = target.find('?');
  query->assign(question == std::string_view::npos ? "" : target.substr(question + 1));
  target = target.substr(0, question);
  path->clear();
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path->push_back(target[i]);
      continue;
    }
    if (i + 2 >= target.size()) return false;
    const int high = HexDigit(target[i + 1]), low = HexDigit(target[i + 2]);
    if (high < 0 || low < 0) return false;
    path->push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return IsValidUtf8(*path);
}

bool IsLoopbackAuthority(std::string_view authority) {
  std::string_view host = authority;
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end != std::string_view::npos && host.substr(0, end + 1) == "[::1]";
  }
  host = host.substr(0, host.find(':'));
  if (host == "localhost") return true;
  if (!host.starts_with("127.")) return false;
  // An address and not a name such as 127.0.0.1.example.org.
  return host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace terrace::server
