// Attention and the KV store of every variant against the reference.
#include <algorithm>

#include "ops/tolerance.h"
#include "test_util.h"

namespace terrace::ops {
namespace {

// KV blocks of one sequence, filled with NaN so that reading what was never stored shows.
struct Blocks {
  Blocks(const KvGeometry& geometry, int tokens) {
    const int count = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    for (int i = 0; i < count; ++i) {
      memory.emplace_back(geometry.block_bytes() / 4 + 16, 0x7fc07e7fu);
      pointers.push_back(reinterpret_cast<std::byte*>(memory.back().data()));
    }
  }
  std::vector<std::vector<uint32_t>> memory;
  std::vector<std::byte*> pointers;
};

struct Shape {
  int heads;
  int kv_heads;
  int key_dim;
  int value_dim;
  KvDType dtype = KvDType::kF16;
  int window = 0;
  float softcap = 0;
  bool sinks = false;
};

std::string ShapeName(const Shape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " dim " +
         std::to_string(s.key_dim) + "," + std::to_string(s.value_dim) + " kv " +
         std::to_string(static_cast<int>(s.dtype)) + " window " + std::to_string(s.window) +
         " cap " + std::to_string(s.softcap) + (s.sinks ? " sinks" : "");
}

// Runs one sequence through a backend in chunks and returns the outputs [tokens, heads *
// value_dim].
std::vector<float> RunChunks(Backend& backend, const Shape& shape, std::vector<float>& q,
                             std::vector<float>& k, std::vector<float>& v,
                             const std::vector<float>& sinks, const std::vector<int>& chunks) {
  KvGeometry geometry = {3, shape.kv_heads, shape.key_dim, shape.value_dim, shape.dtype};
  const int tokens = static_cast<int>(q.size()) / (shape.heads * shape.key_dim);
  Blocks blocks(geometry, tokens);
  std::vector<float> out(static_cast<size_t>(tokens * shape.heads * shape.value_dim), -1.0f);
  AttentionParams params;
  params.layer = 1;
  params.heads = shape.heads;
  params.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  params.window = shape.window;
  params.softcap = shape.softcap;
  if (shape.sinks) params.sinks = {sinks.data(), shape.heads};
  int start = 0;
  for (const int rows : chunks) {
    SequenceRows sequence;
    sequence.rows = rows;
    sequence.start = start;
    sequence.blocks = blocks.pointers;
    BatchRows batch;
    batch.rows = rows;
    batch.sequences = {&sequence, 1};
    const auto part = [&](std::vector<float>& data, int cols) {
      return Matrix{data.data() + int64_t{start} * cols, rows, cols, cols};
    };
    EXPECT_TRUE(backend
                    .StoreKv(part(k, shape.kv_heads * shape.key_dim),
                             part(v, shape.kv_heads * shape.value_dim), 1, geometry, batch)
                    .ok());
    const absl::Status status =
        backend.Attention(part(q, shape.heads * shape.key_dim), params, geometry, batch,
                          part(out, shape.heads * shape.value_dim));
    EXPECT_TRUE(status.ok()) << status;
    start += rows;
  }
  EXPECT_EQ(start, tokens);
  return out;
}

class AttentionTest : public testing::TestWithParam<std::string> {
 protected:
  void Check(const Shape& shape, int tokens, const std::vector<int>& chunks) {
    SCOPED_TRACE(testing::Message() << ShapeName(shape) << " tokens " << tokens << " seed 41");
    Random random(41);
    const size_t n = static_cast<size_t>(tokens);
    std::vector<float> q(n * static_cast<size_t>(shape.heads * shape.key_dim));
    std::vector<float> k(n * static_cast<size_t>(shape.kv_heads * shape.key_dim));
    std::vector<float> v(n * static_cast<size_t>(shape.kv_heads * shape.value_dim));
    std::vector<float> sinks(static_cast<size_t>(shape.heads));
    for (float& x : q) x = random.Signed() * 3;
    for (float& x : k) x = random.Signed() * 3;
    for (float& x : v) x = random.Signed() * 3;
    for (float& x : sinks) x = random.Signed() * 4;
    ThreadTeam team(2);
    const auto cpu = MustCreate(GetParam(), &team);
    const auto ref = CreateRefBackend(&team);
    const auto got = RunChunks(*cpu, shape, q, k, v, sinks, chunks);
    const auto want = RunChunks(*ref, shape, q, k, v, sinks, {tokens});
    // Both read the same stored keys and values: the store rounds alike.
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
    const KvGeometry geometry = {1, shape.kv_heads, shape.key_dim, shape.value_dim, shape.dtype};
    const bool tiles = CpuAttendsInTiles(GetParam(), geometry, *std::ranges::max_element(chunks));
    const float tolerance =
        AttentionTolerance(shape.key_dim, tokens, scale, shape.softcap, 3, 3, 3, tiles);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance)
          << "token " << i / static_cast<size_t>(shape.heads * shape.value_dim);
    }
  }
};

