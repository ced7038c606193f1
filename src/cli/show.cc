// terrace list, terrace show: what models there are, and what is in one.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <tuple>

#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/config_options.h"
#include "cli/model_argument.h"
#include "format/gguf.h"
#include "format/model_set.h"
#include "model/architecture.h"
#include "tensor/dtype.h"
#include "weights/model_store.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

// ---- list ------------------------------------------------------------------------------------

struct Listed {
  std::string name;
  std::string where;  // "store" or "configuration"
  std::string path;
  uint64_t bytes = 0;
  uint32_t parts = 0;
  std::string problem;
};

// A checkpoint's weights.
void FillFromFolder(const std::string& path, Listed* listed) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    std::error_code ignored;
    const uint64_t bytes = it->file_size(ignored);
    if (ignored) continue;
    listed->bytes += bytes;
    ++listed->parts;
  }
  if (listed->parts == 0) listed->problem = "the folder holds no safetensors files";
}

// The file or split set at `path`, as the folder it lies in shows it.
void FillFromFile(const std::string& path, Listed* listed) {
  listed->path = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return FillFromFolder(path, listed);
  if (!std::filesystem::is_regular_file(path, error)) {
    listed->problem = "no such file";
    return;
  }
  std::string first = path;
  if (std::optional<format::PartName> part = format::ParsePartName(path)) {
    first = format::PartPath(part->base, 1, part->count);
  }
  std::string folder = std::filesystem::path(path).parent_path().string();
  absl::StatusOr<std::vector<format::ModelFileEntry>> files =
      format::ListModelFiles(folder.empty() ? "." : folder);
  if (files.ok()) {
    for (const format::ModelFileEntry& file : *files) {
      if (!std::filesystem::equivalent(file.path, first, error)) continue;
      listed->bytes = file.bytes;
      listed->parts = file.parts;
      if (file.missing_parts > 0)
        listed->problem = fmt::format("{} is missing", file.first_missing);
      return;
    }
  }
  listed->bytes = std::filesystem::file_size(path, error);
  listed->parts = 1;
}

absl::StatusOr<std::vector<Listed>> FindAll(const server::Config& config) {
  std::vector<Listed> all;
  for (const server::ModelConfig& model : config.models) {
    Listed listed;
    listed.name = model.name;
    listed.where = "configuration";
    absl::StatusOr<std::string> path = FindModel(config, model.name);
    if (path.ok()) {
      FillFromFile(*path, &listed);
    } else {
      listed.path = model.source;
      listed.problem = Message(path.status());
    }
    all.push_back(std::move(listed));
  }
  const std::string folder = StoreFolder(config);
  ASSIGN_OR_RETURN(std::vector<weights::StoredModel> models, weights::ModelStore(folder).List());
  for (const weights::StoredModel& model : models) {
    for (const weights::StoredVersion& version : model.versions) {
      std::string name = version.current ? model.name : model.name + "@" + version.version;
      all.push_back({name, "store", version.path, version.bytes, version.parts, version.problem});
    }
  }
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) {
    ASSIGN_OR_RETURN(std::vector<format::ModelFileEntry> files, format::ListModelFiles(folder));
    for (const format::ModelFileEntry& file : files) {
      Listed listed{file.name, "store", file.path, file.bytes, file.parts, ""};
      if (file.missing_parts > 0) listed.problem = fmt::format("{} is missing", file.first_missing);
      all.push_back(std::move(listed));
    }
  }
  return all;
}

absl::Status List(const Invocation& invocation, const ConfigOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::vector<Listed> all, FindAll(loaded.config));
  std::ostream& out = *invocation.io->out;
  if (invocation.json) {
    json::array array;
    for (const Listed& listed : all) {
      array.push_back(
          {{"name", listed.name},
           {"from", listed.where},
           {"path", listed.path},
           {"bytes", listed.bytes},
           {"parts", listed.parts},
           {"problem", listed.problem.empty() ? json::value() : json::value(listed.problem)}});
    }
    out << json::serialize(array) << "\n";
    return absl::OkStatus();
  }
  if (all.empty()) {
    out << fmt::format("No models in {} nor in the configuration; `terrace pull` fetches one.\n",
                       StoreFolder(loaded.config));
    return absl::OkStatus();
  }
  size_t width = 4;
  for (const Listed& listed : all) width = std::max(width, listed.name.size());
  out << fmt::format("{:<{}}  {:>9}  {:<13}  {}\n", "name", width, "size", "from", "path");
  for (const Listed& listed : all) {
    out << fmt::format("{:<{}}  {:>9}  {:<13}  {}{}\n", listed.name, width,
                       listed.bytes ? FormatBytes(listed.bytes) : "-", listed.where, listed.path,
                       listed.problem.empty() ? "" : fmt::format(" ({})", listed.problem));
  }
  return absl::OkStatus();
}

