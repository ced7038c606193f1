// The object tier against a real S3 server: what it signs is verified there, and what is pinned,
// listed and refused is what that server makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "base/status.h"
#include "ceph_gateway_testing.h"
#include "storage/object/object_download.h"

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RealS3Test : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("no_proxy", "127.0.0.1,localhost,.localhost", 1);
    if (!CephGateway::Installed()) return;
    gateway_ = new CephGateway;
    if (!gateway_->running()) return;
    for (const char* bucket : {"models", "kept"}) gateway_->Do({"bucket", bucket});
  }
  static void TearDownTestSuite() {
    delete gateway_;
    gateway_ = nullptr;
  }
  void SetUp() override {
    if (!CephGateway::Installed()) {
      GTEST_SKIP() << "radosgw, ceph-mon and ceph-osd are not installed";
    }
    ASSERT_TRUE(gateway_->running()) << gateway_->error();
    RecordProperty("with", "the RADOS Gateway of Ceph " + gateway_->version() + " as S3 server");
    std::string pattern = (fs::temp_directory_path() / "terrace-s3-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  S3Settings Settings() {
    S3Settings settings;
    settings.endpoint = gateway_->endpoint();
    settings.credentials = gateway_->credentials();
    return settings;
  }
  std::unique_ptr<S3Store> Open(S3Settings settings, const std::string& bucket = "models") {
    auto store = S3Store::Create(std::move(settings), bucket, {}, clock_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Its ETag.
  std::string Store(const std::string& command, const std::string& bucket, const std::string& key,
                    const std::string& body) {
    std::ofstream(folder_ + "/body", std::ios::binary) << body;
    const auto words = gateway_->Do({command, bucket, key, folder_ + "/body"});
    EXPECT_FALSE(words.empty()) << gateway_->error();
    return words.empty() ? "" : words[0];
  }
  static absl::StatusOr<std::string> Read(S3Store& store, const std::string& key,
                                          const ObjectInfo& pinned, uint64_t offset,
                                          uint64_t bytes) {
    std::string out(bytes, '\0');
    RETURN_IF_ERROR(store.ReadRange(
        key, offset, std::as_writable_bytes(std::span(out.data(), out.size())), pinned, {}));
    return out;
  }
  static std::string RandomText(size_t bytes) {
    Random random(5);
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(random.Next());
    return text;
  }

  static CephGateway* gateway_;  // one for all of these tests
  RealClock clock_;
  std::string folder_;
};

CephGateway* RealS3Test::gateway_ = nullptr;

TEST_F(RealS3Test, KeysOfAllKindsAreSignedAndReadInBothStyles) {
  const std::vector<std::string> keys = {"plain.gguf", "a b/\xC3\xBC+%.gguf",
                                         "x=y&z;~'()*!,@:$.gguf", "deep/er//than/./this",
                                         "per%20cent?#"};
  const std::string body = RandomText(100'000);
  std::vector<std::string> etags;
  for (const std::string& key : keys) etags.push_back(Store("put", "models", key, body));
  S3Settings path = Settings(), host = Settings();
  path.addressing = S3Addressing::kPath;
  host.addressing = S3Addressing::kVirtualHost;
  host.endpoint = "http://localhost" + host.endpoint.substr(host.endpoint.rfind(':'));
  for (const S3Settings& settings : {path, host}) {
    auto store = Open(settings);
    for (size_t i = 0; i < keys.size(); ++i) {
      SCOPED_TRACE(keys[i] + " at " + settings.endpoint);
      auto info = store->Stat(keys[i], {});
      ASSERT_TRUE(info.ok()) << info.status();
      EXPECT_EQ(info->bytes, body.size());
      EXPECT_EQ(info->etag, etags[i]);
      EXPECT_TRUE(info->Pinned());
      for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
               {0, 1}, {4096, 8192}, {99'999, 1}, {0, 100'000}}) {
        auto text = Read(*store, keys[i], *info, offset, bytes);
        ASSERT_TRUE(text.ok()) << text.status();
        EXPECT_TRUE(*text == body.substr(offset, bytes)) << bytes << " bytes at " << offset;
      }
    }
  }
}

TEST_F(RealS3Test, WhoMayNotReadIsToldSoWithoutTheSecret) {
  Store("put", "models", "private", "abc");
  S3Settings wrong = Settings(), nobody = Settings(), stranger = Settings();
  wrong.credentials.secret_access_key += "x";
  nobody.credentials = {};
  stranger.credentials.access_key_id = "somebody";
  for (const S3Settings& settings : {wrong, nobody, stranger}) {
    const absl::Status status = Open(settings)->Stat("private", {}).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(Message(status)),
                AllOf(HasSubstr("s3://models/private"), Not(HasSubstr("secret"))));
  }
  EXPECT_TRUE(absl::IsNotFound(Open(Settings())->Stat("not there", {}).status()));
  EXPECT_TRUE(absl::IsNotFound(Open(Settings(), "no-such-bucket")->Stat("k", {}).status()));
  // Signed by a clock that is an hour late.
  const ManualClock late(clock_.WallUs() - int64_t{3600} * 1'000'000);
  auto store = S3Store::Create(Settings(), "models", {}, late);
  ASSERT_TRUE(store.ok());
  EXPECT_TRUE(absl::IsPermissionDenied((*store)->Stat("private", {}).status()));
}

