#include "weights/fetch.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "format/byte_source.h"
#include "storage/object/object_download.h"
#include "storage/object/s3_store.h"
#include "weights/partial_file.h"

namespace terrace::weights {
namespace {

constexpr int64_t kMaxWaitUs = 30000000;
constexpr uint64_t kCopyBytes = 4 * kMiB;

bool IsCancelled(const FetchOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

absl::Status Cancelled(const std::string& source) {
  return absl::CancelledError(fmt::format("fetching '{}' was cancelled", source));
}

void Report(const FetchOptions& options, uint64_t done, uint64_t total) {
  if (options.progress) options.progress({done, total});
}

bool IsHttp(std::string_view source) {
  return source.starts_with("http://") || source.starts_with("https://");
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// One HTTP request and what its answer says. Bytes go to `sink` as they come, once the headers of
// the final response have been accepted by `begin`.
class Request {
 public:
  using Begin = std::function<absl::Status(const Request&)>;
  using Sink = std::function<absl::Status(std::span<const std::byte>)>;

  Request(const std::string& url, const FetchOptions& options) : options_(options), url_(url) {}
  ~Request() {
    curl_slist_free_all(headers_);
    curl_easy_cleanup(curl_);
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  void AddHeader(const std::string& header) {
    headers_ = curl_slist_append(headers_, header.c_str());
  }

  long code() const { return code_; }
  // Lower-case name; of the last response if there were redirects.
  std::string_view Header(std::string_view name) const {
    for (const auto& [key, value] : response_) {
      if (key == name) return value;
    }
    return {};
  }

  // OK: the whole body has come. `*retry`: another attempt may do better.
  absl::Status Run(Begin begin, Sink sink, bool* retry) {
    begin_ = std::move(begin);
    sink_ = std::move(sink);
    *retry = false;
    curl_ = curl_easy_init();
    if (curl_ == nullptr) return absl::ResourceExhaustedError("no memory for a request");
    SetOptions();
    CURLcode result = curl_easy_perform(curl_);
    if (IsCancelled(options_)) return Cancelled(url_);
    if (result == CURLE_OK && !begun_) failure_ = BeginBody();  // an empty body
    if (!failure_.ok() || result == CURLE_OK) {
      *retry = refused_retryable_ || absl::IsAborted(failure_);
      return failure_;
    }
    *retry = result != CURLE_UNSUPPORTED_PROTOCOL && result != CURLE_URL_MALFORMAT &&
             result != CURLE_TOO_MANY_REDIRECTS && result != CURLE_PEER_FAILED_VERIFICATION;
    const char* detail = error_[0] != '\0' ? error_ : curl_easy_strerror(result);
    return absl::UnavailableError(fmt::format("fetching '{}': {}", url_, detail));
  }
  // What the server asks to wait before another attempt, 0 if nothing.
  int64_t retry_after_us() const {
    uint64_t seconds = ParseNumber(Header("retry-after")).value_or(0);
    return static_cast<int64_t>(std::min<uint64_t>(seconds, 60)) * 1000000;
  }

 private:
  void SetOptions() {
    curl_easy_setopt(curl_, CURLOPT_URL, url_.c_str());
    curl_easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
    // A redirect must not turn a protected transfer into an open one.
    curl_easy_setopt(curl_, CURLOPT_REDIR_PROTOCOLS_STR,
                     url_.starts_with("https:") ? "https" : "http,https");
    curl_easy_setopt(curl_, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(curl_, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.connect_timeout_s));
    curl_easy_setopt(curl_, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl_, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_timeout_s));
    curl_easy_setopt(curl_, CURLOPT_BUFFERSIZE, 256L * 1024);
    curl_easy_setopt(curl_, CURLOPT_USERAGENT, "terrace");
    curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, error_);
    if (!options_.bearer_token.empty()) {
      curl_easy_setopt(curl_, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl_, CURLOPT_XOAUTH2_BEARER, options_.bearer_token.c_str());
    }
    curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers_);
    curl_easy_setopt(curl_, CURLOPT_HEADERFUNCTION, &Request::OnHeader);
    curl_easy_setopt(curl_, CURLOPT_HEADERDATA, this);
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &Request::OnBody);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, this);
    curl_easy_setopt(curl_, CURLOPT_XFERINFOFUNCTION, &Request::OnProgress);
    curl_easy_setopt(curl_, CURLOPT_XFERINFODATA, this);
    curl_easy_setopt(curl_, CURLOPT_NOPROGRESS, 0L);
  }

