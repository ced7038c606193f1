// Reading single GGUF files: what good files hold, and how bad ones are refused (cases A01 to A04).
#include "format/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>

#include "format_testing.h"
#include "tensor/dtype.h"

namespace terrace::format {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGolden = std::string(TERRACE_TEST_DATA) + "/golden";

absl::StatusOr<GgufHeader> Parse(std::string_view bytes, std::string name = "m.gguf") {
  return ReadGgufHeader(*MemorySource(std::move(name), std::as_bytes(std::span(bytes))));
}

std::string Error(std::string_view bytes) {
  auto header = Parse(bytes);
  return header.ok() ? "(accepted)" : std::string(Message(header.status()));
}

uint64_t PeakRssBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(Gguf, ReadsEveryGoldenModel) {
  int models = 0;
  for (const char* folder : {"/arch", "/quant"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kGolden + folder)) {
      if (entry.path().extension() != ".gguf") continue;
      SCOPED_TRACE(entry.path());
      auto model = OpenGguf(entry.path());
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_TRUE(model->metadata.GetString("general.architecture").ok());
      EXPECT_GT(model->tensors.size(), 5u);
      for (const TensorInfo& tensor : model->tensors) {
        std::vector<std::byte> data(tensor.bytes);
        EXPECT_TRUE(model->ReadTensor(tensor, 0, data).ok()) << tensor.name;
      }
      ++models;
    }
  }
  EXPECT_GE(models, 25);
}

TEST(Gguf, TurnsShapesToRowMajor) {
  auto model = OpenGguf(kGolden + "/arch/llama.gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  for (const TensorInfo& tensor : model->tensors) {
    // 512 tokens of vocabulary, width 128 (golden/README): a matrix of [out, in].
    if (tensor.name == "token_embd.weight") {
      EXPECT_THAT(tensor.shape, ElementsAre(512, 128));
    } else if (tensor.name == "output_norm.weight") {
      EXPECT_THAT(tensor.shape, ElementsAre(128));
    }
  }
}

TEST(Gguf, KeepsValuesOfEveryType) {
  using enum GgufValueType;
  RawGguf raw(0, 13, 2);
  raw.Key("u8", kUint8).Number<uint8_t>(255).Key("i8", kInt8).Number<int8_t>(-1);
  raw.Key("u16", kUint16).Number<uint16_t>(65535).Key("i16", kInt16).Number<int16_t>(-2);
  raw.Key("u32", kUint32).Number<uint32_t>(4294967295u).Key("i32", kInt32).Number<int32_t>(-3);
  raw.Key("u64", kUint64).Number<uint64_t>(1ull << 62).Key("i64", kInt64).Number<int64_t>(-4);
  raw.Key("f32", kFloat32).Number(0.5f).Key("f64", kFloat64).Number(0.1);
  raw.Key("b", kBool).Number<uint8_t>(1).Key("s", kString).Text(std::string_view("a\0b", 3));
  raw.Key("a", kArray).Number<uint32_t>(static_cast<uint32_t>(kInt16)).Number<uint64_t>(2);
  raw.Number<int16_t>(-5).Number<int16_t>(6);
  auto header = Parse(raw.bytes());
  ASSERT_TRUE(header.ok()) << header.status();
  const Metadata& m = header->metadata;
  constexpr int64_t kMin = INT64_MIN, kMax = INT64_MAX;
  EXPECT_EQ(m.GetInt("u8", kMin, kMax).value(), 255);
  EXPECT_EQ(m.GetInt("i8", kMin, kMax).value(), -1);
  EXPECT_EQ(m.GetInt("u16", kMin, kMax).value(), 65535);
  EXPECT_EQ(m.GetInt("i16", kMin, kMax).value(), -2);
  EXPECT_EQ(m.GetInt("u32", kMin, kMax).value(), 4294967295);
  EXPECT_EQ(m.GetInt("i32", kMin, kMax).value(), -3);
  EXPECT_EQ(m.GetInt("u64", kMin, kMax).value(), int64_t{1} << 62);
  EXPECT_EQ(m.GetInt("i64", kMin, kMax).value(), -4);
  EXPECT_EQ(m.GetDouble("f32").value(), 0.5);
  EXPECT_EQ(m.GetDouble("f64").value(), 0.1);
  EXPECT_EQ(m.GetBool("b").value(), true);
  EXPECT_EQ(m.GetString("s").value(), std::string("a\0b", 3));
  EXPECT_THAT(*m.GetInts("a").value(), ElementsAre(-5, 6));
}

