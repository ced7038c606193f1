#include "device/musa/mublas.h"

namespace terrace::device::musa {

absl::StatusOr<MatrixCalls> LoadMublas(const std::string& library) {
  BlasNames names;
  names.maker = "muBLAS";
  names.libraries = {"libmublas.so.1", "libmublas.so"};
  if (!library.empty()) names.libraries = {library};
  // In some releases the names with a suffix are all that is exported, in others they are macros.
  names.create = {"mublasCreate", "mublasCreate_v2"};
  names.destroy = {"mublasDestroy", "mublasDestroy_v2"};
  names.set_stream = {"mublasSetStream", "mublasSetStream_v2"};
  names.multiply = {"mublasGemmEx"};
  names.plain = 111;
  names.transposed = 112;
  // Older releases say how to sum by the number of a type.
  names.sums = {68, 0};
  names.algorithm = 0;
  return LoadBlas(names);
}

}  // namespace terrace::device::musa
