#include "weights/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "format/model_set.h"
#include "weights/sha256.h"

namespace terrace::weights {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxListBytes = 16 * kMiB;
constexpr uint32_t kMaxParts = 512;

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A name for the store from a file's or repository's name.
std::string StoreName(std::string_view name) {
  std::string out = ToLower(name);
  for (std::string_view ending : {".gguf", "-gguf", ".git"}) {
    if (out.ends_with(ending)) out.resize(out.size() - ending.size());
  }
  for (char& c : out) {
    bool kept =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '_' || c == '-';
    if (!kept) c = '-';
  }
  size_t start = out.find_first_not_of(".-");
  return start == std::string::npos ? "model" : out.substr(start, 100);
}

// A file or a set: the paths of its parts.
struct Candidate {
  std::string label;  // the single file's or first part's path
  std::vector<std::string> paths;
};

// `path` alone, or all parts of the set it belongs to.
absl::StatusOr<Candidate> WithParts(const std::string& path) {
  auto part = format::ParsePartName(path);
  if (!part || part->count == 1) return Candidate{path, {path}};
  if (part->count > kMaxParts) {
    return absl::InvalidArgumentError(fmt::format("'{}': a set of {} parts", path, part->count));
  }
  Candidate candidate;
  for (uint32_t i = 1; i <= part->count; ++i) {
    candidate.paths.push_back(format::PartPath(part->base, i, part->count));
  }
  candidate.label = candidate.paths[0];
  return candidate;
}

std::string Escape(std::string_view text) {
  std::string out;
  for (unsigned char c : text) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                 c == '-' || c == '_' || c == '.' || c == '~' || c == '/';
    out += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return out;
}

// A path or URL. The query of a URL stays behind the names of all parts.
absl::StatusOr<RemoteModel> ResolveFile(const std::string& source) {
  bool is_url = source.find("://") != std::string::npos;
  size_t end = is_url ? source.find_first_of("?#") : std::string::npos;
  std::string tail = end == std::string::npos ? "" : source.substr(end);
  ASSIGN_OR_RETURN(Candidate candidate, WithParts(source.substr(0, end)));
  RemoteModel model;
  for (const std::string& path : candidate.paths) {
    std::string name(BaseName(path));
    if (name.empty()) {
      return absl::InvalidArgumentError(fmt::format("'{}' does not name a file", source));
    }
    if (!name.ends_with(".gguf")) name += ".gguf";
    model.files.push_back({path + tail, std::move(name), "", 0});
  }
  auto part = format::ParsePartName(candidate.label);
  model.suggested_name = StoreName(BaseName(part ? part->base : candidate.label));
  model.identity = candidate.label + tail;
  return model;
}

struct HubSource {
  std::string repository;  // "owner/name"
  std::string file;
};

absl::StatusOr<HubSource> ParseHub(const std::string& source) {
  std::string_view rest = std::string_view(source).substr(3);
  size_t colon = rest.find(':');
  HubSource hub{std::string(rest.substr(0, colon)),
                colon == std::string_view::npos ? "" : std::string(rest.substr(colon + 1))};
  auto parts = Split(hub.repository, '/');
  auto good = [](std::string_view name) {
    return !name.empty() && name[0] != '.' &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
           });
  };
  if (parts.size() == 2 && good(parts[0]) && good(parts[1])) return hub;
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not of the form hf:owner/name or hf:owner/name:file", source));
}

struct HubListing {
  std::string revision;
  std::map<std::string, RemoteFile> files;       // by path; only GGUF files
  std::map<std::string, RemoteFile> checkpoint;  // the files of a safetensors folder
};

// The files of a repository that make up a checkpoint; what else lies there (the same weights in
// other formats among it) is left.
bool IsCheckpointFile(std::string_view path) {
  for (std::string_view name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "chat_template.json", "model.safetensors.index.json",
        "1_Pooling/config.json"}) {
    if (path == name) return true;
  }
  return path.starts_with("model") && path.ends_with(".safetensors") &&
         path.find('/') == std::string_view::npos;
}

bool IsCheckpoint(const HubListing& listing) {
  return listing.checkpoint.contains("config.json") &&
         std::any_of(listing.checkpoint.begin(), listing.checkpoint.end(),
                     [](const auto& file) { return file.first.ends_with(".safetensors"); });
}

