#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "fmt/format.h"
#include "text/jinja/utf8.h"
#include "text/special_matcher.h"
#include "text/text_model.h"
#include "text/vocab.h"

namespace terrace {
namespace {

// A special token longer than this is no marker but an attack on the matcher's running time.
constexpr size_t kMaxSpecialBytes = 1024;

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool IsWordCharacter(jinja::CodePoint c) {
  return c.valid && (c.value == '_' || jinja::IsAlpha(c.value) || jinja::IsDecimal(c.value));
}

// True if a letter, digit or underscore stands right before or after text[begin, begin + length).
bool TouchesWord(std::string_view text, size_t begin, size_t length) {
  const size_t end = begin + length;
  if (end < text.size() && IsWordCharacter(jinja::DecodeAt(text, end))) return true;
  return begin > 0 && IsWordCharacter(jinja::DecodeAt(text, jinja::PreviousAt(text, begin)));
}

// Where text is trusted, as sorted, separate ranges.
struct TrustedRanges {
  std::vector<std::pair<size_t, size_t>> ranges;
  size_t current = 0;

  void Add(size_t begin, size_t end) {
    if (begin == end) return;
    if (!ranges.empty() && ranges.back().second == begin) {
      ranges.back().second = end;
    } else {
      ranges.emplace_back(begin, end);
    }
  }
  // REQUIRES: `begin` does not decrease from call to call.
  bool Cover(size_t begin, size_t length) {
    while (current < ranges.size() && ranges[current].second <= begin) ++current;
    return current < ranges.size() && ranges[current].first <= begin &&
           begin + length <= ranges[current].second;
  }
};

class TokenizerImpl final : public Tokenizer {
 public:
  absl::Status Init(const TokenizerConfig& config);

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override {
    RETURN_IF_ERROR(CheckSize(text.size(), options));
    TrustedRanges trusted;
    if (options.parse_special) trusted.Add(0, text.size());
    return EncodeJoined(text, &trusted, /*guard_user_defined=*/false, options);
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::span<const TextSpan> spans,
                                              const EncodeOptions& options) const override {
    size_t total = 0;
    for (const TextSpan& span : spans) {
      total += span.text.size();
      RETURN_IF_ERROR(CheckSize(total, options));
    }
    std::string text;
    text.reserve(total);
    TrustedRanges trusted;
    for (const TextSpan& span : spans) {
      if (span.trusted) trusted.Add(text.size(), text.size() + span.text.size());
      text += span.text;
    }
    return EncodeJoined(text, &trusted, /*guard_user_defined=*/true, options);
  }

  std::string TokenBytes(int32_t id, bool render_special) const override;

  std::optional<int32_t> Find(std::string_view text) const override {
    const int32_t id = vocab_->Find(text);
    return id < 0 ? std::nullopt : std::optional(id);
  }
  int32_t vocab_size() const override { return vocab_->size(); }
  bool IsControl(int32_t id) const override {
    return vocab_->Contains(id) && vocab_->Type(id) == TokenType::kControl;
  }
  bool IsEndOfGeneration(int32_t id) const override {
    return vocab_->Contains(id) && vocab_->IsEndOfGeneration(id);
  }
  std::optional<int32_t> bos() const override { return bos_; }
  std::optional<int32_t> eos() const override { return eos_; }
  std::optional<int32_t> unk() const override { return unk_; }
  std::optional<int32_t> pad() const override { return pad_; }
  bool add_bos() const override { return add_bos_; }
  bool add_eos() const override { return add_eos_; }
  bool add_space_prefix() const override { return add_space_prefix_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }
  size_t bytes() const override {
    return sizeof(*this) + vocab_->bytes() + model_->bytes() + special_.bytes() +
           (strips_left_.size() + strips_right_.size()) / 8;
  }

