#include "format/model_source.h"

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::format {

absl::Status ModelSource::ReadTensor(const TensorInfo& tensor, uint64_t offset,
                                     std::span<std::byte> out) const {
  if (tensor.file >= files.size() || offset > tensor.bytes || out.size() > tensor.bytes - offset) {
    return absl::InvalidArgumentError(fmt::format("tensor '{}': bytes [{}, {}) asked of {}",
                                                  tensor.name, offset, offset + out.size(),
                                                  tensor.bytes));
  }
  absl::Status status = files[tensor.file]->ReadAt(tensor.offset + offset, out);
  if (status.ok()) return status;
  return WithContext(status, fmt::format("reading tensor '{}'", tensor.name));
}

absl::Status ModelSource::CheckUnchanged() const {
  for (const auto& file : files) RETURN_IF_ERROR(file->CheckUnchanged());
  return absl::OkStatus();
}

}  // namespace terrace::format
