#include "storage/object/s3_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"

namespace terrace::storage {
namespace {

constexpr size_t kMaxKeyBytes = 1024;  // S3's own limit
constexpr uint64_t kMaxListPageBytes = 16 * kMiB;
constexpr size_t kMaxListed = 1000000;

bool IsBucketName(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && name[0] != '.' && name[0] != '-' &&
         name.back() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

// Credentials, regions and hosts go into header lines.
bool IsPlain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 0x7F; });
}

// "%41b" to "Ab"; a lone '%' stays. Listings with encoding-type=url write blanks as '+'.
std::string UrlDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr ==
            text.data() + i + 3) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<S3Settings> S3SettingsFrom(
    const std::function<std::string(std::string_view)>& environment) {
  auto first_of = [&](std::string_view a, std::string_view b) {
    std::string value = environment(a);
    return value.empty() ? environment(b) : value;
  };
  S3Settings settings;
  settings.endpoint = first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
  std::string region = first_of("AWS_REGION", "AWS_DEFAULT_REGION");
  if (!region.empty()) settings.region = region;
  AwsCredentials& credentials = settings.credentials;
  credentials.access_key_id = environment("AWS_ACCESS_KEY_ID");
  credentials.secret_access_key = environment("AWS_SECRET_ACCESS_KEY");
  credentials.session_token = environment("AWS_SESSION_TOKEN");
  if (credentials.access_key_id.empty() != credentials.secret_access_key.empty()) {
    return absl::InvalidArgumentError(
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set together");
  }
  settings.ca_file = environment("AWS_CA_BUNDLE");
  const std::string style = environment("AWS_S3_ADDRESSING_STYLE");
  if (style == "path") {
    settings.addressing = S3Addressing::kPath;
  } else if (style == "virtual") {
    settings.addressing = S3Addressing::kVirtualHost;
  } else if (!style.empty() && style != "auto") {
    return absl::InvalidArgumentError(
        fmt::format("AWS_S3_ADDRESSING_STYLE must be auto, path or virtual, not '{}'", style));
  }
  return settings;
}

absl::StatusOr<S3Location> ParseS3Url(std::string_view url) {
  S3Location location;
  if (url.starts_with("s3://")) {
    std::string_view rest = url.substr(5);
    size_t slash = std::min(rest.find('/'), rest.size());
    location.bucket = rest.substr(0, slash);
    location.key = rest.substr(std::min(slash + 1, rest.size()));
  }
  if (!location.key.empty() && location.key.size() <= kMaxKeyBytes &&
      IsBucketName(location.bucket)) {
    return location;
  }
  return absl::InvalidArgumentError(fmt::format("'{}' is not of the form s3://bucket/key", url));
}

absl::StatusOr<std::unique_ptr<S3Store>> S3Store::Create(S3Settings settings, std::string bucket,
                                                         HttpOptions options, const Clock& clock) {
  if (!IsBucketName(bucket)) {
    return absl::InvalidArgumentError(fmt::format("'{}' cannot be a bucket's name", bucket));
  }
  const AwsCredentials& credentials = settings.credentials;
  if (!IsPlain(credentials.access_key_id) || !IsPlain(credentials.session_token) ||
      !IsPlain(settings.region) || settings.region.empty()) {
    return absl::InvalidArgumentError("S3: the access key, token or region has odd characters");
  }
  if (settings.endpoint.empty()) {
    std::string_view ending = settings.region.starts_with("cn-") ? ".cn" : "";
    settings.endpoint = fmt::format("https://s3.{}.amazonaws.com{}", settings.region, ending);
    if (settings.addressing == S3Addressing::kAuto) {
      // A certificate for *.host does not cover names with dots.
      bool dots = bucket.find('.') != std::string::npos;
      settings.addressing = dots ? S3Addressing::kPath : S3Addressing::kVirtualHost;
    }
  }
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  std::string_view host = settings.endpoint;
  if (host.starts_with("http://")) {
    host.remove_prefix(7);
  } else if (host.starts_with("https://")) {
    host.remove_prefix(8);
  } else {
    host = {};
  }
  if (host.empty() || !IsPlain(host) || host.find_first_of("/?#@") != std::string_view::npos) {
    // Not shown: a wrong one may hold a password.
    return absl::InvalidArgumentError("the S3 endpoint must be http(s)://host[:port]");
  }
  options.bearer_token.clear();
  if (!settings.ca_file.empty()) options.ca_file = settings.ca_file;
  return std::unique_ptr<S3Store>(
      new S3Store(std::move(settings), std::move(bucket), std::move(options), clock));
}

S3Store::S3Store(S3Settings settings, std::string bucket, HttpOptions options, const Clock& clock)
    : HttpStore("", std::move(options)),
      settings_(std::move(settings)),
      bucket_(std::move(bucket)),
      clock_(clock) {
  size_t end = settings_.endpoint.find("://") + 3;
  scheme_ = settings_.endpoint.substr(0, end);
  host_ = settings_.endpoint.substr(end);
  // A client does not send its scheme's own port, and servers sign what is sent.
  std::string_view own_port = scheme_ == "https://" ? ":443" : ":80";
  if (host_.ends_with(own_port)) host_.resize(host_.size() - own_port.size());
  if (settings_.addressing == S3Addressing::kVirtualHost) {
    host_ = bucket_ + "." + host_;
  } else {
    path_prefix_ = "/" + bucket_;
  }
}

std::string S3Store::NameOf(const std::string& key) const {
  return fmt::format("s3://{}/{}", bucket_, key);
}

HttpRequest S3Store::Prepare(bool head, const std::string& key, const std::string& version,
                             const Headers& headers) const {
  Headers query;
  if (!version.empty()) query.emplace_back("versionId", version);
  HttpRequest request = Sign(head, "/" + UriEncode(key, true), std::move(query), headers);
  request.name = NameOf(key);
  return request;
}

HttpRequest S3Store::Sign(bool head, const std::string& path, Headers query,
                          Headers headers) const {
  SignedRequest to_sign{head ? "HEAD" : "GET", host_, path_prefix_ + path, std::move(query),
                        std::move(headers)};
  HttpRequest request;
  request.url = scheme_ + host_ + to_sign.path;
  std::string text = CanonicalQuery(to_sign);
  if (!text.empty()) request.url += "?" + text;
  request.head = head;
  request.follow_redirects = false;  // a signature is for one host
  if (settings_.credentials.access_key_id.empty()) {
    for (const auto& [name, value] : to_sign.headers) {
      request.headers.push_back(fmt::format("{}: {}", name, value));
    }
  } else {
    request.headers =
        SignV4(to_sign, settings_.credentials, settings_.region, "s3", clock_.WallUs());
  }
  return request;
}

absl::StatusOr<std::vector<ObjectEntry>> S3Store::List(const std::string& prefix,
                                                       const RequestControl& control) {
  std::vector<ObjectEntry> entries;
  const std::string name = NameOf(prefix);
  std::string token;
  do {
    Headers query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix}};
    if (!token.empty()) query.emplace_back("continuation-token", token);
    HttpRequest request = Sign(false, "/", std::move(query), {});
    request.name = name;
    std::string page;
    auto sink = [&](std::span<const std::byte> data) -> absl::Status {
      if (page.size() + data.size() > kMaxListPageBytes) {
        return absl::FailedPreconditionError(fmt::format("'{}': the listing is too large", name));
      }
      page.append(reinterpret_cast<const char*>(data.data()), data.size());
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(
        HttpReply reply,
        client_.Do(request, control, [](const HttpReply&) { return absl::OkStatus(); }, sink));
    if (reply.code / 100 != 2) return StatusOfReply(reply, name);
    std::string_view rest = page;
    for (size_t at; (at = rest.find("<Contents>")) != std::string_view::npos;) {
      size_t end = rest.find("</Contents>", at);
      if (end == std::string_view::npos) break;
      std::string_view entry = rest.substr(at, end - at);
      std::string bytes = XmlText(entry, "Size");
      ObjectEntry object{UrlDecode(XmlText(entry, "Key")), 0, XmlText(entry, "ETag")};
      auto parsed = std::from_chars(bytes.data(), bytes.data() + bytes.size(), object.bytes);
      if (parsed.ec != std::errc() || object.key.empty() || entries.size() >= kMaxListed) {
        return absl::FailedPreconditionError(fmt::format("'{}': a listing out of form", name));
      }
      entries.push_back(std::move(object));
      rest.remove_prefix(end);
    }
    std::string next = XmlText(page, "NextContinuationToken");
    bool more = XmlText(page, "IsTruncated") == "true";
    if (more && (next.empty() || next == token)) {
      return absl::FailedPreconditionError(fmt::format("'{}': a listing that never ends", name));
    }
    token = more ? next : "";
  } while (!token.empty());
  return entries;
}

}  // namespace terrace::storage
