#include "weights/pull.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "format/byte_source.h"
#include "format/gguf.h"
#include "weights/sha256.h"

namespace terrace::weights {
namespace {

// The digest of a file that an earlier attempt completed; nothing if it is not there.
std::optional<std::string> DigestOf(const std::string& path) {
  auto file = format::OpenFileSource(path);
  if (!file.ok()) return std::nullopt;
  Sha256 hash;
  std::vector<std::byte> buffer(std::min<uint64_t>(kMiB, (*file)->size()));
  for (uint64_t done = 0; done < (*file)->size();) {
    auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), (*file)->size() - done));
    if (!(*file)->ReadAt(done, piece).ok()) return std::nullopt;
    hash.Add(piece);
    done += piece.size();
  }
  return hash.Finish();
}

// The version of `name` that consists of these very files, if their checksums are known.
std::optional<StoredVersion> FindSame(const ModelStore& store, const std::string& name,
                                      const std::vector<StoredFile>& files) {
  for (const StoredFile& file : files) {
    if (file.sha256.empty()) return std::nullopt;
  }
  auto model = store.Find(name);
  if (!model.ok()) return std::nullopt;
  for (StoredVersion& version : model->versions) {
    if (!version.problem.empty() || version.files.size() != files.size()) continue;
    bool same = true;
    for (size_t i = 0; i < files.size(); ++i) {
      same = same && version.files[i].sha256 == files[i].sha256;
    }
    if (same) return std::move(version);
  }
  return std::nullopt;
}

// Makes the version that is already there the current one.
absl::StatusOr<PullResult> TakeExisting(const ModelStore& store, const std::string& name,
                                        StoredVersion version) {
  if (!version.current) RETURN_IF_ERROR(store.SetCurrent(name, version.version));
  version.current = true;
  return PullResult{name, std::move(version), true, 0};
}

absl::StatusOr<FetchResult> FetchOne(const RemoteModel& model, size_t index,
                                     const std::string& folder, const PullOptions& options) {
  const RemoteFile& file = model.files[index];
  std::string path = fmt::format("{}/{}", folder, file.name);
  std::error_code ignored;  // what cannot be made is told by the fetch
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  // A file of a set that an earlier attempt completed is taken only if its checksum proves it.
  if (!file.sha256.empty() && DigestOf(path) == file.sha256) {
    std::error_code error;
    return FetchResult{std::filesystem::file_size(path, error), file.sha256, 0};
  }
  FetchOptions fetch = options.fetch;
  fetch.sha256 = file.sha256;
  if (options.progress) {
    fetch.progress = [&](const FetchProgress& progress) {
      options.progress({file.name, static_cast<uint32_t>(index),
                        static_cast<uint32_t>(model.files.size()), progress.done_bytes,
                        progress.total_bytes > 0 ? progress.total_bytes : file.bytes});
    };
  }
  return Fetch(file.source, path, fetch);
}

}  // namespace

absl::StatusOr<PullResult> Pull(const std::string& source, const ModelStore& store,
                                const PullOptions& options) {
  ASSIGN_OR_RETURN(RemoteModel model, ResolveSource(source, options.hub, options.fetch));
  if (!options.sha256.empty()) {
    if (model.files.size() != 1) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' has {} parts; a SHA-256 can be given for a single file only", source,
                      model.files.size()));
    }
    ASSIGN_OR_RETURN(model.files[0].sha256, ParseSha256(options.sha256));
  }
  std::string name = options.name.empty() ? model.suggested_name : options.name;
  std::vector<StoredFile> files;
  for (const RemoteFile& file : model.files) files.push_back({file.name, file.bytes, file.sha256});
  if (auto same = FindSame(store, name, files)) return TakeExisting(store, name, *std::move(same));

  if (!options.version.empty()) {
    // Before anything is fetched for it.
    auto taken = store.Resolve(name + "@" + options.version);
    if (taken.ok()) {
      return absl::AlreadyExistsError(
          fmt::format("model '{}' has a version '{}'", name, options.version));
    }
    if (absl::IsInvalidArgument(taken.status())) return taken.status();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Incoming> incoming, store.Begin(name, model.identity));
  PullResult result;
  result.name = name;
  for (size_t i = 0; i < model.files.size(); ++i) {
    auto fetched = FetchOne(model, i, incoming->folder(), options);
    if (!fetched.ok()) {
      // What can be resumed stays; of a source that is not there nothing does.
      std::error_code error;
      bool resumable = std::filesystem::exists(
          fmt::format("{}/{}.partial", incoming->folder(), model.files[i].name), error);
      if (!resumable && i == 0) store.Discard(std::move(incoming)).IgnoreError();
      return fetched.status();
    }
    files[i].bytes = fetched->bytes;
    files[i].sha256 = fetched->sha256;
    result.resumed_at_bytes += fetched->resumed_at_bytes;
  }
  auto opened = format::OpenModel(incoming->folder() + "/" + model.files[0].name);
  if (!opened.ok()) {
    store.Discard(std::move(incoming)).IgnoreError();
    return WithContext(opened.status(),
                       fmt::format("'{}' is not a model that can be read", source));
  }
  if (auto same = FindSame(store, name, files)) {
    store.Discard(std::move(incoming)).IgnoreError();
    return TakeExisting(store, name, *std::move(same));
  }
  ASSIGN_OR_RETURN(result.version,
                   store.Publish(std::move(incoming), options.version, source, files));
  return result;
}

}  // namespace terrace::weights
