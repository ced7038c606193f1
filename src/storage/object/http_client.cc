#include "storage/object/http_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/status.h"
#include "base/text.h"

namespace terrace::storage {
namespace {

constexpr size_t kMaxHeaders = 200;
constexpr size_t kMaxRefusalBytes = 16 * 1024;
constexpr int64_t kMaxRetryAfterS = 60;

// One transfer on a curl handle; lives on the caller's stack.
struct Transfer {
  const RequestControl& control;
  const HttpClient::Begin& begin;
  const HttpClient::Sink& sink;
  CURL* curl;
  HttpReply reply;
  bool begun = false;
  absl::Status failure;

  bool Cancelled() const { return control.cancel != nullptr && control.cancel->load(); }
  bool Accepted() const { return reply.code >= 200 && reply.code < 300; }

  void BeginBody() {
    begun = true;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.code);
    if (Accepted()) failure = begin(reply);
  }
};

size_t OnHeader(char* data, size_t size, size_t count, void* context) {
  auto* transfer = static_cast<Transfer*>(context);
  std::string_view line = StripSpace(std::string_view(data, size * count));
  auto& headers = transfer->reply.headers;
  if (line.starts_with("HTTP/")) headers.clear();  // of a redirect or "100 Continue"
  size_t colon = line.find(':');
  if (colon != std::string_view::npos && headers.size() < kMaxHeaders) {
    headers.emplace_back(ToLower(line.substr(0, colon)),
                         std::string(StripSpace(line.substr(colon + 1))));
  }
  return size * count;
}

size_t OnBody(char* data, size_t size, size_t count, void* context) {
  auto* transfer = static_cast<Transfer*>(context);
  size_t bytes = size * count;
  if (!transfer->begun) transfer->BeginBody();
  if (!transfer->failure.ok()) return 0;
  if (transfer->Accepted()) {
    transfer->failure = transfer->sink(std::as_bytes(std::span(data, bytes)));
    return transfer->failure.ok() ? bytes : 0;
  }
  std::string& refusal = transfer->reply.refusal;
  refusal.append(data, std::min(bytes, kMaxRefusalBytes - refusal.size()));
  return bytes;
}

int OnProgress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(context)->Cancelled() ? 1 : 0;
}

// An error that comes back however often the request is repeated.
bool IsLasting(CURLcode code) {
  return code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
         code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_PEER_FAILED_VERIFICATION ||
         code == CURLE_SSL_CACERT_BADFILE;
}

void SetUp(CURL* curl, const HttpRequest& request, const HttpOptions& options, Transfer& transfer) {
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);  // the path is what was signed
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  // A redirect must not turn a protected transfer into an open one.
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR,
                   request.url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request.follow_redirects ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, 5L);
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  // HTTP/2 would put all ranges of a thread's handle on one connection without a gain.
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(options.connect_timeout_us / 1000));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(options.low_speed_bytes_per_s));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.low_speed_s));
  if (transfer.control.timeout_us > 0) {
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS,
                     static_cast<long>(std::max<int64_t>(transfer.control.timeout_us / 1000, 1)));
  }
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L * 1024);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "terrace");
  if (!options.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options.ca_file.c_str());
  if (!options.bearer_token.empty()) {
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, options.bearer_token.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
}

}  // namespace

std::string_view HttpReply::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string XmlText(std::string_view xml, std::string_view tag) {
  std::string open = fmt::format("<{}>", tag), close = fmt::format("</{}>", tag);
  size_t start = xml.find(open);
  if (start == std::string_view::npos) return {};
  size_t end = xml.find(close, start += open.size());
  if (end == std::string_view::npos) return {};
  constexpr std::pair<std::string_view, char> kEntities[] = {{"&amp;", '&'}, {"&lt;", '<'},
                                                             {"&gt;", '>'},  {"&quot;", '"'},
                                                             {"&#34;", '"'}, {"&apos;", '\''}};
  std::string text;
  for (std::string_view rest = xml.substr(start, end - start); !rest.empty();) {
    size_t length = 1;
    char c = rest[0];
    for (const auto& [entity, plain] : kEntities) {
      if (rest.starts_with(entity)) {
        length = entity.size();
        c = plain;
      }
    }
    text += c;
    rest.remove_prefix(length);
  }
  return text;
}

