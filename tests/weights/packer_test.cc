// Plans and packing: every tensor of every golden model, whole and in pieces, equals an independent
// packing of the source.
#include "weights/packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/cpu/thread_team.h"
#include "weights/plan.h"
#include "weights_testing.h"

namespace terrace::weights {
namespace {

using ::testing::HasSubstr;

TEST(Plan, NamesSegments) {
  EXPECT_EQ(SegmentOf("token_embd.weight"), "embed");
  EXPECT_EQ(SegmentOf("rope_freqs.weight"), "blk.0.attn");
  EXPECT_EQ(SegmentOf("output_norm.weight"), "head");
  EXPECT_EQ(SegmentOf("output.weight"), "head");
  EXPECT_EQ(SegmentOf("blk.0.attn_q.weight"), "blk.0.attn");
  EXPECT_EQ(SegmentOf("blk.12.post_attention_norm.weight"), "blk.12.attn");
  EXPECT_EQ(SegmentOf("blk.12.ffn_gate_exps.weight"), "blk.12.ffn");
  EXPECT_EQ(SegmentOf("blk.12.post_ffw_norm.weight"), "blk.12.ffn");
  EXPECT_EQ(SegmentOf("blk.12.exp_probs_b.bias"), "blk.12.ffn");
  for (const char* odd : {"blk.", "blk.x.attn", "blk.1", "blk.-1.a", "blk.99999999999.a", "x"}) {
    EXPECT_EQ(SegmentOf(odd), "embed") << odd;
  }
}

TEST(Plan, OrdersSegmentsByExecutionAndAlignsTensors) {
  ThreadTeam team(1);
  auto backend = MakeBackend(true, &team);
  for (const std::string& path : GoldenModels()) {
    SCOPED_TRACE(path);
    auto source = format::OpenGguf(path).value();
    auto plan = MakePlan(source, *backend);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<std::string> want;
    int64_t layers =
        source.metadata
            .GetInt(source.metadata.GetString("general.architecture").value() + ".block_count", 1,
                    100)
            .value();
    for (int64_t i = 0; i < layers; ++i) {
      want.push_back("blk." + std::to_string(i) + ".attn");
      want.push_back("blk." + std::to_string(i) + ".ffn");
      for (const format::TensorInfo& tensor : source.tensors) {
        if (tensor.name != "blk." + std::to_string(i) + ".ffn_gate_exps.weight") continue;
        for (int64_t e = 0; e < tensor.shape[0]; ++e) {
          want.push_back("blk." + std::to_string(i) + ".exp." + std::to_string(e));
        }
      }
    }
    want.push_back("embed");
    want.push_back("head");
    std::vector<std::string> got;
    for (const PlannedSegment& segment : plan->segments) {
      got.push_back(segment.name);
      EXPECT_EQ(segment.bytes % 4096, 0u);
      uint64_t end = 0;
      for (uint32_t tensor : segment.tensors) {
        const TensorPlace& place = plan->tensors[tensor].place;
        EXPECT_EQ(place.offset % 64, 0u);
        EXPECT_GE(place.offset, end);
        end = place.offset + place.bytes;
      }
      EXPECT_LE(end, segment.bytes);
    }
    EXPECT_EQ(got, want);
    EXPECT_EQ(plan->tensors.size(), source.tensors.size());
  }
}

// Beside other tensors, as in an encoder, all of its segment is needed at once.
TEST(Plan, PutsTheEmbeddingFirstWhereItsSegmentHoldsMore) {
  ThreadTeam team(1);
  auto backend = MakeBackend(true, &team);
  auto source = format::OpenGguf(Golden("arch/llama")).value();
  source.tensors.back().name = "token_embd_norm.weight";
  auto plan = MakePlan(source, *backend);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->segments.front().name, "embed");
  EXPECT_EQ(plan->segments.front().tensors.size(), 2u);
}

TEST(Plan, FingerprintFollowsSourceAndLayouts) {
  ThreadTeam team(1);
  auto plain = MakeBackend(false, &team), packed = MakeBackend(true, &team);
  auto source = format::OpenGguf(Golden("arch/llama")).value();
  std::string first = MakePlan(source, *packed)->fingerprint;
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(MakePlan(source, *packed)->fingerprint, first);
  EXPECT_NE(MakePlan(source, *plain)->fingerprint, first);
  for (auto change : {+[](format::FileIdentity& id) { id.path += "x"; },
                      +[](format::FileIdentity& id) { id.bytes += 1; },
                      +[](format::FileIdentity& id) { id.mtime_ns += 1; },
                      +[](format::FileIdentity& id) { id.header_hash += 1; }}) {
    auto other = format::OpenGguf(Golden("arch/llama")).value();
    change(other.identity[0]);
    EXPECT_NE(MakePlan(other, *packed)->fingerprint, first);
  }
}

// A03: an empty tensor takes no bytes and keeps its shape, for whoever needs it to refuse.
TEST(Plan, EmptyTensorsKeepTheirShape) {
  TempFolder folder;
  format::GgufWriter writer;
  writer.AddTensor("token_embd.weight", DType::kF32, {{4, 4}}, std::vector<std::byte>(64));
  writer.AddTensor("blk.0.attn_q.weight", DType::kF32, {{0, 4}}, std::vector<std::byte>());
  writer.AddTensor("blk.0.ffn_up_exps.weight", DType::kQ4_0, {{0, 4, 32}},
                   std::vector<std::byte>());
  ASSERT_TRUE(writer.Write(folder / "m.gguf").ok());
  ThreadTeam team(1);
  auto backend = MakeBackend(true, &team);
  auto source = format::OpenGguf(folder / "m.gguf").value();
  auto plan = MakePlan(source, *backend);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->segments.size(), 3u);
  EXPECT_EQ(plan->tensors[1].place.bytes, 0u);
  EXPECT_EQ(plan->tensors[1].place.shape, (std::vector<int64_t>{0, 4}));
  Packer packer(&source, &*plan, backend.get());
  Packer::Scratch scratch;
  for (uint32_t i = 0; i < 3; ++i) {
    std::vector<std::byte> out(plan->segments[i].bytes, std::byte{1});
    EXPECT_TRUE(packer.Fill(i, 0, out, &scratch).ok());
  }
}

