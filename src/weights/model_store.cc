#include "weights/model_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "format/model_set.h"
#include "os/atomic_file.h"

namespace terrace::weights {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr const char* kCurrent = "current";
constexpr const char* kIncoming = ".incoming";
constexpr const char* kRemoved = ".removed";
constexpr const char* kNote = "/source.json";
constexpr size_t kMaxName = 128;
constexpr uint64_t kMaxNoteBytes = 4 * kMiB;

bool IsStoreName(std::string_view name) {
  if (name.empty() || name.size() > kMaxName || name[0] == '.' || name == kCurrent) return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::optional<uint64_t> Number(std::string_view version) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), value);
  if (error != std::errc() || end != version.data() + version.size()) return std::nullopt;
  return value;
}

// Numbers in order, before other names.
bool Older(const StoredVersion& a, const StoredVersion& b) {
  auto left = Number(a.version), right = Number(b.version);
  if (left && right) return *left < *right;
  if (left.has_value() != right.has_value()) return left.has_value();
  return a.version < b.version;
}

absl::Status FileError(std::string_view what, const std::error_code& error) {
  return absl::UnavailableError(fmt::format("{}: {}", what, error.message()));
}

absl::Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? FileError(fmt::format("removing '{}'", path), error) : absl::OkStatus();
}

std::string SerializeNote(const std::string& source, const std::vector<StoredFile>& files) {
  json::array list;
  for (const StoredFile& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return json::serialize(json::object{{"source", source}, {"files", std::move(list)}}) + "\n";
}

// A note that is missing or damaged leaves `version` as it is: the files are what counts.
void ReadNote(const std::string& folder, StoredVersion* version) {
  std::error_code absent;
  uint64_t bytes = fs::file_size(folder + kNote, absent);
  if (absent || bytes > kMaxNoteBytes) return;
  std::ifstream in(folder + kNote, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  boost::system::error_code error;
  json::value root = json::parse(text, error);
  const json::object* note = error ? nullptr : root.if_object();
  if (note == nullptr) return;
  const json::value* source = note->if_contains("source");
  const json::value* files = note->if_contains("files");
  if (source != nullptr && source->is_string()) version->source = std::string(source->get_string());
  if (files == nullptr || !files->is_array()) return;
  for (const json::value& entry : files->get_array()) {
    const json::object* object = entry.if_object();
    if (object == nullptr) continue;
    StoredFile file;
    const json::value* name = object->if_contains("name");
    const json::value* file_bytes = object->if_contains("bytes");
    const json::value* sha256 = object->if_contains("sha256");
    if (name != nullptr && name->is_string()) file.name = std::string(name->get_string());
    if (sha256 != nullptr && sha256->is_string()) file.sha256 = std::string(sha256->get_string());
    if (file_bytes != nullptr) file.bytes = file_bytes->to_number<uint64_t>(error);
    version->files.push_back(std::move(file));
  }
}

// A folder with a safetensors checkpoint.
void ReadCheckpoint(const std::string& folder, StoredVersion* version) {
  version->path = folder;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() != ".safetensors") continue;
    std::error_code ignored;
    const uint64_t bytes = entry->file_size(ignored);
    if (ignored) continue;
    version->bytes += bytes;
    ++version->parts;
  }
  if (version->parts == 0) version->problem = fmt::format("'{}' holds no weights", folder);
}

StoredVersion ReadVersion(const std::string& folder, const std::string& name,
                          const std::string& current) {
  StoredVersion version;
  version.version = name;
  version.current = name == current;
  ReadNote(folder, &version);
  std::error_code error;
  auto models = format::ListModelFiles(folder);
  if (!models.ok()) {
    version.problem = Message(models.status());
  } else if (models->empty() && fs::is_regular_file(folder + "/config.json", error)) {
    ReadCheckpoint(folder, &version);
  } else if (models->size() != 1) {
    version.problem = fmt::format("'{}' holds {} models, not one", folder, models->size());
  } else {
    const format::ModelFileEntry& model = models->front();
    version.path = model.path;
    version.bytes = model.bytes;
    version.parts = model.parts;
    if (model.missing_parts > 0) {
      version.problem = fmt::format("part '{}' is missing", model.first_missing);
    }
  }
  return version;
}