 private:
  static absl::Status CheckSize(size_t bytes, const EncodeOptions& options) {
    // Positions are held in 32 bits, and escaping may treble the text.
    const size_t limit = std::min(options.max_bytes, size_t{1} << 30);
    if (bytes <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(fmt::format("the text is longer than {} bytes", limit));
  }

  absl::Status FillSpecial(const TokenizerConfig& config);
  absl::Status FillStrips(const TokenizerConfig& config);
  absl::StatusOr<std::vector<int32_t>> EncodeJoined(std::string_view text, TrustedRanges* trusted,
                                                    bool guard_user_defined,
                                                    const EncodeOptions& options) const;
  void AddSpecial(bool end, std::vector<int32_t>* ids) const;

  std::unique_ptr<Vocab> vocab_;
  std::unique_ptr<TextModel> model_;
  SpecialMatcher special_;
  std::vector<bool> strips_left_, strips_right_;  // By id; empty if none does.
  std::vector<bool> single_word_;                 // By id; empty if none is.
  std::vector<int32_t> prefix_, suffix_;          // What add_special puts around a text.
  std::optional<int32_t> bos_, eos_, unk_, pad_;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false;
  std::vector<std::string> warnings_;
};

std::optional<int32_t> ToId(const std::optional<int64_t>& id) {
  return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
}

absl::Status TokenizerImpl::Init(const TokenizerConfig& config) {
  ASSIGN_OR_RETURN(vocab_, Vocab::Create(config));
  warnings_ = vocab_->warnings();
  if (config.model == "llama") {
    add_bos_ = true;
    add_space_prefix_ = config.add_space_prefix.value_or(true);
    ASSIGN_OR_RETURN(model_, MakeSpmModel(config, vocab_.get(), add_space_prefix_));
  } else if (config.model == "gpt2" || config.model == "gemma4") {
    add_space_prefix_ = config.model == "gemma4" && config.add_space_prefix.value_or(false);
    ASSIGN_OR_RETURN(model_, MakeBpeModel(config, vocab_.get(), &add_bos_, &warnings_));
  } else if (config.model == "tokenizer.json") {
    ASSIGN_OR_RETURN(model_, MakePipelineModel(config, vocab_.get()));
    add_space_prefix_ = config.pipeline->strip_space;
    prefix_ = config.pipeline->prefix;
    suffix_ = config.pipeline->suffix;
    add_bos_ = !prefix_.empty();
    add_eos_ = !suffix_.empty();
  } else {
    return absl::InvalidArgumentError(fmt::format(
        "tokenizer model '{}' is not known; known are: gpt2, llama, gemma4, tokenizer.json",
        config.model));
  }
  bos_ = ToId(config.bos);
  eos_ = ToId(config.eos);
  unk_ = ToId(config.unk);
  pad_ = ToId(config.pad);
  add_bos_ = config.add_bos.value_or(add_bos_);
  add_eos_ = config.add_eos.value_or(add_eos_);
  if (add_bos_ && !bos_ && prefix_.empty()) {
    if (config.add_bos) {
      return absl::InvalidArgumentError("tokenizer add_bos_token is true without a bos_token_id");
    }
    add_bos_ = false;
  }
  if (add_eos_ && !eos_ && suffix_.empty()) {
    return absl::InvalidArgumentError("tokenizer add_eos_token is true without an eos_token_id");
  }
  if (prefix_.empty() && add_bos_) prefix_ = {*bos_};
  if (suffix_.empty() && add_eos_) suffix_ = {*eos_};
  for (const auto* ids : {&std::as_const(prefix_), &std::as_const(suffix_), &config.ends}) {
    for (int32_t id : *ids) {
      if (!vocab_->Contains(id)) {
        return absl::InvalidArgumentError(
            fmt::format("tokenizer: special token {} is outside the vocabulary", id));
      }
    }
  }
  RETURN_IF_ERROR(FillSpecial(config));
  return FillStrips(config);
}

absl::Status TokenizerImpl::FillSpecial(const TokenizerConfig& config) {
  std::vector<bool> normalized;  // by id: found by the pipeline itself
  if (config.pipeline && !config.pipeline->normalized_added.empty()) {
    normalized.resize(vocab_->size());
    for (int32_t id : config.pipeline->normalized_added) {
      if (vocab_->Contains(id)) normalized[id] = true;
    }
  }
  for (int32_t id = 0; id < vocab_->size(); ++id) {
    const TokenType type = vocab_->Type(id);
    if (type != TokenType::kControl && type != TokenType::kUserDefined &&
        type != TokenType::kUnknown) {
      continue;
    }
    if (vocab_->Text(id).size() > kMaxSpecialBytes) {
      return absl::InvalidArgumentError(fmt::format(
          "tokenizer tokens: special token {} is {} bytes long, at most {} are accepted", id,
          vocab_->Text(id).size(), kMaxSpecialBytes));
    }
    if (!normalized.empty() && normalized[id]) continue;
    // Runs of spaces may be stored in their escaped form.
    const bool escaped =
        config.model != "gpt2" && !config.pipeline && type == TokenType::kUserDefined;
    special_.Add(escaped ? UnescapeSpaces(vocab_->Text(id)) : std::string(vocab_->Text(id)), id);
  }
  return absl::OkStatus();
}

absl::Status TokenizerImpl::FillStrips(const TokenizerConfig& config) {
  for (const auto& [key, ids, strips] :
       {std::tuple("lstrip", &config.lstrip, &strips_left_),
        std::tuple("rstrip", &config.rstrip, &strips_right_),
        std::tuple("single_word", &config.single_word, &single_word_)}) {
    for (int32_t id : *ids) {
      if (!vocab_->Contains(id)) {
        return absl::InvalidArgumentError(
            fmt::format("tokenizer {}: id {} is outside the vocabulary", key, id));
      }
      strips->resize(vocab_->size());
      (*strips)[id] = true;
    }
  }
  // The Phi-3 family's markers swallow the white space after them, which its files do not say.
  const std::string name = ToLower(config.name);
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) {
    return absl::OkStatus();
  }
  strips_right_.resize(vocab_->size());
  for (int32_t id = 0; id < vocab_->size(); ++id) {
    const TokenType type = vocab_->Type(id);
    const std::string_view text = vocab_->Text(id);
    if (type != TokenType::kControl && type != TokenType::kUserDefined &&
        type != TokenType::kUnknown) {
      continue;
    }
    if (text != "<unk>" && text != "<s>" && text != "<|endoftext|>") strips_right_[id] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TokenizerImpl::EncodeJoined(
    std::string_view text, TrustedRanges* trusted, bool guard_user_defined,
    const EncodeOptions& options) const {
  auto allowed = [&](size_t begin, size_t length, int32_t id) {
    if (!single_word_.empty() && single_word_[id] && TouchesWord(text, begin, length)) return false;
    const bool open = vocab_->Type(id) == TokenType::kUserDefined &&
                      !(guard_user_defined &&
                        (vocab_->IsEndOfGeneration(id) || IsMarkerSpelling(vocab_->Text(id))));
    return open || trusted->Cover(begin, length);
  };
  EncodeStats unused;
  EncodeStats* stats = options.stats != nullptr ? options.stats : &unused;
  MergeScratch scratch;
  std::vector<int32_t> ids;
  size_t done = 0;
  for (;;) {
    const SpecialMatcher::Match match = special_.Next(text, done, allowed);
    const bool found = match.id >= 0;
    size_t end = found ? match.begin : text.size();
    if (found && !strips_left_.empty() && strips_left_[match.id]) {
      while (end > done && IsSpace(text[end - 1])) --end;
    }
    if (end > done) {
      RETURN_IF_ERROR(
          model_->Encode(text.substr(done, end - done), done == 0, &scratch, stats, &ids));
    }
    if (!found) break;
    ids.push_back(match.id);
    done = match.begin + match.length;
    if (!strips_right_.empty() && strips_right_[match.id]) {
      while (done < text.size() && IsSpace(text[done])) ++done;
    }
  }
  if (options.add_special) AddSpecial(options.add_end, &ids);
  return ids;
}

void TokenizerImpl::AddSpecial(bool end, std::vector<int32_t>* ids) const {
  const bool begun =
      ids->size() >= prefix_.size() && std::equal(prefix_.begin(), prefix_.end(), ids->begin());
  if (!begun) ids->insert(ids->begin(), prefix_.begin(), prefix_.end());
  if (!end) return;
  const bool ended =
      ids->size() >= suffix_.size() && std::equal(suffix_.rbegin(), suffix_.rend(), ids->rbegin());
  if (!ended) ids->insert(ids->end(), suffix_.begin(), suffix_.end());
}

std::string TokenizerImpl::TokenBytes(int32_t id, bool render_special) const {
  if (!vocab_->Contains(id)) return "";
  const std::string_view text = vocab_->Text(id);
  switch (vocab_->Type(id)) {
    case TokenType::kNormal:
      return model_->DecodeNormal(text);
    case TokenType::kUserDefined:
      return model_->DecodeUserDefined(text);
    case TokenType::kByte:
      return std::string(1, static_cast<char>(vocab_->ByteValue(id)));
    case TokenType::kControl:
    case TokenType::kUnknown:
    case TokenType::kUnused:
      return render_special ? std::string(text) : "";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerConfig config) {
  auto tokenizer = std::make_unique<TokenizerImpl>();
  RETURN_IF_ERROR(tokenizer->Init(config));
  return tokenizer;
}

}  // namespace terrace
