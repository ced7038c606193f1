#include "text/tokenizer_json.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/json_node.h"
#include "base/status.h"
#include "text/pipeline/pipeline_json.h"
#include "text/vocab.h"

namespace terrace {
namespace {

namespace json = boost::json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxBytes = size_t{512} << 20;

absl::StatusOr<json::value> Parse(std::string_view text, std::string_view name,
                                  json::storage_ptr memory) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{}: {} bytes, at most {} are read", name, text.size(), kMaxBytes));
  }
  json::error_code error;
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::value value =
      json::parse(json::string_view(text.data(), text.size()), error, std::move(memory), options);
  if (error) {
    return absl::InvalidArgumentError(fmt::format("{}: not JSON: {}", name, error.message()));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(fmt::format("{}: not a JSON object", name));
  }
  return value;
}

class Reader {
 public:
  Reader(JsonNode root, JsonNode settings)
      : root_(std::move(root)), settings_(std::move(settings)) {}

  absl::StatusOr<TokenizerConfig> Read() {
    config_.model = "tokenizer.json";
    config_.pipeline.emplace();
    RETURN_IF_ERROR(ReadModel());
    RETURN_IF_ERROR(ReadAddedTokens());
    RETURN_IF_ERROR(ReadNormalizer(root_["normalizer"], &pipeline()));
    RETURN_IF_ERROR(ReadPreTokenizer(root_["pre_tokenizer"], &pipeline()));
    RETURN_IF_ERROR(ReadPostProcessor(root_["post_processor"], &pipeline()));
    RETURN_IF_ERROR(ReadDecoder(root_["decoder"], &pipeline()));
    if (!root_["decoder"].present()) GuessDecoder();
    MarkBytes();
    if (!pipeline().scores.empty()) pipeline().scores.resize(config_.tokens.size());
    RETURN_IF_ERROR(ReadSettings());
    return std::move(config_);
  }

 private:
  TokenizerPipeline& pipeline() { return *config_.pipeline; }

  absl::Status ReadModel() {
    const JsonNode model = root_["model"];
    if (model.object() == nullptr) return model.Wrong("an object");
    ASSIGN_OR_RETURN(std::string type, model["type"].String(GuessType(model)));
    ASSIGN_OR_RETURN(pipeline().byte_fallback, model["byte_fallback"].Bool(false));
    if (type == "Unigram") {
      pipeline().model = TokenizerPipeline::Model::kUnigram;
      return ReadUnigram(model);
    }
    RETURN_IF_ERROR(ReadVocab(model["vocab"]));
    RETURN_IF_ERROR(ReadUnknown(model["unk_token"]));
    ASSIGN_OR_RETURN(pipeline().continuing_prefix,
                     model["continuing_subword_prefix"].String(type == "WordPiece" ? "##" : ""));
    if (type == "WordLevel") {
      pipeline().model = TokenizerPipeline::Model::kWordLevel;
    } else if (type == "WordPiece") {
      pipeline().model = TokenizerPipeline::Model::kWordPiece;
      const JsonNode most = model["max_input_chars_per_word"];
      if (!most.present()) return absl::OkStatus();
      ASSIGN_OR_RETURN(int64_t chars, most.Int(1, std::numeric_limits<int32_t>::max()));
      pipeline().max_word_chars = static_cast<int32_t>(chars);
    } else if (type == "BPE") {
      ASSIGN_OR_RETURN(pipeline().fuse_unknown, model["fuse_unk"].Bool(false));
      ASSIGN_OR_RETURN(pipeline().ignore_merges, model["ignore_merges"].Bool(false));
      ASSIGN_OR_RETURN(pipeline().word_suffix, model["end_of_word_suffix"].String(""));
      return ReadMerges(model["merges"]);
    } else {
      return absl::UnimplementedError(
          fmt::format("{}: type '{}' is not read by this build", model.path(), type));
    }
    return absl::OkStatus();
  }

  // Old files do not name the model's type.
  static std::string GuessType(const JsonNode& model) {
    if (model["merges"].present()) return "BPE";
    if (model["vocab"].array() != nullptr) return "Unigram";
    return model["continuing_subword_prefix"].present() ? "WordPiece" : "WordLevel";
  }

