// Split sets and folders of models (case A05).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "format/gguf.h"
#include "format/model_set.h"
#include "format_testing.h"

namespace terrace::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kGolden = std::string(TERRACE_TEST_DATA) + "/golden";

struct PartPlan {
  int64_t no, count, total;
  std::vector<TensorInfo> tensors;
};

// Cuts the tiny qwen3 in `parts`, lets `change` alter the plan, and writes the parts.
std::string Split(const TempFolder& folder, uint32_t parts,
                  std::function<void(std::vector<PartPlan>&)> change = {}) {
  auto model = OpenGguf(kGolden + "/arch/qwen3.gguf").value();
  std::vector<PartPlan> plan(parts);
  for (uint32_t i = 0; i < parts; ++i) {
    plan[i] = {i, parts, static_cast<int64_t>(model.tensors.size()), {}};
  }
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    plan[i * parts / model.tensors.size()].tensors.push_back(model.tensors[i]);
  }
  if (change) change(plan);
  for (uint32_t i = 0; i < parts; ++i) {
    GgufWriter writer;
    if (i == 0) writer.AddMetadata(model.metadata);
    writer.AddInt("split.no", GgufValueType::kUint16, plan[i].no);
    writer.AddInt("split.count", GgufValueType::kUint16, plan[i].count);
    writer.AddInt("split.tensors.count", GgufValueType::kInt32, plan[i].total);
    for (const TensorInfo& tensor : plan[i].tensors) {
      writer.AddTensor(tensor.name, tensor.dtype, tensor.shape,
                       [&](uint64_t offset, std::span<std::byte> out) {
                         return model.ReadTensor(tensor, offset, out);
                       });
    }
    EXPECT_TRUE(writer.Write(PartPath(folder / "tiny", i + 1, parts)).ok());
  }
  return PartPath(folder / "tiny", 1, parts);
}

std::string OpenError(const std::string& path) {
  auto model = OpenGguf(path);
  return model.ok() ? "(accepted)" : std::string(Message(model.status()));
}

TEST(GgufSet, EveryPartOpensTheWholeModel) {
  TempFolder folder;
  Split(folder, 3);
  auto whole = OpenGguf(kGolden + "/arch/qwen3.gguf").value();
  for (uint32_t part = 1; part <= 3; ++part) {
    auto model = OpenGguf(PartPath(folder / "tiny", part, 3));
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_EQ(model->tensors.size(), whole.tensors.size());
    EXPECT_EQ(model->identity.size(), 3u);
    EXPECT_EQ(model->metadata.GetString("general.architecture").value(), "qwen3");
    for (size_t i = 0; i < whole.tensors.size(); ++i) {
      const TensorInfo &got = model->tensors[i], &want = whole.tensors[i];
      EXPECT_EQ(got.name, want.name);
      EXPECT_EQ(got.shape, want.shape);
      std::vector<std::byte> got_data(got.bytes), want_data(want.bytes);
      ASSERT_TRUE(model->ReadTensor(got, 0, got_data).ok());
      ASSERT_TRUE(whole.ReadTensor(want, 0, want_data).ok());
      EXPECT_EQ(got_data, want_data) << want.name;
    }
  }
}

TEST(GgufSet, NamesAMissingPart) {
  TempFolder folder;
  std::string first = Split(folder, 3);
  std::filesystem::remove(PartPath(folder / "tiny", 2, 3));
  for (uint32_t part : {1, 3}) {
    EXPECT_THAT(OpenError(PartPath(folder / "tiny", part, 3)),
                AllOf(HasSubstr("part 2 of 3"), HasSubstr("tiny-00002-of-00003.gguf")));
  }
}

TEST(GgufSet, NamesACutOffPart) {
  TempFolder folder;
  std::string first = Split(folder, 3);
  std::string second = PartPath(folder / "tiny", 2, 3);
  std::filesystem::resize_file(second, std::filesystem::file_size(second) - 100);
  EXPECT_THAT(OpenError(first), AllOf(HasSubstr(second), HasSubstr("are missing")));
}

TEST(GgufSet, RefusesATensorInTwoParts) {
  TempFolder folder;
  std::string first = Split(folder, 3, [](std::vector<PartPlan>& plan) {
    plan[2].tensors.push_back(plan[0].tensors[0]);
    for (PartPlan& part : plan) ++part.total;
  });
  EXPECT_THAT(OpenError(first), AllOf(HasSubstr("is in two parts"), HasSubstr("00001-of-00003"),
                                      HasSubstr("00003-of-00003")));
}

