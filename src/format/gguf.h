// Reads GGUF files (versions 2 and 3, little-endian), single or split in parts. The format is that
// of the GGUF specification of ggml. Nothing in a file is trusted: counts, lengths, offsets and
// alignments are checked before use, and memory grows with the bytes really read, never with what a
// header declares.
//
// Errors name the file, what was being read (a metadata key, a tensor, a table), the offset, and
// for a cut-off file the bytes missing: InvalidArgument for malformed files, DataLoss for cut-off
// ones, NotFound for a missing file or part, Unimplemented for versions, byte orders and tensor
// types that this build does not read.
#ifndef TERRACE_FORMAT_GGUF_H_
#define TERRACE_FORMAT_GGUF_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "format/byte_source.h"
#include "format/model_source.h"
#include "format/tensor_info.h"

namespace terrace::format {

inline constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF" read as little-endian
inline constexpr uint32_t kGgufDefaultAlignment = 32;

// The value types of the specification.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One file's header.
struct GgufHeader {
  uint32_t version = 0;
  uint32_t alignment = kGgufDefaultAlignment;
  uint64_t data_offset = 0;  // where tensor data starts
  uint64_t header_hash = 0;  // see FileIdentity
  Metadata metadata;
  std::vector<TensorInfo> tensors;  // offsets from the file's start; file = 0
};

// Reads and checks one file's header; of a part of a split set too, taken by itself.
absl::StatusOr<GgufHeader> ReadGgufHeader(const ByteSource& source);

// Opens a model by the path of a single file or of any part of a split set
// ("x-00002-of-00003.gguf"); a set is always opened as a whole, from part 1, or refused.
absl::StatusOr<ModelSource> OpenGguf(const std::string& path);
// The same from its files, in the order of their parts; `names` are those that say which parts they
// are. What is no file (its name() no path) is identified by its name.
absl::StatusOr<ModelSource> OpenGguf(std::vector<std::unique_ptr<ByteSource>> files,
                                     const std::vector<std::string>& names);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_GGUF_H_