TEST_F(RealS3Test, OverTlsItsCertificateIsChecked) {
  Store("put", "models", "private", "abc");
  S3Settings settings = Settings();
  settings.endpoint = gateway_->tls_endpoint();
  const absl::Status unknown = Open(settings)->Stat("private", {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unknown)) << unknown;
  EXPECT_THAT(std::string(Message(unknown)), HasSubstr("certificate"));
  settings.ca_file = gateway_->certificate();
  for (const S3Addressing addressing : {S3Addressing::kPath, S3Addressing::kVirtualHost}) {
    settings.addressing = addressing;
    auto store = Open(settings);
    auto info = store->Stat("private", {});
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(*Read(*store, "private", *info, 1, 2), "bc");
  }
  // Of another host's name.
  settings.addressing = S3Addressing::kPath;
  settings.endpoint.replace(settings.endpoint.find("localhost"), 9, "127.0.0.1");
  EXPECT_TRUE(absl::IsFailedPrecondition(Open(settings)->Stat("private", {}).status()));
  settings.ca_file = folder_ + "/none.pem";
  const absl::Status missing = Open(settings)->Stat("private", {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(missing)) << missing;
}

TEST_F(RealS3Test, TemporaryCredentialsNeedTheirToken) {
  Store("put", "models", "private", "abc");
  const auto words = gateway_->Do({"session"});
  ASSERT_EQ(words.size(), 3u) << gateway_->error();
  S3Settings settings = Settings();
  settings.credentials = {words[0], words[1], words[2]};
  auto info = Open(settings)->Stat("private", {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->bytes, 3u);
  EXPECT_EQ(*Read(*Open(settings), "private", *info, 1, 2), "bc");
  settings.credentials.session_token.clear();
  EXPECT_TRUE(absl::IsPermissionDenied(Open(settings)->Stat("private", {}).status()));
  settings.credentials.session_token = words[2];
  settings.credentials.secret_access_key = gateway_->credentials().secret_access_key;
  EXPECT_TRUE(absl::IsPermissionDenied(Open(settings)->Stat("private", {}).status()));
}

TEST_F(RealS3Test, AnObjectThatIsReplacedOrDeletedIsNoticed) {
  auto store = Open(Settings());
  Store("put", "models", "k", "old text");
  auto info = store->Stat("k", {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version, "");
  Store("put", "models", "k", "new text");
  EXPECT_TRUE(absl::IsAborted(Read(*store, "k", *info, 2, 3).status()));
  info = store->Stat("k", {});
  EXPECT_EQ(*Read(*store, "k", *info, 0, 8), "new text");
  ASSERT_FALSE(gateway_->Do({"delete", "models", "k"}).empty()) << gateway_->error();
  EXPECT_TRUE(absl::IsNotFound(Read(*store, "k", *info, 2, 3).status()));
}

TEST_F(RealS3Test, AVersionThatIsKeptIsReadToItsEnd) {
  ASSERT_FALSE(gateway_->Do({"bucket", "versions", "versioned"}).empty()) << gateway_->error();
  auto store = Open(Settings(), "versions");
  Store("put", "versions", "k", "old text");
  auto info = store->Stat("k", {});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_NE(info->version, "");
  Store("put", "versions", "k", "new text");
  EXPECT_EQ(*Read(*store, "k", *info, 0, 8), "old text");
  EXPECT_EQ(*Read(*store, "k", *store->Stat("k", {}), 0, 8), "new text");
  ASSERT_FALSE(gateway_->Do({"delete", "versions", "k"}).empty()) << gateway_->error();
  EXPECT_EQ(*Read(*store, "k", *info, 0, 8), "old text");
  EXPECT_TRUE(absl::IsNotFound(store->Stat("k", {}).status()));
}

// More than the thousand that one answer holds.
TEST_F(RealS3Test, ListsAllPages) {
  constexpr size_t kMany = 1003;
  ASSERT_FALSE(gateway_->Do({"fill", "kept", "many/a b+", std::to_string(kMany)}).empty())
      << gateway_->error();
  Store("put", "kept", "other", "1");
  auto entries = Open(Settings(), "kept")->List("many/", {});
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), kMany);
  EXPECT_EQ(entries->front().key, "many/a b+0000");
  EXPECT_EQ(entries->back().key, "many/a b+1002");
  EXPECT_EQ(entries->back().bytes, 4u);  // its number
}

TEST_F(RealS3Test, ADownloadOfAnObjectOfPartsGoesOnAndBeginsAnewIfThatHasChanged) {
  const std::string body = RandomText(22 << 20);
  const std::string etag = Store("upload", "models", "large", body);
  EXPECT_THAT(etag, HasSubstr("-"));  // of parts: no checksum of the whole
  auto store = Open(Settings());
  Random random(1);
  RealSleeper sleeper;
  const DownloadContext context{clock_, random, sleeper};
  std::atomic<bool> cancel = false;
  std::atomic<int> landed = 0;
  DownloadOptions options;
  options.range_bytes = 1 << 20;
  options.parallel = 4;
  options.save_bytes = 1 << 20;
  options.cancel = &cancel;
  options.landed = [&](uint64_t, uint64_t) { cancel = ++landed >= 5; };
  const std::string file = folder_ + "/large";
  EXPECT_TRUE(absl::IsCancelled(DownloadObject(*store, "large", file, options, context).status()));
  options.cancel = nullptr;
  options.landed = nullptr;
  auto result = DownloadObject(*store, "large", file, options, context);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->resumed_at_bytes, 0u);
  const auto contents = [&] {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_TRUE(contents() == body);
  // Replaced while it comes: nothing of the old one stays.
  fs::remove(file);
  const std::string other = RandomText((22 << 20) + 1).substr(1);
  options.parallel = 1;  // no other one goes on meanwhile
  options.landed = [&](uint64_t, uint64_t) {
    if (++landed == 8) Store("upload", "models", "large", other);
  };
  landed = 0;
  result = DownloadObject(*store, "large", file, options, context);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->restarts, 1);
  EXPECT_TRUE(contents() == other);
}

}  // namespace
}  // namespace terrace::storage