// Names of the folders in `folder` that can be models or versions.
absl::StatusOr<std::vector<std::string>> FolderNames(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    std::string name = entry->path().filename().string();
    if (IsStoreName(name) && entry->is_directory(ignored)) names.push_back(std::move(name));
  }
  if (error) return FileError(fmt::format("reading '{}'", folder), error);
  std::sort(names.begin(), names.end());
  return names;
}

std::string VersionNames(const StoredModel& model) {
  std::vector<std::string> names;
  for (const StoredVersion& version : model.versions) names.push_back(version.version);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

absl::StatusOr<ModelReference> ParseReference(std::string_view text) {
  ModelReference reference;
  size_t at = text.find('@');
  reference.name = text.substr(0, at);
  if (at != std::string_view::npos) reference.version = text.substr(at + 1);
  if (!IsStoreName(reference.name) ||
      (at != std::string_view::npos && !IsStoreName(reference.version))) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not a model's name: letters, digits, '.', '_' and '-', and maybe @version", text));
  }
  return reference;
}

Incoming::Incoming(std::string model_folder, std::string folder, int lock_fd)
    : model_folder_(std::move(model_folder)), folder_(std::move(folder)), lock_fd_(lock_fd) {}
Incoming::~Incoming() { close(lock_fd_); }

std::string ModelStore::ModelFolder(std::string_view name) const {
  return fmt::format("{}/{}", folder_, name);
}

absl::StatusOr<StoredModel> ModelStore::Read(const std::string& name) const {
  StoredModel model;
  model.name = name;
  std::string folder = ModelFolder(name);
  std::error_code error;
  std::string current = fs::read_symlink(folder + "/" + kCurrent, error).string();
  ASSIGN_OR_RETURN(std::vector<std::string> names, FolderNames(folder));
  for (const std::string& version : names) {
    model.versions.push_back(ReadVersion(folder + "/" + version, version, current));
  }
  std::sort(model.versions.begin(), model.versions.end(), Older);
  return model;
}

absl::StatusOr<std::vector<StoredModel>> ModelStore::List() const {
  std::vector<StoredModel> models;
  ASSIGN_OR_RETURN(std::vector<std::string> names, FolderNames(folder_));
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(StoredModel model, Read(name));
    if (!model.versions.empty()) models.push_back(std::move(model));
  }
  return models;
}

absl::StatusOr<StoredModel> ModelStore::Find(std::string_view name) const {
  ASSIGN_OR_RETURN(ModelReference reference, ParseReference(name));
  ASSIGN_OR_RETURN(StoredModel model, Read(reference.name));
  if (!model.versions.empty()) return model;
  ASSIGN_OR_RETURN(std::vector<std::string> names, FolderNames(folder_));
  std::string nearest = NearestName(reference.name, names);
  return absl::NotFoundError(
      fmt::format("no model '{}' in {}{}", reference.name, folder_,
                  nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

absl::StatusOr<StoredVersion> ModelStore::Resolve(std::string_view text) const {
  ASSIGN_OR_RETURN(ModelReference reference, ParseReference(text));
  ASSIGN_OR_RETURN(StoredModel model, Find(reference.name));
  for (StoredVersion& version : model.versions) {
    if (reference.version.empty() ? !version.current : version.version != reference.version)
      continue;
    if (version.problem.empty()) return std::move(version);
    return absl::FailedPreconditionError(
        fmt::format("model '{}@{}': {}", model.name, version.version, version.problem));
  }
  if (reference.version.empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "model '{}' has no current version; there are {}", model.name, VersionNames(model)));
  }
  return absl::NotFoundError(fmt::format("model '{}' has no version '{}'; there are {}", model.name,
                                         reference.version, VersionNames(model)));
}

absl::StatusOr<std::unique_ptr<Incoming>> ModelStore::Begin(const std::string& name,
                                                            const std::string& source) const {
  ASSIGN_OR_RETURN(ModelReference reference, ParseReference(name));
  if (!reference.version.empty()) {
    return absl::InvalidArgumentError(fmt::format("'{}': a name without a version", name));
  }
  std::string model_folder = ModelFolder(name), folder = model_folder + "/" + kIncoming;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FileError(fmt::format("creating '{}'", folder), error);
  int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("opening '{}'", folder));
  std::unique_ptr<Incoming> incoming(new Incoming(model_folder, folder, fd));
  struct stat opened, named;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &opened) != 0 ||
      stat(folder.c_str(), &named) != 0 || opened.st_ino != named.st_ino) {
    return absl::AbortedError(fmt::format("another process is fetching model '{}'", name));
  }
  RETURN_IF_ERROR(RemoveAll(model_folder + "/" + kRemoved));
  StoredVersion before;
  ReadNote(folder, &before);
  if (before.source != source) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      RETURN_IF_ERROR(RemoveAll(entry.path().string()));
    }
    RETURN_IF_ERROR(os::WriteFileAtomically(folder + kNote, SerializeNote(source, {})));
  }
  return incoming;
}

