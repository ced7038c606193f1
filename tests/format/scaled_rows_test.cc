// INT8 matrices with a scale a row, from files that hold bytes and scales apart; and models written
// again in another format.
#include "format/scaled_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "format/gguf.h"
#include "format/requantize.h"
#include "format_testing.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace terrace::format {
namespace {

constexpr int64_t kRows = 5;
constexpr int64_t kCols = 64;

std::vector<std::byte> Floats(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

const TensorInfo* Find(const ModelSource& model, std::string_view name) {
  for (const TensorInfo& tensor : model.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

TEST(ScaledRows, JoinsBytesAndScalesOfEachRow) {
  TempFolder folder;
  Random random(1);
  const std::vector<std::byte> values = RandomBytes(random, kRows * kCols);
  const std::vector<float> scales = {0.5f, 0.25f, -1.0f, 0.0f, 3.0f};
  GgufWriter writer;
  writer.AddTensor("w.weight", DType::kI8, {{kRows, kCols}}, values);
  writer.AddTensor("w.weight_scale", DType::kF32, {{kRows}}, Floats(scales));
  writer.AddTensor("ids", DType::kI8, {{kRows, kCols}}, values);  // has no scales
  ASSERT_TRUE(writer.Write(folder / "m.gguf").ok());
  auto model = OpenGguf(folder / "m.gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(Find(*model, "w.weight_scale"), nullptr);
  EXPECT_EQ(Find(*model, "ids")->dtype, DType::kI8);
  const TensorInfo& tensor = *Find(*model, "w.weight");
  EXPECT_EQ(tensor.dtype, DType::kW8A8);
  EXPECT_EQ(tensor.bytes, kRows * RowBytes(DType::kW8A8, kCols));
  EXPECT_THAT(tensor.shape, testing::ElementsAre(kRows, kCols));
  std::vector<std::byte> whole(tensor.bytes);
  ASSERT_TRUE(model->ReadTensor(tensor, 0, whole).ok());
  std::vector<float> row(kCols);
  for (int64_t r = 0; r < kRows; ++r) {
    DequantizeRow(DType::kW8A8, whole.data() + r * (4 + kCols), row);
    for (int64_t c = 0; c < kCols; ++c) {
      const auto q = static_cast<int8_t>(values[static_cast<size_t>(r * kCols + c)]);
      EXPECT_EQ(row[static_cast<size_t>(c)],
                scales[static_cast<size_t>(r)] * static_cast<float>(q));
    }
  }
  // Every range is the same bytes.
  for (uint64_t begin = 0; begin <= whole.size(); ++begin) {
    for (uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{70}, uint64_t{140}}) {
      if (begin + count > whole.size()) continue;
      std::vector<std::byte> part(count);
      ASSERT_TRUE(model->ReadTensor(tensor, begin, part).ok());
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<int64_t>(begin)))
          << begin << " + " << count;
    }
  }
  EXPECT_FALSE(model->ReadTensor(tensor, whole.size(), std::span(whole).first(1)).ok());
}

TEST(ScaledRows, RefusesScalesThatDoNotFit) {
  TempFolder folder;
  for (const auto& [scales, cols] : {std::pair{kRows - 1, kCols}, {kRows, kCols + 1}}) {
    GgufWriter writer;
    writer.AddTensor("w.weight", DType::kI8, {{kRows, cols}},
                     std::vector<std::byte>(static_cast<size_t>(kRows * cols)));
    writer.AddTensor("w.weight_scale", DType::kF32, {{scales}},
                     Floats(std::vector<float>(static_cast<size_t>(scales))));
    ASSERT_TRUE(writer.Write(folder / "m.gguf").ok());
    auto model = OpenGguf(folder / "m.gguf");
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(model.status().message()), testing::HasSubstr("w.weight"));
  }
}

TEST(Requantize, KeepsValuesWithinHalfAStepAndVectorsExactly) {
  TempFolder folder;
  const std::string path = std::string(TERRACE_TEST_DATA) + "/golden/quant/wide.F32.gguf";
  auto model = OpenGguf(path);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const auto& [dtype, steps] : {std::pair{DType::kQ8_0, 254.0},
                                     {DType::kW8A8, 254.0},
                                     {DType::kQ4_0, 15.0},
                                     {DType::kF32, 1e30}}) {
    const std::string out = folder / "out.gguf";
    ASSERT_TRUE(Requantize(*model, dtype, out).ok());
    auto copy = OpenGguf(out);
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ(copy->metadata.values(), model->metadata.values());
    ASSERT_EQ(copy->tensors.size(), model->tensors.size());
    for (const TensorInfo& tensor : model->tensors) {
      const TensorInfo* now = Find(*copy, tensor.name);
      ASSERT_NE(now, nullptr) << tensor.name;
      ASSERT_EQ(now->shape, tensor.shape) << tensor.name;
      const bool matrix = tensor.shape.size() == 2;
      const bool more = dtype == DType::kQ4_0 &&
                        (tensor.name == "token_embd.weight" || tensor.name == "output.weight");
      const DType want = more ? TypeForRows(DType::kQ6_K, tensor.shape.back()) : dtype;
      EXPECT_EQ(now->dtype, matrix ? want : DType::kF32) << tensor.name;
      const auto cols = static_cast<uint64_t>(tensor.shape.back());
      const uint64_t row_bytes = RowBytes(now->dtype, cols);
      std::vector<std::byte> was(tensor.bytes), is(now->bytes);
      ASSERT_TRUE(model->ReadTensor(tensor, 0, was).ok());
      ASSERT_TRUE(copy->ReadTensor(*now, 0, is).ok());
      std::vector<float> a(cols), b(cols);
      for (uint64_t r = 0; r * row_bytes < is.size(); ++r) {
        DequantizeRow(tensor.dtype, was.data() + r * RowBytes(tensor.dtype, cols), a);
        DequantizeRow(now->dtype, is.data() + r * row_bytes, b);
        float largest = 0;
        for (float v : a) largest = std::max(largest, std::fabs(v));
        // Half a step of the coarsest block, and what F16 scales and a clamped end cost.
        const double most = matrix ? 2.0 * largest / steps * 1.01 : 0.0;
        for (size_t c = 0; c < cols; ++c) ASSERT_NEAR(a[c], b[c], most) << tensor.name;
      }
    }
  }
}

TEST(Requantize, ChoosesATypeForRowsThatAreNotWholeBlocks) {
  EXPECT_EQ(TypeForRows(DType::kQ4_K, 512), DType::kQ4_K);
  EXPECT_EQ(TypeForRows(DType::kQ4_K, 576), DType::kQ5_0);
  EXPECT_EQ(TypeForRows(DType::kQ6_K, 576), DType::kQ8_0);
  EXPECT_EQ(TypeForRows(DType::kQ4_0, 576), DType::kQ4_0);
  EXPECT_EQ(TypeForRows(DType::kQ4_0, 20), DType::kF16);
}

TEST(Requantize, RefusesFormatsWithoutAQuantiserAndLeavesNothing) {
  TempFolder folder;
  auto model = OpenGguf(std::string(TERRACE_TEST_DATA) + "/golden/quant/wide.Q4_0.gguf");
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = Requantize(*model, DType::kIQ3_S, folder / "out.gguf");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace terrace::format