  static size_t OnHeader(char* data, size_t size, size_t count, void* self_pointer) {
    auto* self = static_cast<Request*>(self_pointer);
    std::string_view line = StripSpace(std::string_view(data, size * count));
    if (line.starts_with("HTTP/")) self->response_.clear();  // of a redirect or "100 Continue"
    size_t colon = line.find(':');
    if (colon != std::string_view::npos && self->response_.size() < 200) {
      self->response_.emplace_back(ToLower(line.substr(0, colon)),
                                   std::string(StripSpace(line.substr(colon + 1))));
    }
    return size * count;
  }

  static size_t OnBody(char* data, size_t size, size_t count, void* self_pointer) {
    auto* self = static_cast<Request*>(self_pointer);
    if (!self->begun_) self->failure_ = self->BeginBody();
    if (self->failure_.ok()) {
      self->failure_ = self->sink_(std::as_bytes(std::span(data, size * count)));
    }
    return self->failure_.ok() ? size * count : 0;
  }

  static int OnProgress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return IsCancelled(static_cast<Request*>(self)->options_) ? 1 : 0;
  }

  absl::Status BeginBody() {
    begun_ = true;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &code_);
    if (code_ == 200 || code_ == 206 || code_ == 416) return begin_(*this);
    refused_retryable_ = code_ == 408 || code_ == 429 || code_ >= 500;
    std::string what = fmt::format("fetching '{}': the server answers {}", url_, code_);
    switch (code_) {
      case 404:
      case 410:
        return absl::NotFoundError(what);
      case 401:
      case 403:
        return absl::PermissionDeniedError(what + " (is a token needed?)");
      default:
        return absl::UnavailableError(what);
    }
  }

  const FetchOptions& options_;
  std::string url_;
  CURL* curl_ = nullptr;
  curl_slist* headers_ = nullptr;
  Begin begin_;
  Sink sink_;
  std::vector<std::pair<std::string, std::string>> response_;
  char error_[CURL_ERROR_SIZE] = "";
  long code_ = 0;
  bool begun_ = false;
  bool refused_retryable_ = false;
  absl::Status failure_;
};

// What names this state of the document: a strong ETag, or "" (a weak one may name other bytes).
std::string Validator(const Request& request) {
  std::string_view etag = request.Header("etag");
  return etag.starts_with("W/") ? std::string() : std::string(etag);
}

struct ContentRange {
  uint64_t first = 0;
  uint64_t total = 0;
};

// "bytes 100-199/200"
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  size_t dash = text.find('-'), slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos) return std::nullopt;
  auto first = ParseNumber(text.substr(0, dash)), total = ParseNumber(text.substr(slash + 1));
  if (!first || !total) return std::nullopt;
  return ContentRange{*first, *total};
}

// How an attempt ended.
struct Outcome {
  absl::Status status;
  bool retry = false;
  int64_t wait_us = 0;  // at least, before the next one
};

// Decides what an answer's body is: the whole, the rest of what `file` holds, or nothing of use.
class Resumption {
 public:
  Resumption(const std::string& url, PartialFile& file)
      : url_(url),
        file_(file),
        wanted_(file.bytes() > 0 && file.source() == url && !file.validator().empty()) {}

  void AddHeaders(Request& request) const {
    if (!wanted_) return;
    request.AddHeader(fmt::format("Range: bytes={}-", file_.bytes()));
    request.AddHeader(fmt::format("If-Range: {}", file_.validator()));
  }

