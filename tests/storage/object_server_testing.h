// A small HTTP/1.1 server for tests, on a port of its own, that serves objects in memory by ranges
// as an object store does (ETag, If-Match, versions), keeps what it was asked, and fails on
// request: refusals, resets in mid-body, stalls, bodies cut short, wrong bytes.
#ifndef TERRACE_STORAGE_OBJECT_SERVER_TESTING_H_
#define TERRACE_STORAGE_OBJECT_SERVER_TESTING_H_

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/listener.h"
#include "absl/synchronization/mutex.h"
#include "base/text.h"

namespace terrace::storage {

struct FakeObject {
  std::string body;
  std::string etag = "\"v1\"";
  std::string version;  // served under "?versionId=" too
};

struct Fault {
  enum Kind {
    kRefuse,  // answers `code`
    kReset,   // half of the body, then a reset
    kStall,   // headers, then nothing until the client goes
    kCut,     // half of the body, then the end of the connection
    kShort,   // an answer for half of the range, whole in itself
    kLess,    // half of the body, and a length that agrees, under the headers of the whole range
    kMore,    // a body and length that go on after the range
    kWrong,   // one byte of the body changed
    kSilent,  // no answer at all until the client goes
  };
  Kind kind = kRefuse;
  int times = 1;
  std::optional<uint64_t> offset;  // of the range; else any request
  int code = 503;
  std::string headers;  // of a refusal, whole lines
  std::string body;
};

struct SeenRequest {
  std::string method, target;
  std::vector<std::pair<std::string, std::string>> headers;  // lower-case names
  uint64_t first = 0, last = 0;                              // of the range
  bool ranged = false;

  std::string Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return "";
  }
};