absl::Status StatusOfReply(const HttpReply& reply, const std::string& name) {
  std::string code = XmlText(reply.refusal, "Code");  // S3 says more than HTTP does
  bool plain = !code.empty() && code.size() <= 64 &&
               std::all_of(code.begin(), code.end(), [](unsigned char c) {
                 return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
               });
  std::string what = fmt::format("'{}': the server answers {}{}", name, reply.code,
                                 plain ? fmt::format(" ({})", code) : "");
  if (code == "RequestTimeout") return absl::UnavailableError(what);  // S3's 400 of a slow network
  switch (reply.code) {
    case 404:
    case 410:
      return absl::NotFoundError(what);
    case 401:
    case 403:
      return absl::PermissionDeniedError(what);
    case 412:
    case 416:
      return absl::AbortedError(what + ": the object has changed");
    case 408:
    case 429:
      return absl::UnavailableError(what);
    case 501:
    case 505:
      return absl::FailedPreconditionError(what);
    default:
      break;
  }
  if (reply.code >= 500) return absl::UnavailableError(what);
  std::string_view region = reply.Header("x-amz-bucket-region");
  if (!region.empty()) what += fmt::format(" (the bucket is in region '{}')", region);
  return absl::FailedPreconditionError(what);
}

HttpClient::~HttpClient() {
  absl::MutexLock lock(&mutex_);
  for (void* handle : idle_) curl_easy_cleanup(handle);
}

void* HttpClient::TakeHandle() {
  absl::MutexLock lock(&mutex_);
  if (idle_.empty()) return curl_easy_init();
  void* handle = idle_.back();
  idle_.pop_back();
  return handle;
}

void HttpClient::GiveHandle(void* handle) {
  curl_easy_reset(handle);  // keeps the connections
  absl::MutexLock lock(&mutex_);
  idle_.push_back(handle);
}

absl::StatusOr<HttpReply> HttpClient::Do(const HttpRequest& request, const RequestControl& control,
                                         const Begin& begin, const Sink& sink) {
  CURL* curl = TakeHandle();
  if (curl == nullptr) return absl::ResourceExhaustedError("no memory for a request");
  Transfer transfer{control, begin, sink, curl};
  char detail[CURL_ERROR_SIZE] = "";
  curl_slist* headers = nullptr;
  for (const std::string& header : request.headers) {
    headers = curl_slist_append(headers, header.c_str());
  }
  SetUp(curl, request, options_, transfer);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  CURLcode result = curl_easy_perform(curl);
  if (result == CURLE_OK && !transfer.begun) transfer.BeginBody();  // an empty body
  curl_slist_free_all(headers);
  GiveHandle(curl);

  int64_t wait_s = 0;
  std::string_view wait = transfer.reply.Header("retry-after");
  auto parsed = std::from_chars(wait.data(), wait.data() + wait.size(), wait_s);
  if (control.retry_after_us != nullptr && parsed.ec == std::errc() && wait_s > 0) {
    *control.retry_after_us = std::min(wait_s, kMaxRetryAfterS) * 1000000;
  }
  if (!transfer.failure.ok()) return transfer.failure;
  if (transfer.Cancelled()) {
    return absl::CancelledError(fmt::format("'{}': cancelled", request.name));
  }
  // A refusal whose body broke off is a refusal all the same.
  if (result == CURLE_OK || (transfer.begun && !transfer.Accepted())) {
    return std::move(transfer.reply);
  }
  std::string what = fmt::format("'{}': {}", request.name,
                                 detail[0] != '\0' ? detail : curl_easy_strerror(result));
  return IsLasting(result) ? absl::FailedPreconditionError(what) : absl::UnavailableError(what);
}

}  // namespace terrace::storage