  absl::Status ReadVocab(const JsonNode& node) {
    if (node.object() == nullptr) return node.Wrong("an object of ids by token");
    // Room for gaps, but not for a table much larger than the file.
    const int64_t highest = 4 * static_cast<int64_t>(node.object()->size()) + 65536;
    for (const auto& member : *node.object()) {
      const std::string token(member.key().data(), member.key().size());
      const JsonNode id_node(&member.value(), fmt::format("{}['{}']", node.path(), token));
      ASSIGN_OR_RETURN(int64_t id, id_node.Int(0, highest));
      RETURN_IF_ERROR(Place(id_node, id, token, TokenType::kNormal));
    }
    return absl::OkStatus();
  }

  absl::Status Place(const JsonNode& node, int64_t id, const std::string& token, TokenType type) {
    const auto index = static_cast<size_t>(id);
    if (index >= config_.tokens.size()) {
      config_.tokens.resize(index + 1);
      config_.types.resize(index + 1, static_cast<int32_t>(TokenType::kUnused));
    }
    const bool taken = config_.types[index] != static_cast<int32_t>(TokenType::kUnused);
    if (taken && config_.tokens[index] != token) {
      return absl::InvalidArgumentError(
          fmt::format("{}: id {} is token '{}' already", node.path(), id, config_.tokens[index]));
    }
    config_.tokens[index] = token;
    config_.types[index] = static_cast<int32_t>(type);
    return absl::OkStatus();
  }

