// S3 and plain HTTP stores against a fake server: what is asked, how it is signed, and what each
// answer means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <map>
#include <set>

#include "base/status.h"
#include "object_server_testing.h"
#include "storage/object/http_store.h"
#include "storage/object/s3_store.h"
#include "storage/object/sigv4.h"

namespace terrace::storage {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMay24 = 1369353600000000;  // 2013-05-24T00:00:00Z, of the published examples

AwsCredentials ExampleCredentials() {
  return {"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
}

std::string SignatureOf(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    size_t at = line.find("Signature=");
    if (at != std::string::npos) return line.substr(at + 10);
  }
  return "";
}

// The examples of the S3 API reference, "Signature Calculations for the Authorization Header".
TEST(SigV4, PublishedExamples) {
  SignedRequest get{
      "GET", "examplebucket.s3.amazonaws.com", "/test.txt", {}, {{"range", "bytes=0-9"}}};
  EXPECT_EQ(SignatureOf(SignV4(get, ExampleCredentials(), "us-east-1", "s3", kMay24)),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  SignedRequest lifecycle{"GET", "examplebucket.s3.amazonaws.com", "/", {{"lifecycle", ""}}, {}};
  EXPECT_EQ(SignatureOf(SignV4(lifecycle, ExampleCredentials(), "us-east-1", "s3", kMay24)),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  SignedRequest list{
      "GET", "examplebucket.s3.amazonaws.com", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}};
  EXPECT_EQ(SignatureOf(SignV4(list, ExampleCredentials(), "us-east-1", "s3", kMay24)),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// ---- The signature worked out again from the bytes on the wire ---------------------------------

std::string Digest(const std::string& text) {
  unsigned char out[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out);
  return {reinterpret_cast<char*>(out), sizeof(out)};
}

// RFC 2104 by hand.
std::string Mac(std::string key, const std::string& text) {
  key = key.size() > 64 ? Digest(key) : key;
  key.resize(64, '\0');
  std::string inner = key, outer = key;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  return Digest(outer + Digest(inner + text));
}

std::string ToHex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes) {
    out += "0123456789abcdef"[c >> 4];
    out += "0123456789abcdef"[c & 15];
  }
  return out;
}

// What a server that knows the secret expects after "Signature=", from what it received.
std::string Expected(const SeenRequest& request, const std::string& secret) {
  std::string authorization = request.Header("authorization");
  auto field = [&](const std::string& name) {
    size_t start = authorization.find(name + "=") + name.size() + 1;
    return authorization.substr(start, authorization.find(',', start) - start);
  };
  std::string credential = field("Credential"), signed_headers = field("SignedHeaders");
  std::vector<std::string> scope;
  for (std::string_view part : Split(credential, '/')) scope.emplace_back(part);
  size_t question = request.target.find('?');
  std::string path = request.target.substr(0, question);
  std::multiset<std::string> query;
  if (question != std::string::npos) {
    for (std::string_view part :
         Split(std::string_view(request.target).substr(question + 1), '&')) {
      query.emplace(part);
    }
  }
  std::string text = request.method + "\n" + path + "\n";
  const char* separator = "";
  for (const std::string& part : query) {
    text += separator + part;
    separator = "&";
  }
  text += "\n";
  for (std::string_view name : Split(signed_headers, ';')) {
    text += std::string(name) + ":" + request.Header(name) + "\n";
  }
  text += "\n" + signed_headers + "\n" + request.Header("x-amz-content-sha256");
  std::string key = "AWS4" + secret, where;
  for (size_t i = 1; i < scope.size(); ++i) {
    key = Mac(key, scope[i]);
    where += (i > 1 ? "/" : "") + scope[i];
  }
  return ToHex(Mac(key, "AWS4-HMAC-SHA256\n" + request.Header("x-amz-date") + "\n" + where + "\n" +
                            ToHex(Digest(text))));
}

class ObjectStoreTest : public ::testing::Test {
 protected:
  ObjectStoreTest() { setenv("no_proxy", "127.0.0.1,localhost", 1); }

  std::unique_ptr<S3Store> S3(S3Settings settings, std::string bucket = "models") {
    if (settings.endpoint.empty()) settings.endpoint = server_.url();
    auto store = S3Store::Create(std::move(settings), std::move(bucket), {}, clock_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  S3Settings Signed() {
    S3Settings settings;
    settings.credentials = ExampleCredentials();
    settings.region = "eu-test-7";
    return settings;
  }

  FakeObjectServer server_;
  ManualClock clock_{kMay24};
};

TEST_F(ObjectStoreTest, SignedRequestsAreWhatAServerWorksOut) {
  server_.Put("/models/a%20b/%C3%BC%2B%25.gguf", {"0123456789", "\"e\"", "v 1/2"});
  server_.Put("/models/a%20b/%C3%BC%2B%25.gguf?versionId=v%201%2F2", {"0123456789", "\"e\"", ""});
  S3Settings settings = Signed();
  settings.credentials.session_token = "token/of+some=thing";
  auto store = S3(settings);
  const std::string key = "a b/\xC3\xBC+%.gguf";
  auto info = store->Stat(key, {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->bytes, 10u);
  EXPECT_EQ(info->etag, "\"e\"");
  EXPECT_EQ(info->version, "v 1/2");
  std::string out(4, ' ');
  ASSERT_TRUE(store->ReadRange(key, 3, std::as_writable_bytes(std::span(out)), *info, {}).ok());
  EXPECT_EQ(out, "3456");
  auto seen = server_.seen();
  ASSERT_EQ(seen.size(), 2u);
  for (const SeenRequest& request : seen) {
    std::string authorization = request.Header("authorization");
    EXPECT_THAT(authorization, HasSubstr("Credential=AKIAIOSFODNN7EXAMPLE/20130524/eu-test-7/s3/"));
    EXPECT_THAT(authorization, HasSubstr("x-amz-security-token"));
    EXPECT_EQ(request.Header("x-amz-security-token"), "token/of+some=thing");
    EXPECT_EQ(authorization.substr(authorization.find("Signature=") + 10),
              Expected(request, ExampleCredentials().secret_access_key));
    EXPECT_NE(authorization.substr(authorization.find("Signature=") + 10),
              Expected(request, "another secret"));
  }
  EXPECT_EQ(seen[1].Header("if-match"), "\"e\"");
  EXPECT_EQ(seen[1].Header("range"), "bytes=3-6");
  EXPECT_THAT(seen[1].target, HasSubstr("?versionId=v%201%2F2"));
}

TEST_F(ObjectStoreTest, VirtualHostStylePutsTheBucketBeforeTheHost) {
  server_.Put("/k", {"abc"});
  S3Settings settings = Signed();
  settings.endpoint = fmt::format("http://localhost:{}/", server_.port());
  settings.addressing = S3Addressing::kVirtualHost;
  auto store = S3(settings);
  auto info = store->Stat("k", {});
  ASSERT_TRUE(info.ok()) << info.status();
  SeenRequest request = server_.seen().at(0);
  EXPECT_EQ(request.Header("host"), fmt::format("models.localhost:{}", server_.port()));
  EXPECT_EQ(request.target, "/k");
  EXPECT_THAT(request.Header("authorization"),
              HasSubstr(Expected(request, ExampleCredentials().secret_access_key)));
}

TEST_F(ObjectStoreTest, WithoutCredentialsNothingIsSigned) {
  server_.Put("/models/k", {"abc"});
  ASSERT_TRUE(S3({})->Stat("k", {}).ok());
  EXPECT_EQ(server_.seen().at(0).Header("authorization"), "");
}

TEST_F(ObjectStoreTest, ListsPagesAndDecodesKeys) {
  server_.PutText("/models/?encoding-type=url&list-type=2&prefix=q%2F",
                  "<R><IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;1"
                  "</NextContinuationToken><Contents><Key>q%2Fa+b</Key><ETag>&quot;x&quot;</ETag>"
                  "<Size>7</Size></Contents></R>");
  server_.PutText("/models/?continuation-token=t%261&encoding-type=url&list-type=2&prefix=q%2F",
                  "<R><IsTruncated>false</IsTruncated><Contents><Key>q%2Fc</Key><Size>8</Size>"
                  "</Contents></R>");
  auto store = S3(Signed());
  auto entries = store->List("q/", {});
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].key, "q/a b");
  EXPECT_EQ((*entries)[0].etag, "\"x\"");
  EXPECT_EQ((*entries)[0].bytes, 7u);
  EXPECT_EQ((*entries)[1].key, "q/c");
  server_.PutText("/models/?encoding-type=url&list-type=2&prefix=loop",
                  "<IsTruncated>true</IsTruncated>");
  EXPECT_TRUE(absl::IsFailedPrecondition(store->List("loop", {}).status()));
  server_.PutText("/models/?encoding-type=url&list-type=2&prefix=bad",
                  "<Contents><Key>k</Key><Size>many</Size></Contents>");
  EXPECT_TRUE(absl::IsFailedPrecondition(store->List("bad", {}).status()));
}

TEST_F(ObjectStoreTest, EachAnswerHasItsCodeAndNamesTheObjectButNoSecret) {
  server_.Put("/models/k", {"abc"});
  auto store = S3(Signed());
  struct Case {
    int code;
    std::string body;
    absl::StatusCode want;
  };
  for (const Case& c : std::vector<Case>{
           {403, "<Error><Code>AccessDenied</Code></Error>", absl::StatusCode::kPermissionDenied},
           {404, "<Error><Code>NoSuchBucket</Code></Error>", absl::StatusCode::kNotFound},
           {503, "<Error><Code>SlowDown</Code></Error>", absl::StatusCode::kUnavailable},
           {500, "", absl::StatusCode::kUnavailable},
           {429, "", absl::StatusCode::kUnavailable},
           {400, "<Error><Code>RequestTimeout</Code></Error>", absl::StatusCode::kUnavailable},
           {400, "", absl::StatusCode::kFailedPrecondition},
           {301, "", absl::StatusCode::kFailedPrecondition}}) {
    server_.Add({Fault::kRefuse, 1, std::nullopt, c.code, "Retry-After: 7\r\n", c.body});
    int64_t retry_after_us = 0;
    absl::Status status = store->Stat("k", {nullptr, 0, &retry_after_us}).status();
    EXPECT_EQ(status.code(), c.want) << c.code << ": " << status;
    std::string message(Message(status));
    EXPECT_THAT(message, HasSubstr("s3://models/k"));
    EXPECT_THAT(message, HasSubstr(std::to_string(c.code)));
    EXPECT_THAT(message, HasSubstr(XmlText(c.body, "Code")));
    EXPECT_THAT(message, Not(HasSubstr("wJalr")));
    EXPECT_THAT(message, Not(HasSubstr("AKIA")));
    EXPECT_EQ(retry_after_us, 7000000);
  }
}

TEST_F(ObjectStoreTest, ChangedObjectIsAborted) {
  server_.Put("/models/k", {"abcdef", "\"1\""});
  auto store = S3(Signed());
  auto info = store->Stat("k", {});
  ASSERT_TRUE(info.ok()) << info.status();
  server_.Put("/models/k", {"ghijkl", "\"2\""});
  std::string out(2, ' ');
  auto bytes = std::as_writable_bytes(std::span(out));
  EXPECT_TRUE(absl::IsAborted(store->ReadRange("k", 0, bytes, *info, {})));
  // Of a weak ETag the client itself must see the change: If-Match would never match.
  server_.Put("/models/k", {"ghijkl", "W/\"3\""});
  info = store->Stat("k", {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_FALSE(info->Pinned());
  ASSERT_TRUE(store->ReadRange("k", 0, bytes, *info, {}).ok());
  server_.Put("/models/k", {"ghijkl", "W/\"4\""});
  EXPECT_TRUE(absl::IsAborted(store->ReadRange("k", 0, bytes, *info, {})));
  EXPECT_TRUE(absl::IsInvalidArgument(store->ReadRange("k", 5, bytes, *info, {})));
}

TEST_F(ObjectStoreTest, AVersionPinsTheObjectThatIsReplaced) {
  server_.Put("/models/k", {"abcdef", "\"1\"", "one"});
  auto store = S3(Signed());
  auto info = store->Stat("k", {});
  ASSERT_TRUE(info.ok()) << info.status();
  server_.Put("/models/k", {"ghijkl", "\"2\"", "two"});
  std::string out(6, ' ');
  absl::Status status = store->ReadRange("k", 0, std::as_writable_bytes(std::span(out)), *info, {});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(out, "abcdef");
}

TEST_F(ObjectStoreTest, PlainHttpReadsRangesAndHidesQueriesAndPasswords) {
  server_.Put("/d/k?sig=secret", {"abcdef"});
  HttpStore store(server_.url() + "/d/", {});
  auto info = store.Stat("k?sig=secret", {});
  ASSERT_TRUE(info.ok()) << info.status();
  std::string out(3, ' ');
  ASSERT_TRUE(
      store.ReadRange("k?sig=secret", 2, std::as_writable_bytes(std::span(out)), *info, {}).ok());
  EXPECT_EQ(out, "cde");
  EXPECT_EQ(store.NameOf("k?sig=secret"), server_.url() + "/d/k");
  EXPECT_EQ(HttpStore("", {}).NameOf("https://u:p@w@host/a@b"), "https://host/a@b");
  EXPECT_TRUE(absl::IsUnimplemented(store.List("", {}).status()));
  absl::Status missing = store.Stat("none?sig=secret", {}).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(Message(missing)), Not(HasSubstr("secret")));
}

TEST_F(ObjectStoreTest, EmptyObjectsAndServersWithoutRanges) {
  server_.Put("/models/empty", {""});
  auto store = S3(Signed());
  auto info = store->Stat("empty", {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->bytes, 0u);
  server_.PutText("/models/whole", "all of it, always");
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Stat("whole", {}).status()));
}

TEST_F(ObjectStoreTest, SettingsComeFromTheEnvironment) {
  std::map<std::string, std::string, std::less<>> variables = {
      {"AWS_ENDPOINT_URL", "http://general"},
      {"AWS_DEFAULT_REGION", "r"},
      {"AWS_ACCESS_KEY_ID", "id"},
      {"AWS_SECRET_ACCESS_KEY", "secret"},
      {"AWS_SESSION_TOKEN", "token"}};
  auto environment = [&](std::string_view name) {
    auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  auto settings = S3SettingsFrom(environment);
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->endpoint, "http://general");
  EXPECT_EQ(settings->region, "r");
  EXPECT_EQ(settings->credentials.session_token, "token");
  variables["AWS_ENDPOINT_URL_S3"] = "http://own";
  EXPECT_EQ(S3SettingsFrom(environment)->endpoint, "http://own");
  EXPECT_EQ(settings->addressing, S3Addressing::kAuto);
  EXPECT_EQ(settings->ca_file, "");
  variables["AWS_CA_BUNDLE"] = "/k/ca.pem";
  EXPECT_EQ(S3SettingsFrom(environment)->ca_file, "/k/ca.pem");
  variables["AWS_S3_ADDRESSING_STYLE"] = "virtual";
  EXPECT_EQ(S3SettingsFrom(environment)->addressing, S3Addressing::kVirtualHost);
  variables["AWS_S3_ADDRESSING_STYLE"] = "path";
  EXPECT_EQ(S3SettingsFrom(environment)->addressing, S3Addressing::kPath);
  variables["AWS_S3_ADDRESSING_STYLE"] = "host";
  EXPECT_TRUE(absl::IsInvalidArgument(S3SettingsFrom(environment).status()));
  variables["AWS_S3_ADDRESSING_STYLE"] = "auto";
  EXPECT_EQ(S3SettingsFrom(environment)->addressing, S3Addressing::kAuto);
  variables.erase("AWS_SECRET_ACCESS_KEY");
  EXPECT_TRUE(absl::IsInvalidArgument(S3SettingsFrom(environment).status()));
}

TEST_F(ObjectStoreTest, WhatCannotBeAPlaceIsRefused) {
  for (const char* url : {"s3://", "s3://b", "s3://bucket", "s3://bucket/", "s3://b\nc/k", "x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseS3Url(url).status())) << url;
  }
  auto location = ParseS3Url("s3://bucket/a/b.gguf");
  ASSERT_TRUE(location.ok());
  EXPECT_EQ(location->bucket, "bucket");
  EXPECT_EQ(location->key, "a/b.gguf");
  for (const char* endpoint : {"ftp://h", "http://", "http://u:pw@h", "http://h/path"}) {
    S3Settings settings;
    settings.endpoint = endpoint;
    absl::Status status = S3Store::Create(settings, "bucket", {}, clock_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << endpoint;
    EXPECT_THAT(std::string(Message(status)), Not(HasSubstr("pw")));
  }
  S3Settings split;
  split.credentials = {"id\r\nX: y", "secret", ""};
  EXPECT_TRUE(absl::IsInvalidArgument(S3Store::Create(split, "bucket", {}, clock_).status()));
}

}  // namespace
}  // namespace terrace::storage
