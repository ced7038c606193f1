// Writes GGUF version 3 files, from tensor data given in pieces so that a large model never lies in
// memory. The file appears under its final name only when it is complete and on disk; a failure
// (a full disk among them) leaves nothing behind. Not thread-safe.
#ifndef TERRACE_FORMAT_GGUF_WRITER_H_
#define TERRACE_FORMAT_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "format/gguf.h"
#include "tensor/dtype.h"

namespace terrace::format {

class GgufWriter {
 public:
  // Fills `out` with the tensor's bytes from `offset`; called in order, with pieces of at most 1
  // MiB.
  using Fill = std::function<absl::Status(uint64_t offset, std::span<std::byte> out)>;

  explicit GgufWriter(uint32_t alignment = kGgufDefaultAlignment);

  // `type` is one of the integer types; the value is cut to its width.
  void AddInt(std::string_view key, GgufValueType type, int64_t value);
  void AddFloat(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddInts(std::string_view key, GgufValueType type, std::span<const int64_t> values);
  void AddFloats(std::string_view key, std::span<const double> values);
  void AddBools(std::string_view key, const std::vector<bool>& values);
  void AddStrings(std::string_view key, std::span<const std::string> values);
  // All of `metadata` but general.alignment and split.*: integers as u32 where they fit, else i32,
  // else i64 (arrays: i32 or i64); numbers as f32.
  void AddMetadata(const Metadata& metadata);

  // `shape` is row-major, as in TensorInfo. REQUIRES: rows of whole blocks, a dtype that GGUF has.
  void AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape, Fill fill);
  void AddTensor(std::string_view name, DType dtype, std::span<const int64_t> shape,
                 std::vector<std::byte> data);

  // The header and its padding, as they will be written.
  std::string HeaderBytes() const;
  absl::StatusOr<std::string> FileBytes() const;  // the whole file, for tests and fuzzers
  absl::Status Write(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    uint64_t bytes;
    Fill fill;
  };
  using Sink = std::function<absl::Status(std::span<const std::byte>)>;

  void AddKey(std::string_view key, GgufValueType type);
  absl::Status Emit(const Sink& sink) const;

  uint32_t alignment_;
  uint64_t keys_ = 0;
  std::string metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_GGUF_WRITER_H_
