#include "text/vocab.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status.h"
#include "fmt/format.h"

namespace terrace {
namespace {

// Models of a few hundred thousand tokens are usual; this only stops nonsense.
constexpr size_t kMaxTokens = size_t{1} << 24;

// Spellings that end a turn or a text in the model families that use them.
constexpr std::string_view kEndSpellings[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "<eos>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

// Some files type their turn markers as ordinary text. Only spellings that no text would hold by
// chance are mended; "</s>" is also a piece of HTML.
bool IsUnmistakableMarker(std::string_view text) {
  return text.find('|') != std::string_view::npos || text == "<end_of_turn>" ||
         text.find("\xEF\xBD\x9C") != std::string_view::npos;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte that "<0x41>" stands for, or -1.
int ParseByteToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const int high = HexDigit(text[3]), low = HexDigit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

absl::Status CheckLength(std::string_view table, size_t length, size_t tokens) {
  if (length == tokens) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("tokenizer {} has {} entries for {} tokens", table, length, tokens));
}

absl::Status CheckId(std::string_view key, const std::optional<int64_t>& id, size_t tokens) {
  if (!id || (*id >= 0 && static_cast<uint64_t>(*id) < tokens)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("tokenizer {} is {}, outside the vocabulary of {} tokens", key, *id, tokens));
}

}  // namespace

bool IsMarkerSpelling(std::string_view text) {
  constexpr std::string_view kBar = "\xEF\xBD\x9C";  // The full-width bar.
  if (text.starts_with("<|") || text.ends_with("|>")) return true;
  if (text.find(kBar) != std::string_view::npos) return true;
  return text == "<tool_call>" || text == "</tool_call>" || text == "<tool_response>" ||
         text == "</tool_response>";
}

absl::StatusOr<std::unique_ptr<Vocab>> Vocab::Create(const TokenizerConfig& config) {
  std::unique_ptr<Vocab> vocab(new Vocab);
  RETURN_IF_ERROR(vocab->Load(config));
  return vocab;
}

absl::Status Vocab::Load(const TokenizerConfig& config) {
  const size_t count = config.tokens.size();
  if (count == 0) return absl::InvalidArgumentError("tokenizer tokens: the vocabulary is empty");
  if (count > kMaxTokens) {
    return absl::InvalidArgumentError(
        fmt::format("tokenizer tokens: {} entries, at most {} are accepted", count, kMaxTokens));
  }
  if (!config.types.empty()) RETURN_IF_ERROR(CheckLength("token_type", config.types.size(), count));
  if (!config.scores.empty()) RETURN_IF_ERROR(CheckLength("scores", config.scores.size(), count));
  const std::pair<const char*, const std::optional<int64_t>&> ids[] = {
      {"bos_token_id", config.bos},     {"eos_token_id", config.eos},
      {"unknown_token_id", config.unk}, {"padding_token_id", config.pad},
      {"eot_token_id", config.eot},     {"eom_token_id", config.eom}};
  for (const auto& [key, id] : ids) RETURN_IF_ERROR(CheckId(key, id, count));
  for (size_t i = 0; i < config.scores.size(); ++i) {
    if (std::isnan(config.scores[i])) {
      return absl::InvalidArgumentError(
          fmt::format("tokenizer scores: entry {} is not a number", i));
    }
  }

  uint64_t total = 0;
  for (const std::string& token : config.tokens) total += token.size();
  if (total > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError("tokenizer tokens: more than 4 GiB of text");
  }
  arena_.reserve(total);
  offsets_.reserve(count + 1);
  offsets_.push_back(0);
  types_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t type = config.types.empty() ? 1 : config.types[i];
    if (type < 0 || type > 6) {
      return absl::InvalidArgumentError(
          fmt::format("tokenizer token_type: entry {} is {}, not 1 to 6", i, type));
    }
    arena_ += config.tokens[i];
    offsets_.push_back(static_cast<uint32_t>(arena_.size()));
    types_.push_back(type == 0 ? TokenType::kNormal : static_cast<TokenType>(type));
    max_token_bytes_ = std::max(max_token_bytes_, config.tokens[i].size());
  }
  scores_ = config.scores;

  ids_.reserve(count);
  for (uint32_t id = 0; id < count; ++id) {
    auto [at, inserted] = ids_.insert(id);
    // The key hashes and compares by spelling, so the last id may take the first one's place.
    if (!inserted) const_cast<uint32_t&>(*at) = id;
  }
  FillByteTokens(config.model != "gpt2");
  MarkEndOfGeneration(config);
  return absl::OkStatus();
}

void Vocab::FillByteTokens(bool by_spelling) {
  byte_tokens_.fill(-1);
  for (int32_t id = 0; id < size(); ++id) {
    if (types_[id] != TokenType::kByte) continue;
    const int byte = ParseByteToken(Text(id));
    if (byte >= 0) {
      byte_tokens_[byte] = id;
    } else {
      types_[id] = TokenType::kNormal;
      if (warnings_.size() < 8) {
        warnings_.push_back(
            fmt::format("token {} is typed as a byte but not spelled as one; taken as normal", id));
      }
    }
  }
  if (!by_spelling) return;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (byte_tokens_[byte] < 0) byte_tokens_[byte] = Find(fmt::format("<0x{:02X}>", byte));
  }
}

void Vocab::MarkEndOfGeneration(const TokenizerConfig& config) {
  end_of_generation_.assign(types_.size(), false);
  for (std::string_view spelling : kEndSpellings) {
    const int32_t id = Find(spelling);
    if (id < 0 || types_[id] == TokenType::kByte) continue;
    if (types_[id] == TokenType::kNormal) {
      if (!IsUnmistakableMarker(spelling)) continue;
      types_[id] = TokenType::kControl;
      warnings_.push_back(
          fmt::format("token {} ('{}') is typed as ordinary text; taken as control", id, spelling));
    }
    end_of_generation_[id] = true;
  }
  // Where all three exist (the harmony format), "<|end|>" only parts one message from the next.
  const int32_t end = Find("<|end|>");
  if (end >= 0 && Find("<|return|>") >= 0 && Find("<|call|>") >= 0) end_of_generation_[end] = false;
  for (const auto& id : {config.eos, config.eot, config.eom}) {
    if (id) end_of_generation_[*id] = true;
  }
  for (int32_t id : config.ends) {
    if (Contains(id)) end_of_generation_[id] = true;
  }
}

int32_t Vocab::Find(std::string_view text) const {
  auto at = ids_.find(text);
  return at == ids_.end() ? -1 : static_cast<int32_t>(*at);
}

int32_t Vocab::FindOrdinary(std::string_view text) const {
  const int32_t id = Find(text);
  if (id < 0) return -1;
  return types_[id] == TokenType::kNormal || types_[id] == TokenType::kUserDefined ? id : -1;
}

uint8_t Vocab::ByteValue(int32_t id) const {
  // Load has turned tokens that do not parse into normal ones.
  return static_cast<uint8_t>(ParseByteToken(Text(id)));
}

size_t Vocab::bytes() const {
  return sizeof(*this) + arena_.capacity() + offsets_.capacity() * sizeof(uint32_t) +
         types_.capacity() + scores_.capacity() * sizeof(float) + types_.size() / 8 +
         ids_.capacity() * (sizeof(uint32_t) + 1);
}

}  // namespace terrace