TEST(Gguf, RefusesOtherFormatsVersionsAndByteOrders) {
  EXPECT_THAT(Error("PK\3\4zipfile....."), HasSubstr("not a GGUF file"));
  EXPECT_THAT(Error(RawGguf(0, 0, 1).bytes()), HasSubstr("GGUF version 1"));
  EXPECT_THAT(Error(RawGguf(0, 0, 4).bytes()), HasSubstr("GGUF version 4"));
  EXPECT_THAT(Error(RawGguf(0, 0, 0x03000000).bytes()), HasSubstr("big-endian"));
  EXPECT_THAT(Error(RawGguf(0, 0, 0x02000000).bytes()), HasSubstr("big-endian"));
  EXPECT_THAT(Error(std::string_view("FUGG\0\0\0\3", 8)), HasSubstr("big-endian"));
}

// A01: a cut-off file.
TEST(Gguf, RefusesACutOffFileAndSaysWhatIsMissing) {
  TempFolder folder;
  std::string good = ReadFile(kGolden + "/arch/qwen3.gguf");
  auto header = Parse(good);
  ASSERT_TRUE(header.ok()) << header.status();
  const TensorInfo* last = &header->tensors.front();
  for (const TensorInfo& tensor : header->tensors) {
    if (tensor.offset > last->offset) last = &tensor;
  }
  uint64_t end = last->offset + last->bytes;
  std::string path = folder / "cut.gguf";

  WriteFile(path, good.substr(0, end));
  EXPECT_TRUE(OpenGguf(path).ok()) << "a file of exactly the right length";

  auto other = OpenGguf(kGolden + "/arch/qwen3.gguf");
  ASSERT_TRUE(other.ok());
  auto start = std::chrono::steady_clock::now();

  WriteFile(path, good.substr(0, end - 1));
  auto status = OpenGguf(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(status)),
              AllOf(HasSubstr(path), HasSubstr(last->name), HasSubstr("1 bytes are missing")));

  size_t table = good.find(header->tensors.back().name);
  WriteFile(path, good.substr(0, table + 3));
  status = OpenGguf(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(status)),
              AllOf(HasSubstr(path), HasSubstr("tensor table"), HasSubstr("bytes are missing")));

  WriteFile(path, good.substr(0, 4));
  status = OpenGguf(path).status();
  EXPECT_THAT(std::string(Message(status)),
              AllOf(HasSubstr(path), HasSubstr("offset 4"), HasSubstr("4 bytes")));

  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  std::vector<std::byte> data(other->tensors[0].bytes);
  EXPECT_TRUE(other->ReadTensor(other->tensors[0], 0, data).ok());
}

TEST(Gguf, RefusesEveryPrefixOfAFile) {
  std::string good = ReadFile(kGolden + "/arch/llama.gguf");
  auto header = Parse(good);
  ASSERT_TRUE(header.ok());
  for (size_t length = 0; length < header->data_offset; ++length) {
    ASSERT_FALSE(Parse(std::string_view(good).substr(0, length)).ok()) << length;
  }
}

TEST(Gguf, AFileThatShrinksAfterOpeningIsAnErrorNotACrash) {
  TempFolder folder;
  std::string path = folder / "m.gguf";
  std::filesystem::copy_file(kGolden + "/arch/qwen3.gguf", path);
  auto model = OpenGguf(path);
  ASSERT_TRUE(model.ok());
  std::filesystem::resize_file(path, 4096);
  std::vector<std::byte> data(model->tensors.back().bytes);
  auto status = model->ReadTensor(model->tensors.back(), 0, data);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Message(status)), HasSubstr(model->tensors.back().name));
}

// A02: absurd lengths and counts.
TEST(Gguf, RefusesAbsurdStringLengthsWithoutAllocating) {
  uint64_t before = PeakRssBytes();
  for (uint64_t length : {uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 32}) {
    RawGguf value(0, 1);
    value.Key("k", GgufValueType::kString).Number(length);
    EXPECT_THAT(
        Error(value.bytes()),
        AllOf(HasSubstr("metadata key 1 of 1 ('k', starts at offset 24)"), HasSubstr("malformed")));
    RawGguf key(0, 1);
    key.Number(length).Number<uint64_t>(0);
    EXPECT_THAT(Error(key.bytes()),
                AllOf(HasSubstr("metadata key 1 of 1"), HasSubstr("malformed")));
    RawGguf name(1, 0);
    name.Number(length).Number<uint64_t>(0).Number<uint64_t>(0);
    EXPECT_THAT(Error(name.bytes()), AllOf(HasSubstr("tensor table"), HasSubstr("malformed")));
  }
  EXPECT_LT(PeakRssBytes() - before, 10u << 20);
}