  absl::Status Begin(const Request& response) {
    std::string etag = Validator(response);
    if (response.code() == 200) {
      total_ = ParseNumber(response.Header("content-length")).value_or(0);
      return file_.Restart(url_, etag);
    }
    bool same = wanted_ && (etag.empty() || etag == file_.validator());
    auto range = ParseContentRange(response.Header("content-range"));
    if (response.code() == 206 && same && range && range->first == file_.bytes()) {
      total_ = range->total;
      return absl::OkStatus();
    }
    // There is nothing after what we have.
    if (response.code() == 416 && same &&
        response.Header("content-range") == fmt::format("bytes */{}", file_.bytes())) {
      total_ = file_.bytes();
      ignore_body_ = true;
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(file_.Restart(url_, ""));
    return absl::AbortedError(fmt::format("fetching '{}': the server cannot resume it", url_));
  }

  uint64_t total() const { return total_; }  // bytes of the whole; 0: not said
  bool ignore_body() const { return ignore_body_; }

 private:
  const std::string& url_;
  PartialFile& file_;
  const bool wanted_;
  uint64_t total_ = 0;
  bool ignore_body_ = false;
};

// One attempt to get the rest of `url` into `file`.
Outcome Attempt(const std::string& url, PartialFile& file, const FetchOptions& options) {
  Request request(url, options);
  Resumption resumption(url, file);
  resumption.AddHeaders(request);
  auto sink = [&](std::span<const std::byte> data) -> absl::Status {
    if (resumption.ignore_body()) return absl::OkStatus();
    RETURN_IF_ERROR(file.Append(data));
    Report(options, file.bytes(), resumption.total());
    return absl::OkStatus();
  };
  Outcome outcome;
  outcome.status = request.Run([&](const Request& response) { return resumption.Begin(response); },
                               sink, &outcome.retry);
  outcome.wait_us = request.retry_after_us();
  if (!outcome.status.ok()) return outcome;
  if (resumption.total() > 0 && file.bytes() != resumption.total()) {
    outcome.retry = true;
    outcome.status = absl::UnavailableError(
        fmt::format("fetching '{}': {} of {} bytes came", url, file.bytes(), resumption.total()));
    return outcome;
  }
  Report(options, file.bytes(), file.bytes());
  return outcome;
}

absl::Status Wait(int64_t wait_us, const std::string& source, const FetchOptions& options) {
  constexpr int64_t kStepUs = 50000;  // between looks at `cancel`
  for (int64_t waited = 0; waited < wait_us; waited += kStepUs) {
    if (IsCancelled(options)) return Cancelled(source);
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(kStepUs, wait_us - waited)));
  }
  return absl::OkStatus();
}

absl::Status FetchHttp(const std::string& url, PartialFile& file, const FetchOptions& options) {
  int64_t wait_us = options.retry_wait_us;
  for (int attempt = 1;; ++attempt) {
    uint64_t before = file.bytes();
    Outcome outcome = Attempt(url, file, options);
    if (outcome.status.ok() || !outcome.retry) return outcome.status;
    if (file.bytes() > before) {
      attempt = 0;
      wait_us = options.retry_wait_us;
    }
    if (attempt >= options.attempts) {
      return WithContext(outcome.status, fmt::format("giving up after {} attempts", attempt));
    }
    RETURN_IF_ERROR(Wait(std::max(wait_us, outcome.wait_us), url, options));
    wait_us = std::min(wait_us * 2, kMaxWaitUs);
  }
}

absl::Status CopyFile(const std::string& path, PartialFile& file, const FetchOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<format::ByteSource> source, format::OpenFileSource(path));
  std::string validator = fmt::format("{}-{}", source->size(), source->mtime_ns());
  if (file.source() != path || file.validator() != validator || file.bytes() > source->size()) {
    RETURN_IF_ERROR(file.Restart(path, validator));
  }
  std::vector<std::byte> buffer(std::min(kCopyBytes, source->size()));
  while (file.bytes() < source->size()) {
    if (IsCancelled(options)) return Cancelled(path);
    auto piece =
        std::span(buffer).first(std::min<uint64_t>(buffer.size(), source->size() - file.bytes()));
    RETURN_IF_ERROR(source->ReadAt(file.bytes(), piece));
    RETURN_IF_ERROR(file.Append(piece));
    Report(options, file.bytes(), source->size());
  }
  return source->CheckUnchanged();
}

// The path of "file:///a", "file:/a", "/a" or "a"; nothing for other schemes.
std::optional<std::string> LocalPath(const std::string& source) {
  if (source.starts_with("file:")) {
    std::string path = source.substr(5);
    if (path.starts_with("//")) path.erase(0, 2);
    if (path.starts_with("localhost/")) path.erase(0, 9);
    return path;
  }
  size_t colon = source.find(':');
  std::error_code error;
  if (colon == std::string::npos || source.find('/') < colon ||
      std::filesystem::exists(source, error)) {
    return source;
  }
  return std::nullopt;
}

