// The console's files (web/), as the build put them into the program. Constant data.
#ifndef TERRACE_SERVER_WEB_ASSETS_H_
#define TERRACE_SERVER_WEB_ASSETS_H_

#include <cstddef>
#include <span>
#include <string_view>

namespace terrace::server {

struct WebAsset {
  std::string_view path;  // "/index.html"
  const unsigned char* data;
  size_t bytes;
};

std::span<const WebAsset> WebAssets();

}  // namespace terrace::server

#endif  // TERRACE_SERVER_WEB_ASSETS_H_
