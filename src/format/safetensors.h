// Reads the headers of safetensors files (the format of the safetensors library). Nothing in a file
// is trusted: the header's length is checked before it is read, and every tensor's shape and range
// against each other and against the file before any data is.
//
// Errors name the file and the tensor, with both sizes where two disagree: InvalidArgument for
// malformed files, DataLoss for cut-off ones, Unimplemented for element types not known.
#ifndef TERRACE_FORMAT_SAFETENSORS_H_
#define TERRACE_FORMAT_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "format/byte_source.h"

namespace terrace::format {

// The element types that the format names and this build reads.
enum class SafeDType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
};
uint32_t SafeDTypeBytes(SafeDType dtype);
std::string_view SafeDTypeName(SafeDType dtype);

struct SafeTensor {
  std::string name;
  SafeDType dtype = SafeDType::kF32;
  std::vector<int64_t> shape;  // row-major
  uint32_t file = 0;           // index into a checkpoint's files; 0 from ReadSafetensorsHeader
  uint64_t offset = 0;         // of the first byte in that file
  uint64_t bytes = 0;
};

// A header longer than this is refused unread, as the safetensors library does.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsHeader {
  std::vector<SafeTensor> tensors;  // by offset; none overlap
  uint64_t header_hash = 0;         // XXH3-64 of the length and the header
};
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ByteSource& source);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_SAFETENSORS_H_
