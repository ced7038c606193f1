// A small HTTP/1.1 server for tests, on a port of its own, that serves bytes in memory with ranges
// and fails on request: status codes, bodies cut short, stalls, ranges ignored.
#ifndef TERRACE_WEIGHTS_HTTP_TESTING_H_
#define TERRACE_WEIGHTS_HTTP_TESTING_H_

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../support/listener.h"
#include "absl/synchronization/mutex.h"
#include "base/text.h"
#include "fmt/format.h"

namespace terrace::weights {

struct Resource {
  std::string body;
  std::string etag = "\"v1\"";
  bool ranges = true;  // false: Range is ignored
  int fail_times = 0;  // answers `fail_code` this often first
  int fail_code = 503;
  std::string fail_headers;
  int cut_times = 0;  // closes after `cut_bytes` of a body this often
  size_t cut_bytes = 0;
  bool length = true;    // sends Content-Length
  int stall_ms = 0;      // before the body
  std::string redirect;  // answers 302 to this place
};

class HttpServer {
 public:
  HttpServer() {
    thread_ = std::thread([this] { Serve(); });
  }
  ~HttpServer() {
    stopping_ = true;
    listener_.End();
    thread_.join();
  }

  std::string url(const std::string& path = "") const {
    return fmt::format("http://127.0.0.1:{}{}", listener_.port(), path);
  }
  void Set(const std::string& path, Resource resource) {
    absl::MutexLock lock(&mutex_);
    resources_[path] = std::move(resource);
  }
  // Head of each request so far, lower case.
  std::vector<std::string> requests() {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  void Serve() {
    while (!stopping_) {
      int client = listener_.Accept();
      if (client < 0) break;
      std::string head;
      char buffer[4096];
      ssize_t got;
      while (head.find("\r\n\r\n") == std::string::npos &&
             (got = read(client, buffer, sizeof(buffer))) > 0) {
        head.append(buffer, static_cast<size_t>(got));
      }
      Answer(client, head);
      close(client);
    }
  }

  static std::string Field(const std::string& lower_head, const std::string& name) {
    size_t at = lower_head.find("\r\n" + name + ":");
    if (at == std::string::npos) return "";
    at += name.size() + 3;
    return std::string(StripSpace(lower_head.substr(at, lower_head.find("\r\n", at) - at)));
  }

  static void Send(int client, std::string_view text) {
    while (!text.empty()) {
      ssize_t sent = send(client, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }

  void Answer(int client, const std::string& head) {
    std::string path = head.substr(head.find(' ') + 1);
    path = path.substr(0, path.find(' '));
    std::string lower = ToLower(head);
    Resource resource;
    bool found = false, fail = false, cut = false;
    {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(lower);
      auto it = resources_.find(path);
      if (it != resources_.end()) {
        found = true;
        resource = it->second;
        fail = it->second.fail_times > 0;
        cut = !fail && it->second.cut_times > 0;
        it->second.fail_times -= fail;
        it->second.cut_times -= cut;
      }
    }
    auto simple = [&](int code, const std::string& headers) {
      Send(client,
           fmt::format("HTTP/1.1 {} X\r\n{}Content-Length: 4\r\nConnection: close\r\n\r\nbody",
                       code, headers));
    };
    if (!found) return simple(404, "");
    if (!resource.redirect.empty()) return simple(302, "Location: " + resource.redirect + "\r\n");
    if (fail) return simple(resource.fail_code, resource.fail_headers);
    std::string_view body = resource.body;
    std::string range = Field(lower, "range"), if_range = Field(lower, "if-range");
    size_t first = 0;
    std::string headers = resource.etag.empty() ? "" : "ETag: " + resource.etag + "\r\n";
    int code = 200;
    if (resource.ranges && range.starts_with("bytes=") &&
        (if_range.empty() || if_range == ToLower(resource.etag))) {
      first = std::stoul(range.substr(6));
      if (first >= body.size()) {
        return simple(416, fmt::format("{}Content-Range: bytes */{}\r\n", headers, body.size()));
      }
      code = 206;
      headers +=
          fmt::format("Content-Range: bytes {}-{}/{}\r\n", first, body.size() - 1, body.size());
      body.remove_prefix(first);
    }
    if (resource.length) headers += fmt::format("Content-Length: {}\r\n", body.size());
    Send(client, fmt::format("HTTP/1.1 {} X\r\n{}Connection: close\r\n\r\n", code, headers));
    for (int waited = 0; waited < resource.stall_ms && !stopping_; waited += 10) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    Send(client, cut ? body.substr(0, std::min(resource.cut_bytes, body.size())) : body);
  }

  const testing_support::Listener listener_;
  std::atomic<bool> stopping_{false};
  absl::Mutex mutex_;
  std::map<std::string, Resource> resources_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_HTTP_TESTING_H_
