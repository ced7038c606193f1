#include "format/folder/model_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/json_node.h"
#include "base/status.h"
#include "format/folder/hf_config.h"
#include "format/folder/hf_tensors.h"
#include "format/folder/recipe.h"
#include "format/safetensors.h"

namespace terrace::format {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr uint64_t kMaxSmallFile = uint64_t{64} << 20;
constexpr uint64_t kMaxTokenizer = uint64_t{512} << 20;
constexpr size_t kMaxShards = 4096;
constexpr size_t kMaxListed = 8;  // names in an error
constexpr int kMaxDepth = 64;

// "a, b, c and 4 more".
std::string ListOf(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxListed);
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<ptrdiff_t>(shown));
  std::string text = fmt::format("{}", fmt::join(first, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

class FolderReader {
 public:
  explicit FolderReader(std::string folder) : folder_(std::move(folder)) {}

  absl::StatusOr<ModelSource> Read() {
    ASSIGN_OR_RETURN(const std::string config_text, Text("config.json", kMaxSmallFile, true));
    ASSIGN_OR_RETURN(const json::value config_json, Parse(config_text, "config.json"));
    auto config = ReadCheckpointConfig(JsonNode(&config_json, "config.json"));
    if (!config.ok()) return WithContext(config.status(), fmt::format("'{}'", folder_));
    RETURN_IF_ERROR(Shards());
    std::vector<const ByteSource*> files;
    for (const auto& file : model_.files) files.push_back(file.get());
    auto reader = std::make_unique<RecipeReader>(std::move(files), std::move(tensors_));
    auto mapped = MapTensors(*config, reader.get());
    if (!mapped.ok()) return WithContext(mapped.status(), fmt::format("'{}'", folder_));
    model_.tensors = *std::move(mapped);
    model_.reader = std::move(reader);
    model_.metadata = std::move(config->metadata);
    notes_ = std::move(config->notes);
    RETURN_IF_ERROR(ReadText(config_json));
    if (!notes_.empty()) model_.metadata.Set("terrace.notes", std::move(notes_));
    return std::move(model_);
  }

 private:
  std::string PathOf(std::string_view name) const { return fmt::format("{}/{}", folder_, name); }
  bool Exists(std::string_view name) const {
    std::error_code ignored;
    return fs::is_regular_file(PathOf(name), ignored);
  }

  // A small file's text, which becomes a part of the model's identity. Empty if it is not there.
  absl::StatusOr<std::string> Text(std::string_view name, uint64_t most, bool required = false) {
    if (!required && !Exists(name)) return std::string();
    ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file, OpenFileSource(PathOf(name)));
    if (file->size() > most) {
      return absl::InvalidArgumentError(
          fmt::format("'{}': {} bytes, at most {} are read", file->name(), file->size(), most));
    }
    std::string text(file->size(), '\0');
    RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(text))));
    small_identity_.push_back({file->name(), file->size(), file->mtime_ns(), Hash64(text)});
    small_files_.push_back(std::move(file));
    return text;
  }

  absl::StatusOr<json::value> Parse(const std::string& text, std::string_view name) const {
    json::error_code error;
    json::parse_options options;
    options.max_depth = kMaxDepth;
    json::value value = json::parse(text, error, {}, options);
    if (error || !value.is_object()) {
      return absl::InvalidArgumentError(fmt::format("'{}': not a JSON object{}{}", PathOf(name),
                                                    error ? ": " : "",
                                                    error ? error.message() : ""));
    }
    return value;
  }

  // The file's object, or an empty one.
  absl::StatusOr<json::value> ParseFile(std::string_view name) {
    ASSIGN_OR_RETURN(const std::string text, Text(name, kMaxSmallFile));
    if (text.empty()) return json::value(json::object());
    return Parse(text, name);
  }

  absl::Status Shards() {
    constexpr std::string_view kIndex = "model.safetensors.index.json";
    if (Exists(kIndex)) return IndexedShards(kIndex);
    if (Exists("model.safetensors")) return OpenShard("model.safetensors", nullptr);
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(folder_, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      std::string name = it->path().filename().string();
      if (name.ends_with(".safetensors")) names.push_back(std::move(name));
    }
    if (names.empty()) {
      return absl::NotFoundError(fmt::format("'{}' holds no safetensors files", folder_));
    }
    if (names.size() > 1) {
      return absl::NotFoundError(
          fmt::format("'{}' holds {} safetensors files, but no {}: the download may be incomplete",
                      folder_, names.size(), kIndex));
    }
    return OpenShard(names[0], nullptr);
  }

  absl::Status IndexedShards(std::string_view index_name) {
    ASSIGN_OR_RETURN(const std::string text, Text(index_name, kMaxSmallFile, true));
    ASSIGN_OR_RETURN(const json::value index, Parse(text, index_name));
    const JsonNode map = JsonNode(&index, std::string(index_name))["weight_map"];
    if (map.object() == nullptr) return map.Wrong("an object of files by tensor");
    std::map<std::string, std::set<std::string>> shards;
    for (const auto& member : *map.object()) {
      const std::string tensor(member.key().data(), member.key().size());
      const JsonNode node(&member.value(), fmt::format("{}['{}']", map.path(), tensor));
      ASSIGN_OR_RETURN(std::string file, node.String());
      if (file.empty() || file.find('/') != std::string::npos || file.starts_with('.')) {
        return node.Wrong("the name of a file in the same folder");
      }
      shards[std::move(file)].insert(tensor);
    }
    if (shards.empty() || shards.size() > kMaxShards) {
      return map.Wrong(fmt::format("of 1 to {} files", kMaxShards));
    }
    std::vector<std::string> missing;
    for (const auto& [file, tensors] : shards) {
      if (!Exists(file)) missing.push_back(file);
    }
    if (!missing.empty()) {
      return absl::NotFoundError(fmt::format(
          "'{}': {} of {} files that {} names are not there ({}): the download may be incomplete",
          folder_, missing.size(), shards.size(), index_name, ListOf(missing)));
    }
    for (const auto& [file, tensors] : shards) RETURN_IF_ERROR(OpenShard(file, &tensors));
    return absl::OkStatus();
  }

  // Takes in the tensors of one file; all of `wanted`, if given, and no others.
  absl::Status OpenShard(const std::string& name, const std::set<std::string>* wanted) {
    ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> file, OpenFileSource(PathOf(name)));
    ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(*file));
    std::set<std::string> absent = wanted == nullptr ? std::set<std::string>() : *wanted;
    for (SafeTensor& tensor : header.tensors) {
      if (wanted != nullptr && absent.erase(tensor.name) == 0) continue;
      tensor.file = static_cast<uint32_t>(model_.files.size());
      tensors_.push_back(std::move(tensor));
    }
    if (!absent.empty()) {
      return absl::NotFoundError(fmt::format(
          "'{}' lacks {} tensors that the index places there ({}): the download may be incomplete",
          file->name(), absent.size(), ListOf({absent.begin(), absent.end()})));
    }
    std::error_code error;
    const fs::path path = fs::canonical(file->name(), error);
    if (error) {
      return absl::NotFoundError(fmt::format("'{}': {}", file->name(), error.message()));
    }
    model_.identity.push_back({path.string(), file->size(), file->mtime_ns(), header.header_hash});
    model_.files.push_back(std::move(file));
    return absl::OkStatus();
  }

  // Tokenizer, template and end tokens.
  absl::Status ReadText(const json::value& config) {
    ASSIGN_OR_RETURN(std::string tokenizer, Text("tokenizer.json", kMaxTokenizer));
    ASSIGN_OR_RETURN(std::string settings_text, Text("tokenizer_config.json", kMaxSmallFile));
    json::value settings = json::object();
    if (!settings_text.empty()) {
      ASSIGN_OR_RETURN(settings, Parse(settings_text, "tokenizer_config.json"));
    }
    if (tokenizer.empty()) {
      notes_.push_back("the folder has no tokenizer.json: prompts must be token ids");
    } else {
      model_.metadata.Set("tokenizer.huggingface.json", std::move(tokenizer));
      model_.metadata.Set("tokenizer.huggingface.config", std::move(settings_text));
    }
    ASSIGN_OR_RETURN(std::string chat, Text("chat_template.jinja", kMaxSmallFile));
    if (chat.empty()) {
      ASSIGN_OR_RETURN(const json::value file, ParseFile("chat_template.json"));
      chat = TemplateOf(JsonNode(&file, "chat_template.json")["chat_template"]);
    }
    if (chat.empty()) {
      chat = TemplateOf(JsonNode(&settings, "tokenizer_config.json")["chat_template"]);
    }
    if (!chat.empty()) model_.metadata.Set("tokenizer.chat_template", std::move(chat));
    ASSIGN_OR_RETURN(const json::value generation, ParseFile("generation_config.json"));
    RETURN_IF_ERROR(EndTokens(JsonNode(&config, "config.json"),
                              JsonNode(&generation, "generation_config.json")));
    RETURN_IF_ERROR(Pooling());
    for (auto& file : small_files_) model_.files.push_back(std::move(file));
    for (auto& identity : small_identity_) model_.identity.push_back(std::move(identity));
    return absl::OkStatus();
  }

  // How the sentence-transformers library pools the states of an encoder.
  absl::Status Pooling() {
    ASSIGN_OR_RETURN(const json::value file, ParseFile("1_Pooling/config.json"));
    const JsonNode pooling(&file, "1_Pooling/config.json");
    ASSIGN_OR_RETURN(const bool first, pooling["pooling_mode_cls_token"].Bool(false));
    ASSIGN_OR_RETURN(const bool mean, pooling["pooling_mode_mean_tokens"].Bool(!first));
    if (first == mean) {
      return absl::UnimplementedError(fmt::format(
          "'{}': pooling by the mean or the first token is read by this build, nothing else",
          PathOf("1_Pooling/config.json")));
    }
    if (model_.metadata.Has("bert.embedding_length")) {
      model_.metadata.Set("bert.pooling_type", int64_t{mean ? 1 : 2});
    }
    return absl::OkStatus();
  }

  // A template's text, or of a list of named ones the default.
  static std::string TemplateOf(const JsonNode& node) {
    if (node.is_string()) return std::string(node.text());
    for (size_t i = 0; node.array() != nullptr && i < node.array()->size(); ++i) {
      const JsonNode entry = node.at(i);
      if (entry["name"].is_string() && entry["name"].text() == "default" &&
          entry["template"].is_string()) {
        return std::string(entry["template"].text());
      }
    }
    return "";
  }

  // The generation config's list goes before the model's.
  absl::Status EndTokens(const JsonNode& config, const JsonNode& generation) {
    std::vector<int64_t> ids;
    for (const JsonNode& node : {generation["eos_token_id"], config["eos_token_id"],
                                 config["text_config"]["eos_token_id"]}) {
      if (!node.present()) continue;
      if (node.array() == nullptr) {
        ASSIGN_OR_RETURN(const int64_t id, node.Int(0, int64_t{1} << 31));
        ids.push_back(id);
      } else {
        for (size_t i = 0; i < node.array()->size(); ++i) {
          ASSIGN_OR_RETURN(const int64_t id, node.at(i).Int(0, int64_t{1} << 31));
          ids.push_back(id);
        }
      }
      break;
    }
    if (ids.empty()) return absl::OkStatus();
    model_.metadata.Set("tokenizer.ggml.eos_token_id", ids[0]);
    model_.metadata.Set("tokenizer.ggml.end_token_ids", std::move(ids));
    return absl::OkStatus();
  }

  const std::string folder_;
  ModelSource model_;
  std::vector<SafeTensor> tensors_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<ByteSource>> small_files_;
  std::vector<FileIdentity> small_identity_;
};

}  // namespace

absl::StatusOr<ModelSource> OpenModelFolder(const std::string& folder) {
  return FolderReader(folder).Read();
}

}  // namespace terrace::format
