// One HTTP request of libcurl's, set up as all commands that ask a server set it up.
#ifndef TERRACE_CLI_HTTP_REQUEST_H_
#define TERRACE_CLI_HTTP_REQUEST_H_

#include <curl/curl.h>

#include <memory>
#include <string>

namespace terrace::cli {

class HttpRequest {
 public:
  // `ca`: file of certificates (PEM) that may sign the server's; empty: the system's.
  HttpRequest(const std::string& url, const std::string& ca);

  void AddHeader(const std::string& line);  // "Name: value"
  void AddKey(const std::string& key);      // API key; nothing if empty
  void Post(std::string body);
  // Given each piece of the answer, with `to`; as libcurl wants it.
  void OnData(size_t (*take)(char* data, size_t size, size_t count, void* to), void* to);

  // Ready to be performed, as long as this lives; null if libcurl has no memory.
  CURL* curl() const { return curl_.get(); }
  long status() const;  // of the answer; 0: there is none

 private:
  struct Deleter {
    void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };
  std::string body_;
  std::unique_ptr<curl_slist, Deleter> headers_;
  std::unique_ptr<CURL, Deleter> curl_;
};

// Why it failed, and what could be done about it.
std::string ReasonOf(CURLcode code);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_HTTP_REQUEST_H_
