#include "text/tokenizer_metadata.h"

#include <limits>

#include "base/status.h"
#include "fmt/format.h"
#include "text/tokenizer_json.h"

namespace terrace {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

// The texts of tokenizer.json and tokenizer_config.json.
constexpr std::string_view kJsonTokenizer = "tokenizer.huggingface.json";
constexpr std::string_view kJsonSettings = "tokenizer.huggingface.config";
// Further tokens at which generation ends.
constexpr std::string_view kEndTokens = "tokenizer.ggml.end_token_ids";

std::string Key(std::string_view name) { return fmt::format("{}{}", kPrefix, name); }

absl::Status ReadId(const Metadata& metadata, std::string_view name, std::optional<int64_t>* id) {
  const std::string key = Key(name);
  if (!metadata.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(*id, metadata.GetInt(key, std::numeric_limits<int64_t>::min(),
                                        std::numeric_limits<int64_t>::max()));
  // Files write "none" as -1, in one width or another.
  if (**id == -1 || **id == std::numeric_limits<uint32_t>::max()) id->reset();
  return absl::OkStatus();
}

absl::Status ReadFlag(const Metadata& metadata, std::string_view name, std::optional<bool>* flag) {
  const std::string key = Key(name);
  if (!metadata.Has(key)) return absl::OkStatus();
  ASSIGN_OR_RETURN(*flag, metadata.GetBool(key));
  return absl::OkStatus();
}

absl::Status ReadTables(const Metadata& metadata, TokenizerConfig* config) {
  ASSIGN_OR_RETURN(const auto* tokens, metadata.GetStrings(Key("tokens")));
  if (tokens == nullptr) {
    return absl::InvalidArgumentError(fmt::format("metadata key '{}' is missing", Key("tokens")));
  }
  config->tokens = *tokens;
  ASSIGN_OR_RETURN(const auto* merges, metadata.GetStrings(Key("merges")));
  if (merges != nullptr) config->merges = *merges;

  const std::string scores_key = Key("scores");
  const MetadataValue* scores = metadata.Find(scores_key);
  if (scores != nullptr && std::holds_alternative<std::vector<int64_t>>(*scores)) {
    const auto& values = std::get<std::vector<int64_t>>(*scores);
    config->scores.assign(values.begin(), values.end());
  } else if (scores != nullptr) {
    ASSIGN_OR_RETURN(const auto* values, metadata.GetDoubles(scores_key));
    config->scores.assign(values->begin(), values->end());
  }

  ASSIGN_OR_RETURN(const auto* types, metadata.GetInts(Key("token_type")));
  if (types == nullptr) return absl::OkStatus();
  config->types.reserve(types->size());
  for (size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] < 0 || (*types)[i] > 6) {
      return absl::InvalidArgumentError(fmt::format("metadata key '{}': entry {} is {}, not 1 to 6",
                                                    Key("token_type"), i, (*types)[i]));
    }
    config->types.push_back(static_cast<int32_t>((*types)[i]));
  }
  return absl::OkStatus();
}

// WordPiece tables, in which a word's first piece begins with U+2581 and the others with nothing,
// as a pipeline of BERT's own steps.
absl::Status MakeWordPiece(const Metadata& metadata, TokenizerConfig* config) {
  TokenizerPipeline& pipeline = config->pipeline.emplace();
  pipeline.model = TokenizerPipeline::Model::kWordPiece;
  pipeline.decode = TokenizerPipeline::Decode::kWordPiece;
  pipeline.continuing_prefix = "##";
  pipeline.strip_space = true;
  NormalizerStep bert;
  bert.kind = NormalizerStep::Kind::kBert;
  pipeline.normalizers = {bert};
  SplitStep split;
  split.kind = SplitStep::Kind::kBert;
  pipeline.splits = {split};
  constexpr std::string_view kSpace = "\xE2\x96\x81";
  for (size_t i = 0; i < config->tokens.size(); ++i) {
    std::string& token = config->tokens[i];
    const int32_t type = i < config->types.size() ? config->types[i] : 1;
    if (type != static_cast<int32_t>(TokenType::kNormal)) continue;
    if (token.starts_with(kSpace)) {
      token.erase(0, kSpace.size());
    } else {
      token.insert(0, pipeline.continuing_prefix);
    }
  }
  // Files name the separator with or without the misspelling of the first ones.
  for (const char* key : {"cls_token_id", "seperator_token_id", "separator_token_id"}) {
    std::optional<int64_t> id;
    RETURN_IF_ERROR(ReadId(metadata, key, &id));
    if (!id) continue;
    std::vector<int32_t>& ids =
        std::string_view(key) == "cls_token_id" ? pipeline.prefix : pipeline.suffix;
    if (ids.empty()) ids.push_back(static_cast<int32_t>(*id));
  }
  if (pipeline.prefix.empty() && config->bos) {
    pipeline.prefix.push_back(static_cast<int32_t>(*config->bos));
  }
  config->model = "tokenizer.json";
  return absl::OkStatus();
}