TEST(GgufSet, RefusesTotalsThatDiffer) {
  {
    TempFolder folder;
    std::string first = Split(folder, 3, [](auto& plan) { plan[1].total += 1; });
    EXPECT_THAT(OpenError(first), AllOf(HasSubstr("00002-of-00003"), HasSubstr("declares")));
  }
  {
    TempFolder folder;
    std::string first = Split(folder, 3, [](auto& plan) { plan[2].count = 4; });
    EXPECT_THAT(OpenError(first), AllOf(HasSubstr("00003-of-00003"), HasSubstr("split.count")));
  }
  {
    TempFolder folder;
    std::string first = Split(folder, 3, [](auto& plan) { plan[1].no = 2; });
    EXPECT_THAT(OpenError(first), AllOf(HasSubstr("00002-of-00003"), HasSubstr("split.no")));
  }
  {
    TempFolder folder;
    std::string first =
        Split(folder, 3, [](std::vector<PartPlan>& plan) { plan[1].tensors.pop_back(); });
    EXPECT_THAT(OpenError(first), HasSubstr("split.tensors.count"));
  }
}

TEST(GgufSet, RefusesARenamedPart) {
  TempFolder folder;
  std::string first = Split(folder, 3);
  std::string renamed = folder / "renamed.gguf";
  std::filesystem::copy_file(PartPath(folder / "tiny", 2, 3), renamed);
  EXPECT_THAT(OpenError(renamed), AllOf(HasSubstr(renamed), HasSubstr("part 2 of 3")));
  // A whole file under a part's name is no set either.
  std::filesystem::copy_file(kGolden + "/arch/qwen3.gguf", PartPath(folder / "whole", 1, 2));
  std::filesystem::copy_file(kGolden + "/arch/qwen3.gguf", PartPath(folder / "whole", 2, 2));
  EXPECT_THAT(OpenError(PartPath(folder / "whole", 1, 2)), HasSubstr("split.count"));
}

TEST(GgufSet, RefusesASetOfTooManyParts) {
  TempFolder folder;
  WriteFile(PartPath(folder / "x", 1, 99999), "GGUF");
  EXPECT_THAT(OpenError(PartPath(folder / "x", 1, 99999)), HasSubstr("99999 parts"));
}

TEST(ModelSet, ListsEachSetOnce) {
  TempFolder folder;
  Split(folder, 3);
  std::filesystem::copy_file(kGolden + "/arch/llama.gguf", folder / "llama.gguf");
  WriteFile(PartPath(folder / "half", 2, 2), "x");
  WriteFile(folder / "notes.txt", "x");
  std::filesystem::create_directory(folder / "folder.gguf");
  auto entries = ListModelFiles(folder.path());
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 3u);
  EXPECT_EQ((*entries)[0].name, "half");
  EXPECT_EQ((*entries)[0].missing_parts, 1u);
  EXPECT_EQ((*entries)[0].first_missing, "half-00001-of-00002.gguf");
  EXPECT_EQ((*entries)[1].name, "llama");
  EXPECT_EQ((*entries)[1].parts, 1u);
  EXPECT_EQ((*entries)[2].name, "tiny");
  EXPECT_EQ((*entries)[2].parts, 3u);
  EXPECT_EQ((*entries)[2].missing_parts, 0u);
  EXPECT_TRUE(OpenGguf((*entries)[2].path).ok());
  EXPECT_FALSE(ListModelFiles(folder / "absent").ok());
}

TEST(ModelSet, ParsesPartNamesStrictly) {
  auto name = ParsePartName("/m/x-y-00002-of-00013.gguf");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->base, "/m/x-y");
  EXPECT_EQ(name->part, 2u);
  EXPECT_EQ(name->count, 13u);
  for (const char* no : {"x.gguf", "x-00000-of-00003.gguf", "x-00004-of-00003.gguf",
                         "x-0001-of-0003.gguf", "-00001-of-00003.gguf", "/-00001-of-00003.gguf",
                         "x-00001-of-00003.bin", "x-+0001-of-00003.gguf", "x00001-of-00003.gguf"}) {
    EXPECT_FALSE(ParsePartName(no).has_value()) << no;
  }
}

}  // namespace
}  // namespace terrace::format