TEST(Gguf, RefusesAbsurdCountsWithoutAllocating) {
  uint64_t before = PeakRssBytes();
  for (uint64_t count : {uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 32}) {
    EXPECT_THAT(Error(RawGguf(0, count).Number<uint64_t>(0).bytes()), HasSubstr("metadata keys"));
    EXPECT_THAT(Error(RawGguf(count, 0).Number<uint64_t>(0).bytes()),
                HasSubstr("tensors declared"));
    for (uint32_t type = 0; type <= 12; ++type) {
      RawGguf array(0, 1);
      array.Key("k", GgufValueType::kArray).Number(type).Number(count);
      EXPECT_THAT(Error(array.bytes()), HasSubstr("metadata key 1 of 1 ('k'"));
    }
  }
  EXPECT_LT(PeakRssBytes() - before, 10u << 20);
}

TEST(Gguf, BoundsTheMemoryOfALargeArrayOfSmallElements) {
  // A sparse file of 1 GiB whose array of bytes would become 8 GiB of integers.
  TempFolder folder;
  RawGguf raw(0, 1);
  raw.Key("k", GgufValueType::kArray).Number<uint32_t>(0).Number<uint64_t>(uint64_t{1} << 30);
  std::string path = folder / "sparse.gguf";
  WriteFile(path, raw.bytes());
  std::filesystem::resize_file(path, (uint64_t{1} << 30) + 4096);
  uint64_t before = PeakRssBytes();
  auto status = OpenGguf(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_LT(PeakRssBytes() - before, 10u << 20);
}

// A03: zero dimensions.
TEST(Gguf, AcceptsEmptyTensorsAndRefusesFiveDimensions) {
  for (std::vector<uint64_t> dims : {std::vector<uint64_t>{4, 0},
                                     {0},
                                     {2, 3, 4, 0},
                                     {0, uint64_t{1} << 62, uint64_t{1} << 62}}) {
    auto header = Parse(RawGguf(1, 0).Tensor("t", dims, 0, 0).bytes());
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->tensors[0].bytes, 0u);
    EXPECT_EQ(header->tensors[0].shape.size(), dims.size());
  }
  // The same for a block format, whose block size divides.
  EXPECT_TRUE(Parse(RawGguf(1, 0).Tensor("t", std::vector<uint64_t>{0, 4}, 2, 0).bytes()).ok());
  std::vector<uint64_t> five = {1, 1, 1, 1, 1};
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", five, 0, 0).Data(4).bytes()),
              AllOf(HasSubstr("tensor 't'"), HasSubstr("5 dimensions")));
  EXPECT_THAT(Error(RawGguf(1, 0).Text("t").Number(~uint32_t{0}).Data(40).bytes()),
              HasSubstr("4294967295 dimensions"));
}

TEST(Gguf, RefusesShapesThatOverflow) {
  uint64_t big = uint64_t{1} << 33;
  for (std::vector<uint64_t> dims : {std::vector<uint64_t>{big, big},
                                     {uint64_t{1} << 63},
                                     {~uint64_t{0}},
                                     {uint64_t{1} << 62},
                                     {big, big, big, big}}) {
    EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", dims, 0, 0).Data(64).bytes()),
                HasSubstr("tensor 't'"));
  }
}

TEST(Gguf, RefusesBadTensorEntries) {
  std::vector<uint64_t> d = {32};
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", d, 999, 0).Data(128).bytes()),
              AllOf(HasSubstr("tensor 't'"), HasSubstr("type 999")));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", d, 19, 0).Data(128).bytes()), HasSubstr("IQ1_S"));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", d, 0, 4).Data(256).bytes()), HasSubstr("alignment"));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", d, 0, 32).Data(128).bytes()),
              HasSubstr("32 bytes are missing"));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", d, 0, ~uint64_t{31}).Data(128).bytes()),
              HasSubstr("tensor 't'"));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("t", {{31}}, 2, 0).Data(128).bytes()),
              AllOf(HasSubstr("31"), HasSubstr("Q4_0")));
  EXPECT_THAT(Error(RawGguf(2, 0).Tensor("t", d, 0, 0).Tensor("t", d, 0, 128).Data(256).bytes()),
              HasSubstr("appears twice"));
  EXPECT_THAT(Error(RawGguf(2, 0).Tensor("t", d, 0, 0).Tensor("u", d, 0, 64).Data(256).bytes()),
              AllOf(HasSubstr("overlap"), HasSubstr("'t'"), HasSubstr("'u'")));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("", d, 0, 0).Data(128).bytes()), HasSubstr("empty"));
  EXPECT_THAT(Error(RawGguf(1, 0).Tensor("\xff", d, 0, 0).Data(128).bytes()), HasSubstr("UTF-8"));
}

