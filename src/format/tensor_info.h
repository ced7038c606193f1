// What a model file says of one tensor, whatever the file's format.
#ifndef TERRACE_FORMAT_TENSOR_INFO_H_
#define TERRACE_FORMAT_TENSOR_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace terrace::format {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  // Row-major as in safetensors and NumPy: the last dimension is contiguous. (GGUF stores the
  // reverse order; its reader turns it round.) A matrix W with y = W x has shape [out, in].
  std::vector<int64_t> shape;
  uint32_t file = 0;    // index into the set's files
  uint64_t offset = 0;  // of the first byte in that file
  uint64_t bytes = 0;
};

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_TENSOR_INFO_H_
