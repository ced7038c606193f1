// The model store: versions, the current one, and what is left after removals and crashes.
#include "weights/model_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "../format/format_testing.h"
#include "format/model_set.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
using format::TempFolder;
using format::WriteFile;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ModelStoreTest : public ::testing::Test {
 protected:
  StoredVersion Add(const std::string& name, const std::string& version = "",
                    const std::string& text = "weights") {
    auto incoming = store_.Begin(name, "somewhere");
    EXPECT_TRUE(incoming.ok()) << incoming.status();
    WriteFile((*incoming)->folder() + "/m.gguf", text);
    auto stored = store_.Publish(*std::move(incoming), version, "somewhere",
                                 {{"m.gguf", text.size(), "abc"}});
    EXPECT_TRUE(stored.ok()) << stored.status();
    return *stored;
  }
  std::string Error(const std::string& reference) {
    return std::string(Message(store_.Resolve(reference).status()));
  }

  TempFolder folder_;
  ModelStore store_{folder_ / "models"};
};

TEST_F(ModelStoreTest, AnAbsentFolderIsAnEmptyStore) {
  EXPECT_TRUE(store_.List().value().empty());
  EXPECT_TRUE(absl::IsNotFound(store_.Resolve("m").status()));
}

TEST_F(ModelStoreTest, NumbersVersionsAndFollowsTheCurrentOne) {
  EXPECT_EQ(Add("m").version, "1");
  EXPECT_EQ(Add("m", "", "new").version, "2");
  EXPECT_EQ(Add("m", "beta").version, "beta");
  EXPECT_EQ(Add("m").version, "3");
  auto model = store_.Find("m").value();
  std::vector<std::string> versions;
  for (const StoredVersion& version : model.versions) versions.push_back(version.version);
  EXPECT_THAT(versions, ElementsAre("1", "2", "3", "beta"));
  EXPECT_EQ(store_.Resolve("m")->version, "3");
  StoredVersion second = store_.Resolve("m@2").value();
  EXPECT_EQ(format::ReadFile(second.path), "new");
  EXPECT_EQ(second.bytes, 3u);
  EXPECT_EQ(second.source, "somewhere");
  EXPECT_THAT(second.files, ElementsAre(StoredFile{"m.gguf", 3, "abc"}));
  EXPECT_FALSE(second.current);
  ASSERT_TRUE(store_.SetCurrent("m", "1").ok());
  EXPECT_EQ(store_.Resolve("m")->version, "1");
  EXPECT_TRUE(absl::IsNotFound(store_.SetCurrent("m", "9")));
  EXPECT_EQ(store_.Resolve("m")->version, "1");
}

TEST_F(ModelStoreTest, NamesAreChecked) {
  for (const char* bad : {"", ".", "..", "a/b", "../x", "a@", "@1", "a@..", "current", "a@current",
                          "a@1@2", ".hidden", "a b", "\xc3\xa4"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseReference(bad).status())) << bad;
    EXPECT_FALSE(store_.Begin(bad, "s").ok()) << bad;
    EXPECT_FALSE(store_.Remove(bad).ok()) << bad;
  }
  EXPECT_FALSE(store_.Begin("a@1", "s").ok());
  EXPECT_EQ(ParseReference("qwen3-0.6b@1").value().version, "1");
}

TEST_F(ModelStoreTest, ErrorsNameWhatThereIs) {
  Add("qwen3");
  Add("qwen3");
  EXPECT_THAT(Error("qwen"), HasSubstr("did you mean 'qwen3'"));
  EXPECT_THAT(Error("qwen3@7"), AllOf(HasSubstr("'7'"), HasSubstr("1, 2")));
  fs::remove(store_.folder() + "/qwen3/current");
  EXPECT_THAT(Error("qwen3"), HasSubstr("no current version"));
  EXPECT_EQ(store_.Resolve("qwen3@2")->version, "2");
}

TEST_F(ModelStoreTest, APublishedVersionIsNeverOverwritten) {
  Add("m", "1");
  auto incoming = store_.Begin("m", "s").value();
  EXPECT_TRUE(absl::IsAlreadyExists(store_.Publish(std::move(incoming), "1", "s", {}).status()));
  EXPECT_EQ(format::ReadFile(store_.Resolve("m")->path), "weights");
}

TEST_F(ModelStoreTest, IncomingFilesAreKeptForTheSameSourceOnly) {
  auto first = store_.Begin("m", "a").value();
  WriteFile(first->folder() + "/x.gguf.partial", "half");
  EXPECT_TRUE(absl::IsAborted(store_.Begin("m", "a").status())) << "one at a time";
  first.reset();
  auto again = store_.Begin("m", "a").value();
  EXPECT_TRUE(fs::exists(again->folder() + "/x.gguf.partial"));
  again.reset();
  auto other = store_.Begin("m", "b").value();
  EXPECT_FALSE(fs::exists(other->folder() + "/x.gguf.partial"));
  EXPECT_TRUE(store_.List().value().empty()) << "what is under way does not show";
  ASSERT_TRUE(store_.Discard(std::move(other)).ok());
  EXPECT_FALSE(fs::exists(store_.folder() + "/m"));
}

TEST_F(ModelStoreTest, RemovesVersionsAndModels) {
  Add("m");
  Add("m");
  Add("n");
  ASSERT_TRUE(store_.Remove("m@2").ok());
  EXPECT_EQ(store_.Resolve("m")->version, "1") << "the newest of the others";
  EXPECT_TRUE(absl::IsNotFound(store_.Remove("m@2")));
  ASSERT_TRUE(store_.Remove("m@1").ok());
  EXPECT_TRUE(absl::IsNotFound(store_.Resolve("m").status()));
  ASSERT_TRUE(store_.Remove("n").ok());
  EXPECT_TRUE(fs::is_empty(store_.folder()));
}

TEST_F(ModelStoreTest, ProblemsAreTold) {
  StoredVersion version = Add("m");
  fs::rename(version.path, fs::path(version.path).parent_path() / "m-00001-of-00002.gguf");
  EXPECT_THAT(Error("m"), AllOf(HasSubstr("m@1"), HasSubstr("m-00002-of-00002.gguf")));
  EXPECT_EQ(store_.List().value()[0].versions[0].parts, 2u);
  WriteFile(store_.folder() + "/m/1/other.gguf", "x");
  EXPECT_THAT(Error("m"), HasSubstr("2 models"));
}

}  // namespace
}  // namespace terrace::weights