absl::StatusOr<HubListing> ParseListing(const std::string& text, const std::string& url) {
  auto bad = [&](std::string_view what) {
    return absl::UnavailableError(fmt::format("'{}' answers with no listing: {}", url, what));
  };
  boost::system::error_code error;
  json::value root = json::parse(text, error);
  if (error) return bad(error.message());
  const json::object* object = root.if_object();
  const json::value* siblings = object == nullptr ? nullptr : object->if_contains("siblings");
  if (siblings == nullptr || !siblings->is_array()) return bad("no 'siblings'");
  HubListing listing;
  const json::value* revision = object->if_contains("sha");
  if (revision != nullptr && revision->is_string()) {
    listing.revision = std::string(revision->get_string());
  }
  if (listing.revision.empty() ||
      listing.revision.find_first_not_of("0123456789abcdef") != std::string::npos) {
    listing.revision = "main";
  }
  for (const json::value& entry : siblings->get_array()) {
    const json::object* file = entry.if_object();
    const json::value* path = file == nullptr ? nullptr : file->if_contains("rfilename");
    if (path == nullptr || !path->is_string()) continue;
    RemoteFile remote;
    std::string name(path->get_string());
    const bool checkpoint = IsCheckpointFile(name);
    if (!checkpoint && (!name.ends_with(".gguf") || BaseName(name).starts_with('.'))) continue;
    const json::value* size = file->if_contains("size");
    if (size != nullptr) remote.bytes = size->to_number<uint64_t>(error);
    const json::value* lfs = file->if_contains("lfs");
    const json::value* sha256 =
        lfs != nullptr && lfs->is_object() ? lfs->get_object().if_contains("sha256") : nullptr;
    if (sha256 != nullptr && sha256->is_string()) {
      auto digits = ParseSha256(std::string(sha256->get_string()));
      if (digits.ok()) remote.sha256 = *digits;
    }
    (checkpoint ? listing.checkpoint : listing.files).emplace(std::move(name), std::move(remote));
  }
  return listing;
}

// The one file or set of the listing that `wanted` means.
absl::StatusOr<Candidate> Choose(const HubListing& listing, const HubSource& hub) {
  std::map<std::string, Candidate> candidates;  // by label
  for (const auto& [path, file] : listing.files) {
    ASSIGN_OR_RETURN(Candidate candidate, WithParts(path));
    if (path == hub.file || BaseName(path) == hub.file) return candidate;
    std::string lower = ToLower(path);
    // Vision towers and calibration data are no models of their own.
    if (lower.find("mmproj") != std::string::npos || lower.find("imatrix") != std::string::npos) {
      continue;
    }
    if (!hub.file.empty() && lower.find(ToLower(hub.file)) == std::string::npos) continue;
    candidates.emplace(candidate.label, std::move(candidate));
  }
  if (candidates.size() == 1) return candidates.begin()->second;
  std::vector<std::string> all;
  for (const auto& [path, file] : listing.files) all.push_back(path);
  std::string choices = fmt::format("{}", fmt::join(all, ", "));
  if (candidates.empty()) {
    return absl::NotFoundError(all.empty()
                                   ? fmt::format("'{}' holds no GGUF file", hub.repository)
                                   : fmt::format("'{}' holds no GGUF file '{}'; there are {}",
                                                 hub.repository, hub.file, choices));
  }
  return absl::InvalidArgumentError(
      fmt::format("'{}' holds several models; name one, as in hf:{}:{}; there are {}",
                  hub.repository, hub.repository, BaseName(candidates.begin()->first), choices));
}

// All files of a checkpoint, config.json first.
RemoteModel WholeCheckpoint(const HubListing& listing, const std::string& repository,
                            const std::string& base) {
  RemoteModel model;
  model.suggested_name = StoreName(BaseName(repository));
  model.identity = fmt::format("hf:{}@{}:safetensors", repository, listing.revision);
  for (const auto& [path, remote] : listing.checkpoint) {
    RemoteFile file = remote;
    file.name = path;
    file.source =
        fmt::format("{}/{}/resolve/{}/{}", base, repository, listing.revision, Escape(path));
    if (path == "config.json") {
      model.files.insert(model.files.begin(), std::move(file));
    } else {
      model.files.push_back(std::move(file));
    }
  }
  return model;
}

absl::StatusOr<RemoteModel> ResolveHub(const std::string& source, const std::string& endpoint,
                                       const FetchOptions& options) {
  ASSIGN_OR_RETURN(HubSource hub, ParseHub(source));
  std::string base = endpoint;
  while (base.ends_with('/')) base.pop_back();
  std::string url = fmt::format("{}/api/models/{}?blobs=true", base, hub.repository);
  ASSIGN_OR_RETURN(std::string text, FetchText(url, kMaxListBytes, options));
  ASSIGN_OR_RETURN(HubListing listing, ParseListing(text, url));
  const bool asked = hub.file == "safetensors", free = hub.file.empty() && listing.files.empty();
  if ((asked || free) && IsCheckpoint(listing)) {
    return WholeCheckpoint(listing, hub.repository, base);
  }
  ASSIGN_OR_RETURN(Candidate candidate, Choose(listing, hub));
  RemoteModel model;
  std::string_view repository_name = BaseName(hub.repository);
  model.suggested_name = StoreName(repository_name);
  model.identity = fmt::format("hf:{}@{}:{}", hub.repository, listing.revision, candidate.label);
  for (const std::string& path : candidate.paths) {
    auto it = listing.files.find(path);
    if (it == listing.files.end()) {
      return absl::NotFoundError(
          fmt::format("'{}' lacks '{}', a part of '{}'", hub.repository, path, candidate.label));
    }
    RemoteFile file = it->second;
    file.name = BaseName(path);
    file.source =
        fmt::format("{}/{}/resolve/{}/{}", base, hub.repository, listing.revision, Escape(path));
    model.files.push_back(std::move(file));
  }
  return model;
}

}  // namespace

absl::StatusOr<RemoteModel> ResolveSource(const std::string& source, const std::string& hub,
                                          const FetchOptions& options) {
  return source.starts_with("hf:") ? ResolveHub(source, hub, options) : ResolveFile(source);
}

}  // namespace terrace::weights
