// Split sets: opens all parts of a model, or none.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "format/gguf.h"
#include "format/model_set.h"
#include "format/scaled_rows.h"

namespace terrace::format {
namespace {

// More parts than any real set has; each one costs a file descriptor.
constexpr uint32_t kMaxParts = 512;

// What the metadata of one file says about its set.
struct SplitKeys {
  int64_t no = 0;
  int64_t count = 1;
  int64_t tensors = -1;  // over all parts; -1: not said
};

absl::StatusOr<SplitKeys> ReadSplitKeys(const Metadata& metadata) {
  SplitKeys keys;
  constexpr int64_t kMost = int64_t{1} << 32;
  ASSIGN_OR_RETURN(keys.no, metadata.GetInt("split.no", 0, kMost, 0));
  ASSIGN_OR_RETURN(keys.count, metadata.GetInt("split.count", 0, kMost, 1));
  ASSIGN_OR_RETURN(keys.tensors, metadata.GetInt("split.tensors.count", 0, kMost, -1));
  return keys;
}

// The paths of the set that `path` belongs to; all parts are there.
absl::StatusOr<std::vector<std::string>> SetPaths(const std::string& path) {
  auto name = ParsePartName(path);
  if (!name || name->count == 1) return std::vector<std::string>{path};
  if (name->count > kMaxParts) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': a set of {} parts, at most {} are read", path, name->count, kMaxParts));
  }
  std::vector<std::string> paths;
  for (uint32_t part = 1; part <= name->count; ++part) {
    paths.push_back(PartPath(name->base, part, name->count));
    std::error_code error;
    if (std::filesystem::exists(paths.back(), error)) continue;
    return absl::NotFoundError(fmt::format("part {} of {} of the split model '{}' is missing: '{}'",
                                           part, name->count, name->base, paths.back()));
  }
  return paths;
}

absl::Status CheckPart(const std::string& path, const SplitKeys& keys, const SplitKeys& first,
                       size_t index, size_t count) {
  auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(fmt::format("'{}': {}", path, what));
  };
  if (keys.count != static_cast<int64_t>(count) && !(count == 1 && keys.count == 0)) {
    if (count == 1) {
      return refuse(
          fmt::format("it is part {} of {} of a split model, but its name does not end in "
                      "\"-{:05}-of-{:05}.gguf\", "
                      "so the other parts cannot be found",
                      keys.no + 1, keys.count, keys.no + 1, keys.count));
    }
    return refuse(
        fmt::format("its name says {} parts, its split.count says {}", count, keys.count));
  }
  if (keys.no != static_cast<int64_t>(index)) {
    return refuse(fmt::format("its name says part {}, its split.no says {} (counted from 0)",
                              index + 1, keys.no));
  }
  if (keys.tensors != first.tensors) {
    return refuse(fmt::format("it declares {} tensors in all parts, part 1 declares {}",
                              keys.tensors, first.tensors));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileIdentity> Identity(const ByteSource& source, const GgufHeader& header) {
  if (source.name().find("://") != std::string::npos) {
    return FileIdentity{source.name(), source.size(), source.mtime_ns(), header.header_hash};
  }
  std::error_code error;
  auto path = std::filesystem::canonical(source.name(), error);
  if (error) {
    return absl::NotFoundError(fmt::format("'{}': {}", source.name(), error.message()));
  }
  return FileIdentity{path.string(), source.size(), source.mtime_ns(), header.header_hash};
}

}  // namespace

absl::StatusOr<ModelSource> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(std::vector<std::string> paths, SetPaths(path));
  std::vector<std::unique_ptr<ByteSource>> files;
  for (const std::string& part : paths) {
    ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file, OpenFileSource(part));
    files.push_back(std::move(file));
  }
  return OpenGguf(std::move(files), paths);
}

absl::StatusOr<ModelSource> OpenGguf(std::vector<std::unique_ptr<ByteSource>> files,
                                     const std::vector<std::string>& paths) {
  ModelSource model;
  SplitKeys first;
  absl::flat_hash_map<std::string, uint32_t> owner;  // of a tensor's name, for sets
  for (size_t i = 0; i < paths.size(); ++i) {
    std::unique_ptr<ByteSource> file = std::move(files[i]);
    ASSIGN_OR_RETURN(GgufHeader header, ReadGgufHeader(*file));
    auto keys = ReadSplitKeys(header.metadata);
    if (!keys.ok()) return WithContext(keys.status(), paths[i]);
    if (i == 0) first = *keys;
    RETURN_IF_ERROR(CheckPart(paths[i], *keys, first, i, paths.size()));
    for (TensorInfo& tensor : header.tensors) {
      tensor.file = static_cast<uint32_t>(i);
      auto [entry, added] = owner.try_emplace(tensor.name, tensor.file);
      if (!added) {
        return absl::InvalidArgumentError(fmt::format("tensor '{}' is in two parts: '{}' and '{}'",
                                                      tensor.name, paths[entry->second], paths[i]));
      }
    }
    ASSIGN_OR_RETURN(FileIdentity identity, Identity(*file, header));
    model.identity.push_back(std::move(identity));
    model.files.push_back(std::move(file));
    std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(model.tensors));
    if (i == 0) model.metadata = std::move(header.metadata);
  }
  if (first.tensors >= 0 && static_cast<uint64_t>(first.tensors) != model.tensors.size()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}': split.tensors.count says {} tensors, its {} parts hold {}", paths[0],
                    first.tensors, paths.size(), model.tensors.size()));
  }
  RETURN_IF_ERROR(MergeScaledRows(&model));
  return model;
}

}  // namespace terrace::format
