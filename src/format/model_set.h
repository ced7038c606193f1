// Finds the models in a folder: a single GGUF file is one model, and so is a split set of any
// number of parts.
#ifndef TERRACE_FORMAT_MODEL_SET_H_
#define TERRACE_FORMAT_MODEL_SET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::format {

// "dir/base-00002-of-00003.gguf" taken apart.
struct PartName {
  std::string base;   // "dir/base"
  uint32_t part = 0;  // 1-based
  uint32_t count = 0;
};
std::optional<PartName> ParsePartName(std::string_view path);
std::string PartPath(std::string_view base, uint32_t part, uint32_t count);

struct ModelFileEntry {
  std::string name;  // "base": the file's name without part number and ".gguf"
  std::string path;  // the file to open; part 1 of a set, present or not
  uint32_t parts = 1;
  uint64_t bytes = 0;  // of the parts that are present
  uint32_t missing_parts = 0;
  std::string first_missing;  // file name of the first part that is not there, or ""
};

// The models directly in `folder`, sorted by path. Reads names and sizes only, no headers.
absl::StatusOr<std::vector<ModelFileEntry>> ListModelFiles(const std::string& folder);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_MODEL_SET_H_
