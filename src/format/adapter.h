// Opens low-rank adapters (LoRA, Hu et al. 2021): a GGUF file of the type "adapter", or a folder of
// the PEFT library (adapter_config.json and adapter_model.safetensors). Either becomes pairs of
// matrices for the base model's tensors as GGUF names and orders them. Nothing in a file is
// trusted; reading checks what can be checked without the base model's shapes.
#ifndef TERRACE_FORMAT_ADAPTER_H_
#define TERRACE_FORMAT_ADAPTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "format/byte_source.h"
#include "format/model_source.h"
#include "tensor/dtype.h"

namespace terrace::format {

// y = W x becomes y = W x + scale * B (A x) for the base's matrix `tensor`.
struct AdapterPair {
  std::string tensor;  // "blk.3.attn_q.weight"
  int32_t rank = 0;
  int32_t in = 0;   // A is [rank, in]
  int32_t out = 0;  // B is [out, rank]
  float scale = 1.0f;
  DType a_dtype = DType::kF32;  // F32, F16 or BF16
  DType b_dtype = DType::kF32;
  uint64_t a_offset = 0;  // of the first byte in the file
  uint64_t b_offset = 0;
  // The row of B as stored for each row as the base's tensor has them; empty: the same.
  std::vector<uint32_t> b_rows;
};

// Move-only.
struct AdapterSource {
  std::unique_ptr<ByteSource> file;  // holds all matrices
  std::vector<FileIdentity> identity;
  std::vector<AdapterPair> pairs;  // at least one, in the order of their tensors' names

  absl::Status ReadA(const AdapterPair& pair, std::span<std::byte> out) const;
  absl::Status ReadB(const AdapterPair& pair, std::span<std::byte> out) const;
  absl::Status CheckUnchanged() const { return file->CheckUnchanged(); }
};

// `base` is the metadata of the model that the adapter is for: its architecture and heads say how
// rows of query and key matrices are ordered. InvalidArgument for malformed files and for an
// adapter of another architecture; Unimplemented for what this build does not apply (DoRA, biases,
// whole modules, tensors that are no attention or FFN matrix of a layer); both name the file and
// the key or tensor.
absl::StatusOr<AdapterSource> OpenAdapter(const std::string& path, const Metadata& base);

// The same of files that are open: one GGUF file, or adapter_config.json and the safetensors file
// beside it. Errors do not name the adapter.
absl::StatusOr<AdapterSource> ReadGgufAdapter(std::unique_ptr<ByteSource> file,
                                              const Metadata& base);
absl::StatusOr<AdapterSource> ReadPeftAdapter(std::unique_ptr<ByteSource> config_file,
                                              std::unique_ptr<ByteSource> file,
                                              const Metadata& base);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_ADAPTER_H_