absl::StatusOr<TokenizerConfig> FromTables(const Metadata& metadata) {
  TokenizerConfig config;
  ASSIGN_OR_RETURN(config.model, metadata.GetString(Key("model")));
  ASSIGN_OR_RETURN(config.pre, metadata.GetString(Key("pre"), ""));
  ASSIGN_OR_RETURN(config.name, metadata.GetString("general.name", ""));
  RETURN_IF_ERROR(ReadTables(metadata, &config));
  RETURN_IF_ERROR(ReadId(metadata, "bos_token_id", &config.bos));
  RETURN_IF_ERROR(ReadId(metadata, "eos_token_id", &config.eos));
  RETURN_IF_ERROR(ReadId(metadata, "unknown_token_id", &config.unk));
  RETURN_IF_ERROR(ReadId(metadata, "padding_token_id", &config.pad));
  RETURN_IF_ERROR(ReadId(metadata, "eot_token_id", &config.eot));
  RETURN_IF_ERROR(ReadId(metadata, "eom_token_id", &config.eom));
  RETURN_IF_ERROR(ReadFlag(metadata, "add_bos_token", &config.add_bos));
  RETURN_IF_ERROR(ReadFlag(metadata, "add_eos_token", &config.add_eos));
  RETURN_IF_ERROR(ReadFlag(metadata, "add_space_prefix", &config.add_space_prefix));
  if (config.model == "bert") RETURN_IF_ERROR(MakeWordPiece(metadata, &config));
  return config;
}

// The tables of a model whose folder has a tokenizer.json.
absl::StatusOr<TokenizerConfig> FromJson(const Metadata& metadata) {
  ASSIGN_OR_RETURN(const std::string settings, metadata.GetString(kJsonSettings, ""));
  ASSIGN_OR_RETURN(const std::string tokenizer, metadata.GetString(kJsonTokenizer));
  ASSIGN_OR_RETURN(TokenizerConfig config, TokenizerConfigFromJson(tokenizer, settings));
  if (!config.bos) RETURN_IF_ERROR(ReadId(metadata, "bos_token_id", &config.bos));
  if (!config.eos) RETURN_IF_ERROR(ReadId(metadata, "eos_token_id", &config.eos));
  if (!config.pad) RETURN_IF_ERROR(ReadId(metadata, "padding_token_id", &config.pad));
  return config;
}

}  // namespace

absl::StatusOr<TokenizerConfig> TokenizerConfigFromMetadata(const Metadata& metadata) {
  const bool json = !metadata.Has(Key("model")) && metadata.Has(kJsonTokenizer);
  TokenizerConfig config;
  if (json) {
    ASSIGN_OR_RETURN(config, FromJson(metadata));
  } else {
    ASSIGN_OR_RETURN(config, FromTables(metadata));
  }
  ASSIGN_OR_RETURN(const auto* ends, metadata.GetInts(kEndTokens));
  if (ends == nullptr) return config;
  for (int64_t id : *ends) {
    if (id < 0 || id >= static_cast<int64_t>(config.tokens.size())) {
      return absl::InvalidArgumentError(
          fmt::format("metadata key '{}': {} is no token", kEndTokens, id));
    }
    config.ends.push_back(static_cast<int32_t>(id));
  }
  return config;
}

}  // namespace terrace