class FakeObjectServer {
 public:
  FakeObjectServer() {
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~FakeObjectServer() {
    stopping_ = true;
    listener_.End();
    acceptor_.join();
    for (std::thread& thread : connections_) thread.join();
  }

  uint16_t port() const { return listener_.port(); }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port()); }

  // `path` with its leading '/', escaped as it comes over the wire, without a query.
  void Put(const std::string& path, FakeObject object) {
    absl::MutexLock lock(&mutex_);
    if (!object.version.empty()) objects_[path + "?versionId=" + object.version] = object;
    objects_[path] = std::move(object);
  }
  // Serves `text` for this very target (path and query).
  void PutText(const std::string& target, std::string text) {
    absl::MutexLock lock(&mutex_);
    texts_[target] = std::move(text);
  }
  void Add(Fault fault) {
    absl::MutexLock lock(&mutex_);
    faults_.push_back(std::move(fault));
  }
  // Called with each request before it is answered, on any thread.
  void OnRequest(std::function<void(const SeenRequest&)> hook) {
    absl::MutexLock lock(&mutex_);
    hook_ = std::move(hook);
  }
  std::vector<SeenRequest> seen() {
    absl::MutexLock lock(&mutex_);
    return seen_;
  }
  // How often the range at `offset` was asked for (more than the one byte that a Stat asks for).
  int CountAt(uint64_t offset) {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(std::count_if(seen_.begin(), seen_.end(), [&](const SeenRequest& r) {
      return r.ranged && r.first == offset && r.last > offset;
    }));
  }
  int most_in_flight() const { return most_in_flight_; }

 private:
  void Accept() {
    for (;;) {
      int fd = listener_.Accept();
      if (fd < 0) {
        if (stopping_) return;
        continue;
      }
      connections_.emplace_back([this, fd] {
        while (Answer(fd)) {
        }
        close(fd);
      });
    }
  }

  bool WaitReadable(int fd) {
    while (!stopping_) {
      pollfd waiting = {fd, POLLIN, 0};
      if (poll(&waiting, 1, 20) > 0) return true;
    }
    return false;
  }

  std::optional<SeenRequest> Read(int fd) {
    std::string text;
    while (text.find("\r\n\r\n") == std::string::npos) {
      char buffer[4096];
      if (!WaitReadable(fd)) return std::nullopt;
      ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got <= 0) return std::nullopt;
      text.append(buffer, static_cast<size_t>(got));
    }
    SeenRequest request;
    auto lines = Split(text, '\n');
    auto words = Split(StripSpace(lines[0]), ' ');
    request.method = words[0];
    request.target = words[1];
    for (std::string_view line : lines) {
      size_t colon = line.find(": ");
      if (colon == std::string_view::npos) continue;
      request.headers.emplace_back(ToLower(line.substr(0, colon)),
                                   std::string(StripSpace(line.substr(colon + 2))));
    }
    std::string range = request.Header("range");
    if (range.starts_with("bytes=")) {
      const char* end = range.data() + range.size();
      auto parsed = std::from_chars(range.data() + 6, end, request.first);
      std::from_chars(parsed.ptr + 1, end, request.last);
      request.ranged = true;
    }
    return request;
  }

  static bool Send(int fd, std::string_view text) {
    while (!text.empty()) {
      ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  static bool Reply(int fd, int code, std::string_view headers, std::string_view body) {
    return Send(fd, fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n{}\r\n", code, body.size(),
                                headers)) &&
           Send(fd, body);
  }

  std::optional<Fault> TakeFault(const SeenRequest& request) {
    absl::MutexLock lock(&mutex_);
    for (Fault& fault : faults_) {
      // A Stat's one byte is not the range at 0 that a test means.
      bool fits = !fault.offset || (request.ranged && request.first == *fault.offset &&
                                    request.last > request.first);
      if (fault.times > 0 && fits) {
        --fault.times;
        return fault;
      }
    }
    return std::nullopt;
  }

  // One request; false if the connection ends.
  bool Answer(int fd) {
    auto request = Read(fd);
    if (!request) return false;
    std::function<void(const SeenRequest&)> hook;
    {
      absl::MutexLock lock(&mutex_);
      seen_.push_back(*request);
      hook = hook_;
      ++in_flight_;
      most_in_flight_ = std::max<int>(most_in_flight_, in_flight_);
    }
    if (hook) hook(*request);
    bool goes_on = Serve(fd, *request, TakeFault(*request));
    absl::MutexLock lock(&mutex_);
    --in_flight_;
    return goes_on;
  }

  bool Serve(int fd, const SeenRequest& request, const std::optional<Fault>& fault) {
    if (fault && fault->kind == Fault::kSilent) return WaitReadable(fd) && false;
    if (fault && fault->kind == Fault::kRefuse) {
      return Reply(fd, fault->code, fault->headers, fault->body);
    }
    FakeObject object;
    {
      absl::MutexLock lock(&mutex_);
      if (auto text = texts_.find(request.target); text != texts_.end()) {
        return Reply(fd, 200, "", text->second);
      }
      auto found = objects_.find(request.target);
      if (found == objects_.end())
        return Reply(fd, 404, "", "<Error><Code>NoSuchKey</Code></Error>");
      object = found->second;
    }
    std::string match = request.Header("if-match");
    if (!match.empty() && match != object.etag) return Reply(fd, 412, "", "");
    std::string headers = fmt::format("ETag: {}\r\n", object.etag);
    if (!object.version.empty()) headers += fmt::format("x-amz-version-id: {}\r\n", object.version);
    if (!request.ranged)
      return Reply(fd, 200, headers, request.method == "HEAD" ? "" : object.body);
    if (request.first >= object.body.size()) return Reply(fd, 416, "", "");
    uint64_t last = std::min<uint64_t>(request.last, object.body.size() - 1);
    if (fault && fault->kind == Fault::kShort) last = (request.first + last) / 2;
    std::string body = object.body.substr(request.first, last - request.first + 1);
    headers +=
        fmt::format("Content-Range: bytes {}-{}/{}\r\n", request.first, last, object.body.size());
    if (fault && fault->kind == Fault::kWrong) body[body.size() / 2] ^= 1;
    if (fault && fault->kind == Fault::kLess) body.resize(body.size() / 2);
    if (fault && fault->kind == Fault::kMore) body += "more";
    if (!fault || fault->kind == Fault::kLess || fault->kind == Fault::kMore ||
        fault->kind == Fault::kWrong || fault->kind == Fault::kShort) {
      return Reply(fd, 206, headers, body);
    }
    Send(fd, fmt::format("HTTP/1.1 206 X\r\nContent-Length: {}\r\n{}\r\n", body.size(), headers));
    if (fault->kind == Fault::kStall) return WaitReadable(fd) && false;
    Send(fd, std::string_view(body).substr(0, body.size() / 2));
    if (fault->kind == Fault::kReset) {
      linger reset = {1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    return false;
  }

  const testing_support::Listener listener_{128};
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;
  std::vector<std::thread> connections_;  // the acceptor's until it has ended
  absl::Mutex mutex_;
  std::map<std::string, FakeObject> objects_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> texts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<SeenRequest> seen_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const SeenRequest&)> hook_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int> most_in_flight_{0};
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_SERVER_TESTING_H_