// In parallel ranges, with a note of its own kind beside the part that has come.
absl::StatusOr<FetchResult> FetchS3(const std::string& source, const std::string& destination,
                                    const std::string& sha256, const FetchOptions& options) {
  auto environment = [&](std::string_view name) {
    return options.environment ? options.environment(name) : std::string();
  };
  ASSIGN_OR_RETURN(storage::S3Location location, storage::ParseS3Url(source));
  ASSIGN_OR_RETURN(storage::S3Settings settings, storage::S3SettingsFrom(environment));
  storage::HttpOptions http;
  http.connect_timeout_us = options.connect_timeout_s * 1000000;
  http.low_speed_bytes_per_s = 1;
  http.low_speed_s = options.stall_timeout_s;
  RealClock clock;
  ASSIGN_OR_RETURN(auto store, storage::S3Store::Create(std::move(settings), location.bucket,
                                                        std::move(http), clock));
  storage::DownloadOptions download;
  download.sha256 = sha256;
  download.attempts = options.attempts;
  download.backoff_us = options.retry_wait_us;
  download.max_backoff_us = kMaxWaitUs;
  download.cancel = options.cancel;
  download.progress = [&](const storage::DownloadProgress& progress) {
    Report(options, progress.done_bytes, progress.total_bytes);
  };
  // The seed need only differ between machines that were refused at the same moment.
  Random random(static_cast<uint64_t>(clock.WallUs()));
  storage::RealSleeper sleeper;
  // What another kind of source left is of no use, and its note would name the wrong bytes.
  std::error_code error;
  std::filesystem::remove(destination + ".partial.json", error);
  ASSIGN_OR_RETURN(storage::DownloadResult result,
                   storage::DownloadObject(*store, location.key, destination, download,
                                           {clock, random, sleeper}));
  return FetchResult{result.bytes, result.sha256, result.resumed_at_bytes};
}

absl::StatusOr<FetchResult> FetchInto(const std::string& source, PartialFile& file,
                                      const FetchOptions& options) {
  FetchResult result;
  if (IsHttp(source)) {
    RETURN_IF_ERROR(FetchHttp(source, file, options));
  } else if (auto path = LocalPath(source)) {
    RETURN_IF_ERROR(CopyFile(*path, file, options));
  } else {
    return absl::InvalidArgumentError(
        fmt::format("'{}': sources are paths, file:, http:, https: and s3: URLs", source));
  }
  result.bytes = file.bytes();
  result.resumed_at_bytes = file.kept_bytes();
  ASSIGN_OR_RETURN(result.sha256, file.Digest());
  return result;
}

}  // namespace

absl::StatusOr<FetchResult> Fetch(const std::string& source, const std::string& destination,
                                  const FetchOptions& options) {
  std::string expected;
  if (!options.sha256.empty()) {
    ASSIGN_OR_RETURN(expected, ParseSha256(options.sha256));
  }
  if (source.starts_with("s3:")) return FetchS3(source, destination, expected, options);
  ASSIGN_OR_RETURN(std::unique_ptr<PartialFile> file, PartialFile::Open(destination));
  std::error_code error;
  std::filesystem::remove(storage::DownloadNotePath(destination), error);  // of an s3: source
  auto result = FetchInto(source, *file, options);
  if (!result.ok()) {
    // Nothing came, or it cannot be taken up again: leave nothing.
    if (file->bytes() == 0 || file->validator().empty()) file->Discard();
    return result.status();
  }
  if (!expected.empty() && result->sha256 != expected) {
    file->Discard();
    return absl::DataLossError(
        fmt::format("'{}' has SHA-256 {}, not {}", source, result->sha256, expected));
  }
  RETURN_IF_ERROR(file->Commit());
  return result;
}

absl::StatusOr<std::string> FetchText(const std::string& url, uint64_t limit_bytes,
                                      const FetchOptions& options) {
  if (!IsHttp(url)) {
    return absl::InvalidArgumentError(fmt::format("'{}' is not an http: or https: URL", url));
  }
  Request request(url, options);
  std::string text;
  bool retry = false;
  auto sink = [&](std::span<const std::byte> data) -> absl::Status {
    if (text.size() + data.size() > limit_bytes) {
      return absl::ResourceExhaustedError(
          fmt::format("'{}' has more than {} bytes", url, limit_bytes));
    }
    text.append(reinterpret_cast<const char*>(data.data()), data.size());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(request.Run([](const Request&) { return absl::OkStatus(); }, sink, &retry));
  return text;
}

}  // namespace terrace::weights
