// Headers of safetensors files as hostile input (case A06).
#include "format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/status.h"

namespace terrace::format {
namespace {

using testing::HasSubstr;

std::string File(const std::string& header, size_t data_bytes, int64_t length = -1) {
  const auto size =
      static_cast<uint64_t>(length < 0 ? static_cast<int64_t>(header.size()) : length);
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  return bytes + header + std::string(data_bytes, '\x11');
}

absl::StatusOr<SafetensorsHeader> Read(const std::string& bytes) {
  auto source = MemorySource("m.safetensors", std::as_bytes(std::span(bytes)));
  return ReadSafetensorsHeader(*source);
}

std::string ErrorOf(const std::string& bytes) {
  auto header = Read(bytes);
  return header.ok() ? "no error" : std::string(Message(header.status()));
}

std::string One(const std::string& dtype, const std::string& shape, const std::string& range) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + range +
         "}}";
}

TEST(Safetensors, ReadsTensorsInOrderOfTheirData) {
  auto header = Read(File(R"({"__metadata__":{"format":"pt"},
      "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
      "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
      "e":{"dtype":"I8","shape":[0,7],"data_offsets":[16,16]}})",
                          16));
  ASSERT_TRUE(header.ok()) << Message(header.status());
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].dtype, SafeDType::kBF16);
  EXPECT_EQ(header->tensors[1].offset, header->tensors[0].offset + 4);
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header->tensors[2].bytes, 0u);
}

// A06: what a shape needs and what its range has must agree, inside the file, before data is read.
TEST(Safetensors, A06ShapesAndRangesThatDisagreeAreRefused) {
  EXPECT_THAT(ErrorOf(File(One("F32", "[1000,1000]", "[0,4]"), 4)),
              HasSubstr("tensor 't': its shape [1000, 1000] of F32 takes 4000000 bytes, its range "
                        "[0, 4) has 4"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[1]", "[4,0]"), 4)),
              HasSubstr("tensor 't': its data ends at 0 before it begins at 4"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[2]", "[0,8]"), 7)),
              HasSubstr("tensor 't' ends at byte 8 of the data, of which the file has 7: 1 are"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[1]", "[-4,0]"), 4)), HasSubstr("data_offsets holds -4"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[4294967296,4294967296,4]", "[0,4]"), 4)),
              HasSubstr("takes over 2^64 bytes"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[-1]", "[0,4]"), 4)), HasSubstr("its shape holds -1"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[1.5]", "[0,4]"), 4)), HasSubstr("its shape holds 1.5"));
}

TEST(Safetensors, A06TheHeadersLengthIsCheckedUnread) {
  EXPECT_THAT(ErrorOf(File("{}", 0, 3)), HasSubstr("takes 3 bytes, but the file has 10: 1 bytes"));
  EXPECT_THAT(ErrorOf(File("{}", 0, 100'000'001)), HasSubstr("at most 100000000 are read"));
  EXPECT_THAT(ErrorOf(File("{}", 0, INT64_MAX)), HasSubstr("at most 100000000 are read"));
  EXPECT_THAT(ErrorOf("1234567"), HasSubstr("7 bytes, too short"));
  EXPECT_EQ(Read("1234567").status().code(), absl::StatusCode::kDataLoss);
}

TEST(Safetensors, MalformedHeadersAreRefusedByName) {
  EXPECT_THAT(ErrorOf(File("nonsense", 0)), HasSubstr("not JSON"));
  EXPECT_THAT(ErrorOf(File("[]", 0)), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(File(R"({"t":5})", 0)), HasSubstr("tensor 't': its entry"));
  EXPECT_THAT(ErrorOf(File(R"({"t":{}})", 0)), HasSubstr("tensor 't': it has no dtype"));
  EXPECT_THAT(ErrorOf(File(One("Q9", "[1]", "[0,4]"), 4)), HasSubstr("dtype 'Q9' is not known"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[1]", "[0]"), 4)), HasSubstr("not [begin, end]"));
  EXPECT_THAT(ErrorOf(File(One("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4)),
              HasSubstr("shape is not a list of at most 8"));
  EXPECT_THAT(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                               "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                           8)),
              HasSubstr("tensor 'b': its data overlaps that of 'a'"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[";
  EXPECT_THAT(ErrorOf(File(R"({"t":)" + deep, 0)), HasSubstr("not JSON"));
}

}  // namespace
}  // namespace terrace::format