absl::StatusOr<StoredVersion> ModelStore::Publish(std::unique_ptr<Incoming> incoming,
                                                  std::string version, const std::string& source,
                                                  const std::vector<StoredFile>& files) const {
  std::string name = fs::path(incoming->model_folder_).filename().string();
  ASSIGN_OR_RETURN(StoredModel model, Read(name));
  if (version.empty()) {
    uint64_t last = 0;
    for (const StoredVersion& known : model.versions) {
      last = std::max(last, Number(known.version).value_or(0));
    }
    version = fmt::format("{}", last + 1);
  }
  RETURN_IF_ERROR(ParseReference(name + "@" + version).status());
  for (const StoredVersion& known : model.versions) {
    if (known.version != version) continue;
    return absl::AlreadyExistsError(fmt::format("model '{}' has a version '{}'", name, version));
  }
  RETURN_IF_ERROR(os::WriteFileAtomically(incoming->folder_ + kNote, SerializeNote(source, files)));
  RETURN_IF_ERROR(os::SyncFolder(incoming->folder_));
  RETURN_IF_ERROR(os::RenameDurably(incoming->folder_, incoming->model_folder_ + "/" + version));
  RETURN_IF_ERROR(SetCurrent(name, version));
  return Resolve(name + "@" + version);
}

absl::Status ModelStore::Discard(std::unique_ptr<Incoming> incoming) const {
  RETURN_IF_ERROR(RemoveAll(incoming->folder_));
  // Of a model with no versions nothing is left.
  std::error_code error;
  fs::remove(incoming->model_folder_, error);
  return absl::OkStatus();
}

absl::Status ModelStore::SetCurrent(const std::string& name, const std::string& version) const {
  RETURN_IF_ERROR(ParseReference(name + "@" + version).status());
  std::string folder = ModelFolder(name);
  std::error_code error;
  if (!fs::is_directory(folder + "/" + version, error)) {
    return absl::NotFoundError(fmt::format("model '{}' has no version '{}'", name, version));
  }
  std::string temporary = fmt::format("{}/.current-{}", folder, getpid());
  unlink(temporary.c_str());
  if (symlink(version.c_str(), temporary.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("linking '{}'", temporary));
  }
  absl::Status status = os::RenameDurably(temporary, folder + "/" + kCurrent);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status ModelStore::Remove(std::string_view text) const {
  ASSIGN_OR_RETURN(ModelReference reference, ParseReference(text));
  ASSIGN_OR_RETURN(StoredModel model, Find(reference.name));
  std::string folder = ModelFolder(model.name);
  if (reference.version.empty()) {
    // Out of the store's sight first, so that a crash leaves no half model under its name.
    std::string doomed = fmt::format("{}/{}-{}", folder_, kRemoved, model.name);
    RETURN_IF_ERROR(RemoveAll(doomed));
    RETURN_IF_ERROR(os::RenameDurably(folder, doomed));
    return RemoveAll(doomed);
  }
  std::vector<StoredVersion>& versions = model.versions;
  auto it = std::find_if(versions.begin(), versions.end(), [&](const StoredVersion& version) {
    return version.version == reference.version;
  });
  if (it == versions.end()) {
    return absl::NotFoundError(fmt::format("model '{}' has no version '{}'; there are {}",
                                           model.name, reference.version, VersionNames(model)));
  }
  if (versions.size() == 1) return Remove(model.name);
  bool was_current = it->current;
  versions.erase(it);
  if (was_current) RETURN_IF_ERROR(SetCurrent(model.name, versions.back().version));
  std::string doomed = folder + "/" + kRemoved;
  RETURN_IF_ERROR(RemoveAll(doomed));
  RETURN_IF_ERROR(os::RenameDurably(folder + "/" + reference.version, doomed));
  return RemoveAll(doomed);
}

}  // namespace terrace::weights
