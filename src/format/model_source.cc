#include "format/model_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/status.h"
#include "format/folder/model_folder.h"
#include "format/gguf.h"

namespace terrace::format {

absl::Status ModelSource::ReadTensor(const TensorInfo& tensor, uint64_t offset,
                                     std::span<std::byte> out) const {
  if ((reader == nullptr && tensor.file >= files.size()) || offset > tensor.bytes ||
      out.size() > tensor.bytes - offset) {
    return absl::InvalidArgumentError(fmt::format("tensor '{}': bytes [{}, {}) asked of {}",
                                                  tensor.name, offset, offset + out.size(),
                                                  tensor.bytes));
  }
  absl::Status status = reader != nullptr ? reader->Read(tensor.file, offset, out)
                                          : files[tensor.file]->ReadAt(tensor.offset + offset, out);
  if (status.ok()) return status;
  return WithContext(status, fmt::format("reading tensor '{}'", tensor.name));
}

absl::Status ModelSource::CheckUnchanged() const {
  for (const auto& file : files) RETURN_IF_ERROR(file->CheckUnchanged());
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> OpenModel(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return OpenModelFolder(path);
  if (path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json") ||
      fs::path(path).filename() == "config.json") {
    const fs::path folder = fs::path(path).parent_path();
    return OpenModelFolder(folder.empty() ? "." : folder.string());
  }
  return OpenGguf(path);
}

}  // namespace terrace::format