TEST_P(AttentionTest, MatchesForHeadDimensionsAndGroupRatios) {
  for (const int dim : {64, 80, 96, 128, 256}) {
    for (const auto& [heads, kv] : {std::pair{4, 4}, {4, 2}, {6, 2}, {8, 1}}) {
      Check({heads, kv, dim, dim}, 83, {83});
    }
  }
  Check({4, 2, 192, 128}, 40, {40});
  Check({2, 1, 40, 24}, 40, {40});  // value_dim that does not fill a register
}

TEST_P(AttentionTest, ChunkedPrefillAndDecodeEqualOneShot) {
  const std::vector<int> chunks = {1, 2, 13, 16, 31, 64, 1, 1, 1, 70};  // 200 tokens
  Check({4, 2, 64, 64}, 200, chunks);
  Check({4, 2, 64, 64, KvDType::kF16, 33}, 200, chunks);
  Check({4, 1, 64, 64, KvDType::kF32, 0, 20.0f, true}, 200, chunks);
}

TEST_P(AttentionTest, WindowsSoftcapsAndSinks) {
  for (const int window : {1, 2, 16, 17, 63, 64, 65, 128}) {
    Check({4, 2, 32, 32, KvDType::kF16, window}, 150, {150});
    Check({4, 2, 32, 32, KvDType::kF16, window, 0, true}, 150, {140, 1, 1, 1, 7});
  }
  Check({4, 2, 32, 32, KvDType::kF16, 0, 5.0f}, 70, {70});
  Check({4, 2, 32, 32, KvDType::kF16, 0, 0, true}, 70, {70});
}

TEST_P(AttentionTest, AllKvTypes) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kI8, KvDType::kF32}) {
    Check({6, 2, 64, 64, dtype}, 130, {100, 1, 29});
    Check({2, 2, 40, 24, dtype, 20, 0, true}, 50, {50});
    Check({6, 2, 64, 80, dtype, 150, 0, true}, 400, {300, 100});
    Check({3, 1, 96, 48, dtype, 0, 7.0f}, 333, {32, 33, 268});
  }
}

TEST_P(AttentionTest, LongContext) { Check({4, 2, 64, 64}, 1100, {1024, 75, 1}); }

// Answers must not depend on which rows share a step, if that is asked for: each row's arithmetic
// is its own.
TEST_P(AttentionTest, ManyRowsGiveTheBitsOfEachAlone) {
  constexpr int kTokens = 150;
  for (const Shape& shape :
       {Shape{8, 2, 64, 64}, Shape{6, 1, 40, 24, KvDType::kI8, 37, 0, true},
        Shape{4, 2, 32, 32, KvDType::kF16, 20, 5.0f}, Shape{16, 1, 64, 48, KvDType::kF32}}) {
    SCOPED_TRACE(testing::Message() << ShapeName(shape) << " seed 43");
    Random random(43);
    std::vector<float> q(static_cast<size_t>(kTokens * shape.heads * shape.key_dim));
    std::vector<float> k(static_cast<size_t>(kTokens * shape.kv_heads * shape.key_dim));
    std::vector<float> v(static_cast<size_t>(kTokens * shape.kv_heads * shape.value_dim));
    std::vector<float> sinks(static_cast<size_t>(shape.heads), 0.5f);
    for (std::vector<float>* values : {&q, &k, &v}) {
      for (float& x : *values) x = random.Signed() * 2;
    }
    ThreadTeam team(2);
    const auto cpu = MustCreate(GetParam(), &team, true);
    const auto alone = RunChunks(*cpu, shape, q, k, v, sinks, std::vector<int>(kTokens, 1));
    for (const std::vector<int>& chunks : {std::vector<int>{kTokens}, {100, 17, 33}, {5, 3, 142}}) {
      EXPECT_EQ(RunChunks(*cpu, shape, q, k, v, sinks, chunks), alone) << chunks[0];
    }
  }
}

