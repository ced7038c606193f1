#include "format/cut_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "format/gguf.h"
#include "format_testing.h"

namespace terrace::format {
namespace {

class CutSourceTest : public testing::Test {
 protected:
  // A file with a tensor of each kind; its bytes by tensor.
  void SetUp() override {
    GgufWriter writer;
    auto add = [&](const std::string& name, DType dtype, std::vector<int64_t> shape) {
      uint64_t rows = 1;
      for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= static_cast<uint64_t>(shape[i]);
      bytes_.push_back(
          RandomBytes(random_, rows * RowBytes(dtype, static_cast<uint64_t>(shape.back()))));
      writer.AddTensor(name, dtype, shape, bytes_.back());
    };
    add("v", DType::kF32, {6});
    add("m", DType::kF16, {10, 32});
    add("q", DType::kQ4_K, {4, 768});
    add("s", DType::kQ8_0, {3, 4, 64});
    ASSERT_TRUE(writer.Write(folder_ / "m.gguf").ok());
  }

  absl::StatusOr<ModelSource> Cut(size_t tensor, TensorCut cut) {
    auto whole = OpenGguf(folder_ / "m.gguf");
    EXPECT_TRUE(whole.ok()) << whole.status();
    std::vector<TensorCut> cuts(whole->tensors.size());
    cuts[tensor] = std::move(cut);
    return CutSource(*std::move(whole), cuts, "part 1");
  }

  // Row `row` of matrix `matrix`, columns in bytes [begin, begin + count).
  std::vector<std::byte> Bytes(size_t tensor, size_t row_bytes, size_t row, size_t begin,
                               size_t count) {
    const std::byte* at = bytes_[tensor].data() + row * row_bytes + begin;
    return {at, at + count};
  }

  // What is read of `tensor`, whole and in pieces of any size, is `want`.
  void ExpectReads(const ModelSource& part, size_t tensor, const std::vector<std::byte>& want) {
    const TensorInfo& info = part.tensors[tensor];
    ASSERT_EQ(info.bytes, want.size());
    for (uint64_t piece : {uint64_t{1}, uint64_t{7}, uint64_t{100}, info.bytes}) {
      std::vector<std::byte> got(info.bytes);
      for (uint64_t at = 0; at < info.bytes; at += piece) {
        const uint64_t count = std::min(piece, info.bytes - at);
        ASSERT_TRUE(part.ReadTensor(info, at, std::span(got).subspan(at, count)).ok());
      }
      EXPECT_EQ(got, want) << "in pieces of " << piece;
    }
  }

  Random random_{7};
  TempFolder folder_;
  std::vector<std::vector<std::byte>> bytes_;
};

void Append(std::vector<std::byte>* to, const std::vector<std::byte>& more) {
  to->insert(to->end(), more.begin(), more.end());
}

TEST_F(CutSourceTest, LeavesTheRestAsItIs) {
  auto part = Cut(0, {});
  ASSERT_TRUE(part.ok()) << part.status();
  for (size_t i = 0; i < bytes_.size(); ++i) ExpectReads(*part, i, bytes_[i]);
  EXPECT_THAT(part->identity[0].path, testing::EndsWith("m.gguf [part 1]"));
  EXPECT_TRUE(part->CheckUnchanged().ok());
}

TEST_F(CutSourceTest, TakesRunsOfRowsInAnyOrder) {
  auto part = Cut(1, {std::nullopt, {{4, 6}, {0, 1}, {4, 5}}, std::nullopt});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->tensors[1].shape, testing::ElementsAre(4, 32));
  std::vector<std::byte> want;
  for (size_t row : {4, 5, 0, 4}) Append(&want, Bytes(1, 64, row, 0, 64));
  ExpectReads(*part, 1, want);
}

TEST_F(CutSourceTest, TakesElementsOfAVector) {
  auto part = Cut(0, {std::nullopt, {{2, 5}}, std::nullopt});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->tensors[0].shape, testing::ElementsAre(3));
  ExpectReads(*part, 0, Bytes(0, 4, 2, 0, 12));
}

TEST_F(CutSourceTest, TakesWholeBlocksOfColumns) {
  constexpr size_t kBlock = 144;  // bytes of 256 values in Q4_K
  auto part = Cut(2, {std::nullopt, {{1, 4}}, IndexRange{256, 768}});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->tensors[2].shape, testing::ElementsAre(3, 512));
  std::vector<std::byte> want;
  for (size_t row : {1, 2, 3}) Append(&want, Bytes(2, 3 * kBlock, row, kBlock, 2 * kBlock));
  ExpectReads(*part, 2, want);
}

TEST_F(CutSourceTest, RefusesColumnsInsideABlock) {
  auto part = Cut(2, {std::nullopt, {}, IndexRange{0, 384}});
  EXPECT_TRUE(absl::IsInvalidArgument(part.status())) << part.status();
  EXPECT_THAT(Message(part.status()), testing::HasSubstr("'q' is Q4_K, in blocks of 256"));
}

TEST_F(CutSourceTest, TakesMatricesOfAStack) {
  constexpr size_t kRow = 68;  // bytes of 64 values in Q8_0
  auto part = Cut(3, {IndexRange{1, 3}, {{2, 4}}, IndexRange{32, 64}});
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->tensors[3].shape, testing::ElementsAre(2, 2, 32));
  std::vector<std::byte> want;
  for (size_t row : {6, 7, 10, 11}) Append(&want, Bytes(3, kRow, row, 34, 34));
  ExpectReads(*part, 3, want);
}

TEST_F(CutSourceTest, RefusesWhatIsNotThere) {
  EXPECT_TRUE(absl::IsInvalidArgument(Cut(1, {std::nullopt, {{8, 11}}, std::nullopt}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Cut(1, {std::nullopt, {{3, 3}}, std::nullopt}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Cut(1, {IndexRange{1, 2}, {}, std::nullopt}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Cut(3, {IndexRange{-1, 2}, {}, std::nullopt}).status()));
  auto whole = OpenGguf(folder_ / "m.gguf");
  EXPECT_TRUE(absl::IsInvalidArgument(CutSource(*std::move(whole), {}, "part 1").status()));
}

}  // namespace
}  // namespace terrace::format
