// A model's files opened and their headers read, whatever the format: what importers and
// architectures start from.
#ifndef TERRACE_FORMAT_MODEL_SOURCE_H_
#define TERRACE_FORMAT_MODEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "format/byte_source.h"
#include "format/tensor_info.h"

namespace terrace::format {

// Which bytes a model was read from: if any field differs, it is another model.
struct FileIdentity {
  std::string path;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  uint64_t header_hash = 0;  // chained XXH3-64 of the file's first bytes, its header among them
  bool operator==(const FileIdentity&) const = default;
};

// Makes the bytes of tensors that do not lie in a file as they are needed. Thread-safe.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  // Bytes [offset, offset + out.size()) of tensor `index`, which have been checked to be there.
  virtual absl::Status Read(uint32_t index, uint64_t offset, std::span<std::byte> out) const = 0;
};

// Move-only. Every tensor's range has been checked to lie inside its file.
struct ModelSource {
  std::vector<std::unique_ptr<ByteSource>> files;  // those on disk, then views of them
  std::vector<FileIdentity> identity;              // one a file on disk
  Metadata metadata;
  std::vector<TensorInfo> tensors;
  // Null: tensors are read from the files as they are. Else `file` of a TensorInfo is the index
  // that this reader knows it by.
  std::unique_ptr<TensorReader> reader;

  // Reads bytes [offset, offset + out.size()) of `tensor`.
  absl::Status ReadTensor(const TensorInfo& tensor, uint64_t offset,
                          std::span<std::byte> out) const;
  // FailedPrecondition if a file was written to since it was opened.
  absl::Status CheckUnchanged() const;
};

// Opens the model at `path`: a GGUF file (any part of a set), a folder with a checkpoint of
// safetensors files and config.json, or a file of such a folder. Errors as in gguf.h and
// folder/model_folder.h.
absl::StatusOr<ModelSource> OpenModel(const std::string& path);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_MODEL_SOURCE_H_