TEST(Plan, AModelWithoutTensorsIsRefused) {
  TempFolder folder;
  format::GgufWriter writer;
  ASSERT_TRUE(writer.Write(folder / "m.gguf").ok());
  ThreadTeam team(1);
  auto source = format::OpenGguf(folder / "m.gguf").value();
  EXPECT_THAT(std::string(Message(MakePlan(source, *MakeBackend(true, &team)).status())),
              HasSubstr("no tensors"));
}

TEST(Packer, WholeSegmentsEqualAnIndependentPacking) {
  ThreadTeam team(1);
  for (bool packed : {false, true}) {
    auto backend = MakeBackend(packed, &team);
    for (const std::string& path : GoldenModels()) {
      SCOPED_TRACE(path);
      auto source = format::OpenGguf(path).value();
      auto plan = MakePlan(source, *backend).value();
      Packer packer(&source, &plan, backend.get());
      Packer::Scratch scratch;
      for (uint32_t s = 0; s < plan.segments.size(); ++s) {
        std::vector<std::byte> out(plan.segments[s].bytes, std::byte{0xee});
        absl::Status status = packer.Fill(s, 0, out, &scratch);
        ASSERT_TRUE(status.ok()) << status;
        uint64_t end = 0;
        for (uint32_t t : plan.segments[s].tensors) {
          const TensorPlace& place = plan.tensors[t].place;
          for (; end < place.offset; ++end) ASSERT_EQ(out[end], std::byte{0}) << "gap";
          auto want = PackWhole(source, *backend, place);
          const auto expert = static_cast<uint64_t>(std::max(0, plan.segments[s].expert));
          ASSERT_EQ(std::memcmp(out.data() + place.offset, want.data() + expert * place.bytes,
                                place.bytes),
                    0)
              << place.name;
          end = place.offset + place.bytes;
        }
        for (; end < out.size(); ++end) ASSERT_EQ(out[end], std::byte{0}) << "tail";
      }
    }
  }
}

TEST(Packer, AnyRangeEqualsThatPartOfTheWhole) {
  constexpr uint64_t kSeed = 42;
  Random random(kSeed);
  ThreadTeam team(1);
  auto backend = MakeBackend(true, &team);
  for (const char* name : {"arch/qwen2", "arch/mixtral", "arch/gpt-oss", "quant/wide.Q4_K_M"}) {
    SCOPED_TRACE(name);
    auto source = format::OpenGguf(Golden(name)).value();
    auto plan = MakePlan(source, *backend).value();
    Packer packer(&source, &plan, backend.get());
    Packer::Scratch scratch;
    for (uint32_t s = 0; s < plan.segments.size(); ++s) {
      std::vector<std::byte> whole(plan.segments[s].bytes), part;
      ASSERT_TRUE(packer.Fill(s, 0, whole, &scratch).ok());
      // Block edges lie at multiples of 4 KiB, so that is where ranges begin and end.
      uint64_t pages = whole.size() / 4096;
      for (int round = 0; round < 20; ++round) {
        uint64_t from = random.Below(pages), count = 1 + random.Below(pages - from);
        part.assign(count * 4096, std::byte{0xee});
        ASSERT_TRUE(packer.Fill(s, from * 4096, part, &scratch).ok());
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + from * 4096, part.size()), 0)
            << "pages " << from << " + " << count << ", seed " << kSeed;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::weights