TEST_P(AttentionTest, SequencesOfABatchDoNotSeeEachOtherAndResultsDoNotDependOnThem) {
  const KvGeometry geometry = {1, 2, 64, 64, KvDType::kF16};
  constexpr int kHeads = 4;
  Random random(42);
  const std::vector<int> starts = {0, 20, 5, 130};
  const std::vector<int> rows = {7, 1, 1, 20};
  int total = 0;
  for (const int r : rows) total += r;
  std::vector<float> q = RandomFloats(static_cast<size_t>(total * kHeads * 64), random);
  std::vector<float> k = RandomFloats(static_cast<size_t>(total * 128), random);
  std::vector<float> v = RandomFloats(static_cast<size_t>(total * 128), random);
  AttentionParams params;
  params.heads = kHeads;
  params.scale = 0.125f;
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    ThreadTeam team(threads);
    const auto cpu = MustCreate(GetParam(), &team);
    for (const bool together : {true, false}) {
      std::vector<Blocks> blocks;
      std::vector<SequenceRows> sequences;
      int first = 0;
      Random past(43);
      for (size_t i = 0; i < starts.size(); ++i) {
        blocks.emplace_back(geometry, starts[i] + rows[i]);
        // What was there before the batch.
        std::vector<float> old = RandomFloats(static_cast<size_t>((starts[i] + 1) * 128), past);
        SequenceRows before;
        before.rows = starts[i];
        before.blocks = blocks.back().pointers;
        BatchRows batch;
        batch.rows = starts[i];
        batch.sequences = {&before, 1};
        const Matrix m = View(old, starts[i], 128);
        ASSERT_TRUE(cpu->StoreKv(m, m, 0, geometry, batch).ok());
        SequenceRows s;
        s.first_row = first;
        s.rows = rows[i];
        s.start = starts[i];
        sequences.push_back(s);
        first += rows[i];
      }
      for (size_t i = 0; i < starts.size(); ++i) sequences[i].blocks = blocks[i].pointers;
      std::vector<float> out(q.size(), -1.0f);
      for (size_t i = 0; i < (together ? 1 : starts.size()); ++i) {
        BatchRows batch;
        batch.rows = total;
        batch.sequences = together ? std::span<const SequenceRows>(sequences)
                                   : std::span<const SequenceRows>(&sequences[i], 1);
        ASSERT_TRUE(
            cpu->StoreKv(View(k, total, 128), View(v, total, 128), 0, geometry, batch).ok());
        ASSERT_TRUE(
            cpu->Attention(View(q, total, 256), params, geometry, batch, View(out, total, 256))
                .ok());
      }
      results.push_back(out);
    }
  }
  for (size_t i = 1; i < results.size(); ++i) EXPECT_EQ(results[0], results[i]) << i;
  for (const float x : results[0]) ASSERT_TRUE(std::isfinite(x));
}

TEST_P(AttentionTest, StoresTheSameBytesAsTheReference) {
  for (const KvDType dtype : {KvDType::kF16, KvDType::kI8, KvDType::kF32}) {
    const KvGeometry geometry = {2, 2, 40, 24, dtype};
    Random random(44);
    ThreadTeam team(1);
    const auto cpu = MustCreate(GetParam(), &team);
    const auto ref = CreateRefBackend(&team);
    Blocks a(geometry, 37), b(geometry, 37);
    std::vector<float> k = RandomFloats(37 * 80, random);
    std::vector<float> v = RandomFloats(37 * 48, random);
    k[5] = 1e6f;  // beyond F16
    for (auto& [backend, blocks] : {std::pair{cpu.get(), &a}, {ref.get(), &b}}) {
      SequenceRows s;
      s.rows = 37;
      s.blocks = blocks->pointers;
      BatchRows batch;
      batch.rows = 37;
      batch.sequences = {&s, 1};
      ASSERT_TRUE(backend->StoreKv(View(k, 37, 80), View(v, 37, 48), 1, geometry, batch).ok());
    }
    EXPECT_EQ(a.memory, b.memory) << static_cast<int>(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, AttentionTest, testing::ValuesIn(SupportedVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::ops
