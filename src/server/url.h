// The little of URLs that the server itself needs.
#ifndef TERRACE_SERVER_URL_H_
#define TERRACE_SERVER_URL_H_

#include <string>
#include <string_view>

namespace terrace::server {

// Splits a request target ("/v1/models/a%20b?x=1", or the absolute form) into its decoded path and
// its raw query. False if it is not one.
bool SplitTarget(std::string_view target, std::string* path, std::string* query);

// True for "localhost", 127.0.0.0/8 and [::1], with or without a port.
bool IsLoopbackAuthority(std::string_view authority);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_URL_H_
