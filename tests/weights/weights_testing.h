// Helpers for tests of weights: backends, generated models, and an independent packing to compare
// with.
#ifndef TERRACE_WEIGHTS_WEIGHTS_TESTING_H_
#define TERRACE_WEIGHTS_WEIGHTS_TESTING_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "../format/format_testing.h"
#include "format/gguf.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/ref/ref_backend.h"
#include "tensor/dequantize.h"
#include "weights/model_weights.h"

namespace terrace::weights {

using format::TempFolder;

inline std::string Golden(const std::string& name) {
  return std::string(TERRACE_TEST_DATA) + "/golden/" + name + ".gguf";
}

inline std::vector<std::string> GoldenModels() {
  std::vector<std::string> paths;
  for (const char* folder : {"/golden/arch", "/golden/quant"}) {
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(TERRACE_TEST_DATA) + folder)) {
      if (entry.path().extension() == ".gguf") paths.push_back(entry.path());
    }
  }
  return paths;
}

// Packing never computes, so the backend needs no threads of its own.
inline std::unique_ptr<ops::Backend> MakeBackend(bool packed, ThreadTeam* team) {
  if (!packed) return ops::CreateRefBackend(team);
  return ops::CreateCpuBackend("portable", team).value();
}

// The tensor's bytes in the image as the contract says: vectors as float32, each matrix packed
// whole.
inline std::vector<std::byte> PackWhole(const format::ModelSource& source,
                                        const ops::Backend& backend, const TensorPlace& place) {
  const format::TensorInfo* info = nullptr;
  for (const format::TensorInfo& tensor : source.tensors) {
    if (tensor.name == place.name) info = &tensor;
  }
  std::vector<std::byte> plain(info->bytes);
  EXPECT_TRUE(source.ReadTensor(*info, 0, plain).ok());
  size_t dims = info->shape.size();
  const uint64_t stacked = place.spread ? static_cast<uint64_t>(info->shape[0]) : 1;
  std::vector<std::byte> packed(place.bytes * stacked);
  if (dims == 1 || place.name.ends_with(".bias")) {
    std::vector<float> values(place.bytes / sizeof(float));
    DequantizeRow(info->dtype, plain.data(), values);
    std::memcpy(packed.data(), values.data(), packed.size());
    EXPECT_EQ(place.dtype, DType::kF32);
    EXPECT_EQ(place.layout, ops::Layout::kPlain);
    return packed;
  }
  auto rows = static_cast<int32_t>(info->shape[dims - 2]);
  auto cols = static_cast<int32_t>(info->shape[dims - 1]);
  size_t count = dims == 3 ? static_cast<size_t>(info->shape[0]) : 1;
  EXPECT_EQ(place.layout, backend.PreferredLayout(info->dtype, rows, cols));
  for (size_t i = 0; i < count; ++i) {
    size_t from = plain.size() / count, to = packed.size() / count;
    EXPECT_TRUE(backend
                    .Pack(place.layout, info->dtype, rows, cols,
                          std::span(plain).subspan(i * from, from),
                          std::span(packed).subspan(i * to, to))
                    .ok());
  }
  return packed;
}

// A llama-like model of about `mib` MiB of random Q8_0 weights, with a norm and a bias here and
// there.
inline void WriteModel(const std::string& path, int mib, uint64_t seed = 1) {
  format::GgufWriter writer;
  writer.AddString("general.architecture", "llama");
  constexpr int64_t kCols = 1024;
  const int64_t rows =
      int64_t{mib} * 1024 * 1024 / 8 / static_cast<int64_t>(RowBytes(DType::kQ8_0, kCols));
  Random random(seed);
  auto add = [&](const std::string& name, std::vector<int64_t> shape, DType dtype) {
    uint64_t tensor_seed = random.Next();
    writer.AddTensor(name, dtype, shape, [tensor_seed](uint64_t offset, std::span<std::byte> out) {
      Random bytes(tensor_seed ^ offset);
      for (size_t i = 0; i + 8 <= out.size(); i += 8) {
        uint64_t value = bytes.Next();
        std::memcpy(out.data() + i, &value, 8);
      }
      return absl::OkStatus();
    });
  };
  add("token_embd.weight", {2 * rows, kCols}, DType::kQ8_0);
  for (int layer = 0; layer < 3; ++layer) {
    std::string prefix = "blk." + std::to_string(layer) + ".";
    add(prefix + "attn_norm.weight", {kCols}, DType::kF32);
    add(prefix + "attn_q.weight", {rows, kCols}, DType::kQ8_0);
    add(prefix + "attn_q.bias", {rows}, DType::kF32);
    add(prefix + "ffn_up.weight", {rows, kCols}, DType::kQ8_0);
  }
  add("output_norm.weight", {kCols}, DType::kF32);
  ASSERT_TRUE(writer.Write(path).ok());
}

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_WEIGHTS_TESTING_H_
