// Writes safetensors folders for tests: the checkpoint that a GGUF model would have come from.
#ifndef TERRACE_TESTS_ENGINE_CHECKPOINT_WRITER_H_
#define TERRACE_TESTS_ENGINE_CHECKPOINT_WRITER_H_

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/model_source.h"

namespace terrace::engine {

struct CheckpointTensor {
  std::string name;
  std::string dtype;  // "F16"
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

struct Checkpoint {
  boost::json::object config;
  std::vector<CheckpointTensor> tensors;

  CheckpointTensor* Find(std::string_view name);
  // Writes config.json and the weights: one file, or `shards` with an index.
  void Write(const std::string& folder, int shards = 1) const;
};

std::string SafetensorsBytes(std::span<const CheckpointTensor> tensors);
void WriteText(const std::string& path, std::string_view text);

// The checkpoint of a golden model (tests/data/golden/arch), tensor for tensor in the same types:
// rows in the order of the published checkpoints, experts apart, latent matrices together.
Checkpoint CheckpointOf(const format::ModelSource& gguf);
std::string GoldenPath(std::string_view name);  // Of the golden GGUF model.
Checkpoint GoldenCheckpoint(std::string_view name);

}  // namespace terrace::engine

#endif  // TERRACE_TESTS_ENGINE_CHECKPOINT_WRITER_H_