TEST(Gguf, RefusesBadMetadata) {
  using enum GgufValueType;
  EXPECT_THAT(Error(RawGguf(0, 1).Key("k", kBool).Number<uint8_t>(2).bytes()), HasSubstr("bool"));
  EXPECT_THAT(Error(RawGguf(0, 1).Key("k", kUint64).Number<uint64_t>(1ull << 63).bytes()),
              AllOf(HasSubstr("'k'"), HasSubstr("9223372036854775808")));
  EXPECT_THAT(Error(RawGguf(0, 1).Text("k").Number<uint32_t>(13).Number<uint64_t>(0).bytes()),
              HasSubstr("unknown type 13"));
  RawGguf nested(0, 1);
  nested.Key("k", kArray).Number<uint32_t>(static_cast<uint32_t>(kArray)).Number<uint64_t>(1);
  EXPECT_THAT(Error(nested.Number<uint32_t>(0).Number<uint64_t>(0).bytes()),
              HasSubstr("array of arrays"));
  RawGguf twice(0, 2);
  twice.Key("k", kBool).Number<uint8_t>(1).Key("k", kBool).Number<uint8_t>(1);
  EXPECT_THAT(Error(twice.bytes()), HasSubstr("appears twice"));
  for (uint32_t alignment : {0u, 3u, 48u, 1u << 31}) {
    RawGguf raw(0, 1);
    EXPECT_THAT(Error(raw.Key("general.alignment", kUint32).Number(alignment).bytes()),
                HasSubstr("general.alignment"));
  }
}

TEST(Gguf, HonoursAnotherAlignment) {
  for (uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter writer(alignment);
    writer.AddTensor("a", DType::kF32, {{1}}, std::vector<std::byte>(4, std::byte{1}));
    writer.AddTensor("b", DType::kF32, {{1}}, std::vector<std::byte>(4, std::byte{2}));
    std::string bytes = writer.FileBytes().value();
    auto header = Parse(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->tensors[1].offset - header->tensors[0].offset, alignment);
    EXPECT_EQ(bytes[header->tensors[1].offset], 2);
  }
}

// A04: token arrays of the wrong kind. The reader keeps what the file declares; whoever asks for
// another kind gets an error with the key's name.
TEST(Gguf, TokenArraysOfOtherTypesKeepTheirKind) {
  using enum GgufValueType;
  GgufWriter writer;
  std::vector<int64_t> numbers = {1, 2, 3};
  writer.AddInts("tokenizer.ggml.scores", kUint8, numbers);
  writer.AddInts("tokenizer.ggml.token_type", kInt64, numbers);
  writer.AddInts("tokenizer.ggml.tokens", kInt32, numbers);
  std::string bytes = writer.FileBytes().value();
  auto header = Parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  auto scores = header->metadata.GetDoubles("tokenizer.ggml.scores");
  EXPECT_THAT(std::string(Message(scores.status())), HasSubstr("tokenizer.ggml.scores"));
  auto tokens = header->metadata.GetStrings("tokenizer.ggml.tokens");
  EXPECT_THAT(std::string(Message(tokens.status())), HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(*header->metadata.GetInts("tokenizer.ggml.token_type").value(), ElementsAre(1, 2, 3));
  EXPECT_THAT(*header->metadata.GetInts("tokenizer.ggml.scores").value(), ElementsAre(1, 2, 3));
}

// Every mutation is either read or refused; under a sanitizer this is a small fuzzer of its own.
TEST(Gguf, SurvivesRandomDamage) {
  constexpr uint64_t kSeed = 20260115;
  Random random(kSeed);
  std::string good = ReadFile(kGolden + "/arch/gemma3.gguf");
  auto header = Parse(good);
  ASSERT_TRUE(header.ok());
  std::string_view whole(good);
  int refused = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bad(whole.substr(0, header->data_offset + 4096));
    for (uint64_t hits = 1 + random.Below(4); hits > 0; --hits) {
      bad[random.Below(header->data_offset)] = static_cast<char>(random.Next());
    }
    bad.resize(good.size());
    refused += !Parse(bad).ok();
  }
  EXPECT_GT(refused, kRounds / 20) << "seed " << kSeed;
}

TEST(Gguf, ReadsALargeVocabulary) {
  GgufWriter writer;
  std::vector<std::string> tokens(262144);
  std::vector<double> scores(tokens.size());
  std::vector<int64_t> types(tokens.size(), 1);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "token-number-" + std::to_string(i);
  writer.AddStrings("tokenizer.ggml.tokens", tokens);
  writer.AddFloats("tokenizer.ggml.scores", scores);
  writer.AddInts("tokenizer.ggml.token_type", GgufValueType::kInt32, types);
  std::string bytes = writer.FileBytes().value();
  auto header = Parse(bytes);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(*header->metadata.GetStrings("tokenizer.ggml.tokens").value(), tokens);
}

}  // namespace
}  // namespace terrace::format