// ---- show ------------------------------------------------------------------------------------

class SourceCatalog final : public model::TensorCatalog {
 public:
  explicit SourceCatalog(const format::ModelSource& source) {
    for (const format::TensorInfo& tensor : source.tensors) tensors_[tensor.name] = &tensor;
  }
  const std::vector<int64_t>* Shape(std::string_view name) const override {
    auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second->shape;
  }
  const format::TensorInfo* Find(std::string_view name) const {
    auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, const format::TensorInfo*, std::less<>> tensors_;
};

struct TypeShare {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
};

struct Facts {
  std::string name;
  std::string path;
  std::string architecture;
  uint64_t parameters = 0;
  uint64_t bytes = 0;
  uint32_t files = 0;
  bool has_template = false;
  std::string tokenizer;
  int64_t vocab = 0;
  std::map<std::string, TypeShare> types;
  // Only where this build runs the architecture; else `cannot_run` says why not.
  std::string cannot_run;
  model::Config config;
  std::vector<std::pair<std::string, uint64_t>> segments;
};

std::string SegmentName(const model::TensorNeed& need) {
  switch (need.stage) {
    case model::WeightProvider::Stage::kEmbed:
      return "embed";
    case model::WeightProvider::Stage::kAttention:
      return fmt::format("blk.{}.attn", need.layer);
    case model::WeightProvider::Stage::kFfn:
      return fmt::format("blk.{}.ffn", need.layer);
    case model::WeightProvider::Stage::kHead:
      return "head";
  }
  return "";
}

absl::StatusOr<Facts> ReadFacts(const std::string& path) {
  ASSIGN_OR_RETURN(format::ModelSource source, format::OpenModel(path));
  Facts facts;
  facts.path = path;
  facts.files = static_cast<uint32_t>(source.files.size());
  ASSIGN_OR_RETURN(facts.name, source.metadata.GetString("general.name", ""));
  ASSIGN_OR_RETURN(facts.architecture, source.metadata.GetString("general.architecture", ""));
  ASSIGN_OR_RETURN(facts.tokenizer, source.metadata.GetString("tokenizer.ggml.model", ""));
  ASSIGN_OR_RETURN(const std::vector<std::string>* tokens,
                   source.metadata.GetStrings("tokenizer.ggml.tokens"));
  facts.vocab = tokens == nullptr ? 0 : static_cast<int64_t>(tokens->size());
  if (facts.tokenizer.empty() && source.metadata.Has("tokenizer.huggingface.json")) {
    facts.tokenizer = "tokenizer.json";
  }
  facts.has_template = source.metadata.Has("tokenizer.chat_template");
  for (const format::TensorInfo& tensor : source.tensors) {
    // A checkpoint does not list its tokens: its embedding has a row for each.
    if (tokens == nullptr && tensor.name == "token_embd.weight") facts.vocab = tensor.shape[0];
    uint64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
    facts.parameters += elements;
    facts.bytes += tensor.bytes;
    TypeShare& share = facts.types[std::string(Info(tensor.dtype).name)];
    ++share.tensors;
    share.bytes += tensor.bytes;
  }
  SourceCatalog catalog(source);
  absl::StatusOr<std::unique_ptr<model::Architecture>> architecture =
      model::Architecture::Create(source.metadata, catalog);
  if (!architecture.ok()) {
    facts.cannot_run = Message(architecture.status());
    return facts;
  }
  facts.config = (*architecture)->config();
  // In execution order: by layer, attention before FFN, then embedding and head; a decoder looks
  // few rows of its embedding up before.
  std::map<std::tuple<int32_t, model::WeightProvider::Stage>, std::pair<std::string, uint64_t>>
      segments;
  for (const model::TensorNeed& need : (*architecture)->tensors()) {
    const format::TensorInfo* tensor = catalog.Find(need.name);
    if (tensor == nullptr) continue;
    using Stage = model::WeightProvider::Stage;
    const bool at_end =
        need.stage == Stage::kHead || (need.stage == Stage::kEmbed && !facts.config.encoder);
    const int32_t order = at_end ? INT32_MAX : need.stage == Stage::kEmbed ? -1 : need.layer;
    auto& [name, bytes] = segments[{order, need.stage}];
    name = SegmentName(need);
    bytes += tensor->bytes;
  }
  for (auto& [order, segment] : segments) facts.segments.push_back(std::move(segment));
  return facts;
}

void WriteJson(const Facts& facts, std::ostream& out) {
  json::object types;
  for (const auto& [name, share] : facts.types) {
    types[name] = {{"tensors", share.tensors}, {"bytes", share.bytes}};
  }
  json::array segments;
  for (const auto& [name, bytes] : facts.segments) {
    segments.push_back({{"name", name}, {"bytes", bytes}});
  }
  json::object all = {
      {"name", facts.name},
      {"path", facts.path},
      {"files", facts.files},
      {"architecture", facts.architecture},
      {"runs", facts.cannot_run.empty()},
      {"reason", facts.cannot_run.empty() ? json::value() : json::value(facts.cannot_run)},
      {"parameters", facts.parameters},
      {"bytes", facts.bytes},
      {"types", std::move(types)},
      {"tokenizer", facts.tokenizer},
      {"vocabulary", facts.vocab},
      {"chat_template", facts.has_template},
  };
  if (facts.cannot_run.empty()) {
    const model::Config& c = facts.config;
    all["context"] = c.trained_context;
    all["layers"] = c.layer_count();
    all["width"] = c.width;
    all["heads"] = c.heads;
    all["kv_heads"] = c.kv_heads;
    all["segments"] = std::move(segments);
  }
  out << json::serialize(all) << "\n";
}

void WriteText(const Facts& facts, std::ostream& out) {
  auto line = [&](std::string_view name, std::string_view value) {
    out << fmt::format("{:<14}  {}\n", name, value);
  };
  line("name", facts.name);
  line("path",
       facts.files > 1 ? fmt::format("{} ({} files)", facts.path, facts.files) : facts.path);
  line("architecture", facts.architecture);
  if (!facts.cannot_run.empty()) line("does not run", facts.cannot_run);
  line("parameters", fmt::format("{:.1f} million", static_cast<double>(facts.parameters) / 1e6));
  line("weights", FormatBytes(facts.bytes));
  for (const auto& [name, share] : facts.types) {
    line("",
         fmt::format("{:<8} {:>4} tensors  {:>9}", name, share.tensors, FormatBytes(share.bytes)));
  }
  if (facts.cannot_run.empty()) {
    const model::Config& c = facts.config;
    line("context", fmt::format("{} tokens", c.trained_context));
    line("layers", fmt::format("{}, width {}, {} heads, {} KV heads", c.layer_count(), c.width,
                               c.heads, c.kv_heads));
  }
  line("vocabulary", fmt::format("{} tokens ({})", facts.vocab, facts.tokenizer));
  line("chat template", facts.has_template ? "yes" : "no");
  if (facts.segments.empty()) return;
  line("segments", fmt::format("{}, in execution order", facts.segments.size()));
  for (const auto& [name, bytes] : facts.segments) {
    line("", fmt::format("{:<14} {:>9}", name, FormatBytes(bytes)));
  }
}

struct ShowOptions {
  ConfigOptions config;
  std::string model;
};

absl::Status Show(const Invocation& invocation, const ShowOptions& options) {
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, options.config.Load(*invocation.io));
  ASSIGN_OR_RETURN(std::string path, FindModel(loaded.config, options.model));
  ASSIGN_OR_RETURN(Facts facts, ReadFacts(path));
  (invocation.json ? WriteJson : WriteText)(facts, *invocation.io->out);
  return absl::OkStatus();
}

}  // namespace

void AddListCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<ConfigOptions>();  // lives as long as the parser's callbacks
  Command command = root.Add("list", "List the models of the store and of the configuration",
                             [invocation, options] { return List(*invocation, *options); });
  options->AddTo(command, {"storage"});
  options->AddModels(command);
}

void AddShowCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<ShowOptions>();
  Command command = root.Add("show", "Show what is in a model",
                             [invocation, options] { return Show(*invocation, *options); });
  command.Argument("model", &options->model, {"MODEL", kModelHelp, true});
  options->config.AddTo(command, {"storage"});
}

}  // namespace terrace::cli