  absl::Status ReadMerges(const JsonNode& node) {
    if (node.array() == nullptr) return node.Wrong("a list");
    for (size_t i = 0; i < node.array()->size(); ++i) {
      const JsonNode merge = node.at(i);
      if (merge.is_string()) {
        config_.merges.emplace_back(merge.text());
      } else if (merge.array() != nullptr && merge.array()->size() == 2 &&
                 merge.at(0).is_string() && merge.at(1).is_string()) {
        config_.merge_pairs.emplace_back(merge.at(0).text(), merge.at(1).text());
      } else {
        return merge.Wrong("a string of two parts or a list of two strings");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadUnigram(const JsonNode& model) {
    const JsonNode vocab = model["vocab"];
    if (vocab.array() == nullptr) return vocab.Wrong("a list of [token, score]");
    for (size_t i = 0; i < vocab.array()->size(); ++i) {
      const JsonNode entry = vocab.at(i);
      if (entry.array() == nullptr || entry.array()->size() != 2 || !entry.at(0).is_string()) {
        return entry.Wrong("[token, score]");
      }
      ASSIGN_OR_RETURN(double score, entry.at(1).Number());
      pipeline().scores.push_back(score);
      RETURN_IF_ERROR(Place(entry, static_cast<int64_t>(i), std::string(entry.at(0).text()),
                            TokenType::kNormal));
    }
    if (!model["unk_id"].present()) return absl::OkStatus();
    ASSIGN_OR_RETURN(config_.unk,
                     model["unk_id"].Int(0, static_cast<int64_t>(config_.tokens.size()) - 1));
    config_.types[static_cast<size_t>(*config_.unk)] = static_cast<int32_t>(TokenType::kUnknown);
    return absl::OkStatus();
  }

  std::optional<int64_t> IdOf(std::string_view token) const {
    for (size_t i = 0; i < config_.tokens.size(); ++i) {
      if (config_.tokens[i] == token) return static_cast<int64_t>(i);
    }
    return std::nullopt;
  }

  absl::Status ReadUnknown(const JsonNode& node) {
    if (!node.present()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string token, node.String());
    config_.unk = IdOf(token);
    if (config_.unk) {
      config_.types[static_cast<size_t>(*config_.unk)] = static_cast<int32_t>(TokenType::kUnknown);
    }
    return absl::OkStatus();
  }

  absl::Status ReadAddedTokens() {
    const JsonNode list = root_["added_tokens"];
    if (!list.present()) return absl::OkStatus();
    if (list.array() == nullptr) return list.Wrong("a list");
    const int64_t highest =
        static_cast<int64_t>(config_.tokens.size() + list.array()->size()) + 65536;
    for (size_t i = 0; i < list.array()->size(); ++i) {
      const JsonNode node = list.at(i);
      ASSIGN_OR_RETURN(int64_t id, node["id"].Int(0, highest));
      ASSIGN_OR_RETURN(const std::string content, node["content"].String());
      ASSIGN_OR_RETURN(const bool special, node["special"].Bool(false));
      RETURN_IF_ERROR(Place(node, id, content,
                            config_.unk == id ? TokenType::kUnknown
                            : special         ? TokenType::kControl
                                              : TokenType::kUserDefined));
      const auto small = static_cast<int32_t>(id);
      ASSIGN_OR_RETURN(const bool lstrip, node["lstrip"].Bool(false));
      ASSIGN_OR_RETURN(const bool rstrip, node["rstrip"].Bool(false));
      ASSIGN_OR_RETURN(const bool single_word, node["single_word"].Bool(false));
      ASSIGN_OR_RETURN(const bool normalized, node["normalized"].Bool(!special));
      if (lstrip) config_.lstrip.push_back(small);
      if (rstrip) config_.rstrip.push_back(small);
      if (single_word) config_.single_word.push_back(small);
      // Markers are kept where provenance is known: in the text as it is.
      if (normalized && !special && config_.unk != id && root_["normalizer"].present() &&
          !IsMarkerSpelling(content)) {
        pipeline().normalized_added.push_back(small);
      }
    }
    return absl::OkStatus();
  }

  void GuessDecoder() {
    for (const SplitStep& step : pipeline().splits) {
      if (step.kind == SplitStep::Kind::kByteLevel) {
        pipeline().decode = TokenizerPipeline::Decode::kByteLevel;
      }
    }
  }

  void MarkBytes() {
    if (!pipeline().byte_fallback) return;
    for (size_t i = 0; i < config_.tokens.size(); ++i) {
      const std::string& token = config_.tokens[i];
      if (token.size() == 6 && token.starts_with("<0x") && token.ends_with(">") &&
          config_.types[i] == static_cast<int32_t>(TokenType::kNormal)) {
        config_.types[i] = static_cast<int32_t>(TokenType::kByte);
      }
    }
  }

  // "x", {"content": "x"} or null.
  static std::string TokenName(const JsonNode& node) {
    if (node.is_string()) return std::string(node.text());
    return node["content"].is_string() ? std::string(node["content"].text()) : "";
  }

  absl::Status ReadSettings() {
    auto id_of = [&](std::string_view key) {
      const std::string name = TokenName(settings_[key]);
      return name.empty() ? std::nullopt : IdOf(name);
    };
    config_.bos = id_of("bos_token");
    config_.eos = id_of("eos_token");
    config_.pad = id_of("pad_token");
    if (!config_.bos && pipeline().prefix.size() == 1) config_.bos = pipeline().prefix[0];
    // Tokenizer classes that make their own post-processor from these two, whatever the file says.
    const std::string type = TokenName(settings_["tokenizer_class"]);
    if (!type.starts_with("Llama") && !type.starts_with("CodeLlama") &&
        !type.starts_with("Gemma")) {
      return absl::OkStatus();
    }
    const std::pair<std::string_view, std::optional<int64_t>> ends[] = {
        {"add_bos_token", config_.bos}, {"add_eos_token", config_.eos}};
    for (const auto& [key, id] : ends) {
      const JsonNode node = settings_[key];
      if (!node.present()) continue;
      ASSIGN_OR_RETURN(const bool add, node.Bool(false));
      std::vector<int32_t>& ids = key == "add_bos_token" ? pipeline().prefix : pipeline().suffix;
      ids.clear();
      if (add && !id) {
        return absl::InvalidArgumentError(
            fmt::format("{} is true, but the token is not in the vocabulary", node.path()));
      }
      if (add) ids.push_back(static_cast<int32_t>(*id));
    }
    return absl::OkStatus();
  }

  const JsonNode root_, settings_;
  TokenizerConfig config_;
};

}  // namespace

absl::StatusOr<TokenizerConfig> TokenizerConfigFromJson(std::string_view tokenizer,
                                                        std::string_view settings) {
  json::monotonic_resource memory;
  ASSIGN_OR_RETURN(json::value root, Parse(tokenizer, "tokenizer.json", &memory));
  json::value extra;
  if (!settings.empty()) {
    ASSIGN_OR_RETURN(extra, Parse(settings, "tokenizer_config.json", &memory));
  }
  return Reader(JsonNode(&root, "tokenizer.json"), JsonNode(&extra, "tokenizer_config.json"))
      .Read();
}

}  // namespace terrace
