// A blocking HTTP client that does exactly what a test tells it, well-formed or not: raw sockets.
#ifndef TERRACE_TESTS_SERVER_HTTP_CLIENT_H_
#define TERRACE_TESTS_SERVER_HTTP_CLIENT_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::server {

struct HttpReply {
  int status = 0;                              // 0: the connection ended without an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // ended as its framing says

  // The data of each event of an event stream.
  std::vector<std::string> Events() const;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void Send(std::string_view bytes);
  // What is to be read within `timeout_ms`; empty: nothing came, or the end (then closed()).
  std::string ReadSome(int timeout_ms);
  // The next answer. 100 Continue is passed over. `head_only`: no body follows.
  HttpReply Read(int timeout_ms = 10'000, bool head_only = false);
  // Reads until `text` has come; all that was read.
  std::string ReadUntil(std::string_view text, int timeout_ms = 10'000);
  bool closed() const { return closed_; }
  void Close();  // FIN
  void Reset();  // RST
  void HalfClose();

  HttpReply Get(std::string_view path);
  HttpReply Post(std::string_view path, std::string_view body);
  static std::string PostText(std::string_view path, std::string_view body,
                              std::string_view more_headers = "");

 private:
  bool Fill(int64_t deadline_ms);

  int fd_ = -1;
  bool closed_ = false;
  std::string read_;  // not yet consumed
};

}  // namespace terrace::server

#endif  // TERRACE_TESTS_SERVER_HTTP_CLIENT_H_
