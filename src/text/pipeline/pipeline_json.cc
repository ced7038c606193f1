#include "text/pipeline/pipeline_json.h"

#include <boost/json.hpp>
#include <limits>
#include <utility>

#include "base/status.h"
#include "text/pipeline/character_map.h"
#include "text/text_model.h"

namespace terrace {
namespace {

using Behavior = SplitStep::Behavior;
using Prefix = SplitStep::Prefix;

// Steps of a sequence, in all; real files have a handful.
constexpr size_t kMaxSteps = 64;

// "\w+|[^\w\s]+" in the sense of the reference library, whose word characters are those of UTS 18.
constexpr std::string_view kWords = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}]+|)"
                                    R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d}\s]+)";

absl::Status UnknownKind(const JsonNode& node, std::string_view kind) {
  return absl::UnimplementedError(
      fmt::format("{}: type '{}' is not read by this build", node.path(), kind));
}

// Calls read(element) for the elements of a "Sequence" node's member `key`.
template <typename Read>
absl::Status ReadSequence(const JsonNode& node, std::string_view key, const Read& read) {
  const JsonNode list = node[key];
  if (list.array() == nullptr) return list.Wrong("a list");
  for (size_t i = 0; i < list.array()->size(); ++i) RETURN_IF_ERROR(read(list.at(i)));
  return absl::OkStatus();
}

// {"String": "x"} or {"Regex": "x"}; a string alone is a String.
struct Pattern {
  std::string text;
  bool regex = false;
};
absl::StatusOr<Pattern> ReadPattern(const JsonNode& node) {
  if (node.is_string()) return Pattern{std::string(node.text()), false};
  if (node["String"].is_string()) return Pattern{std::string(node["String"].text()), false};
  if (node["Regex"].is_string()) return Pattern{TranslatePattern(node["Regex"].text()), true};
  return node.Wrong("{\"String\": ...} or {\"Regex\": ...}");
}

absl::StatusOr<Behavior> ReadBehavior(const JsonNode& node, Behavior otherwise) {
  if (!node.present()) return otherwise;
  const std::string_view text = node.is_string() ? node.text() : "";
  if (text == "Removed") return Behavior::kRemoved;
  if (text == "Isolated") return Behavior::kIsolated;
  if (text == "MergedWithPrevious") return Behavior::kWithPrevious;
  if (text == "MergedWithNext") return Behavior::kWithNext;
  if (text == "Contiguous") return Behavior::kContiguous;
  return node.Wrong("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

absl::Status ReadReplace(const JsonNode& node, NormalizerStep* step) {
  ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(node["pattern"]));
  step->kind =
      pattern.regex ? NormalizerStep::Kind::kReplacePattern : NormalizerStep::Kind::kReplaceText;
  step->pattern = std::move(pattern.text);
  ASSIGN_OR_RETURN(step->content, node["content"].String());
  return absl::OkStatus();
}

absl::Status ReadBertNormalizer(const JsonNode& node, NormalizerStep* step) {
  step->kind = NormalizerStep::Kind::kBert;
  ASSIGN_OR_RETURN(step->clean, node["clean_text"].Bool(true));
  ASSIGN_OR_RETURN(step->chinese, node["handle_chinese_chars"].Bool(true));
  ASSIGN_OR_RETURN(step->lowercase, node["lowercase"].Bool(true));
  ASSIGN_OR_RETURN(step->accents, node["strip_accents"].Bool(step->lowercase));
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const JsonNode& node, SplitStep* step) {
  step->kind = SplitStep::Kind::kMetaspace;
  ASSIGN_OR_RETURN(step->pattern, node["replacement"].String(kVisibleSpace));
  ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].Bool(true));
  ASSIGN_OR_RETURN(const std::string scheme,
                   node["prepend_scheme"].String(prefix ? "always" : "never"));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return node["prepend_scheme"].Wrong("always, first or never");
  }
  step->prefix = scheme == "always"  ? Prefix::kAlways
                 : scheme == "first" ? Prefix::kFirst
                                     : Prefix::kNever;
  ASSIGN_OR_RETURN(step->cut, node["split"].Bool(true));
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const JsonNode& node, SplitStep* step) {
  step->kind = SplitStep::Kind::kByteLevel;
  ASSIGN_OR_RETURN(const bool prefix, node["add_prefix_space"].Bool(true));
  step->prefix = prefix ? Prefix::kAlways : Prefix::kNever;
  ASSIGN_OR_RETURN(step->cut, node["use_regex"].Bool(true));
  return absl::OkStatus();
}

absl::Status ReadSplit(const JsonNode& node, SplitStep* step) {
  ASSIGN_OR_RETURN(Pattern pattern, ReadPattern(node["pattern"]));
  step->kind = pattern.regex ? SplitStep::Kind::kPattern : SplitStep::Kind::kText;
  step->pattern = std::move(pattern.text);
  ASSIGN_OR_RETURN(step->behavior, ReadBehavior(node["behavior"], Behavior::kIsolated));
  ASSIGN_OR_RETURN(step->invert, node["invert"].Bool(false));
  return absl::OkStatus();
}

absl::StatusOr<SplitStep> ReadSplitStep(const JsonNode& node, const std::string& type) {
  SplitStep step;
  if (type == "ByteLevel") {
    RETURN_IF_ERROR(ReadByteLevel(node, &step));
  } else if (type == "Split") {
    RETURN_IF_ERROR(ReadSplit(node, &step));
  } else if (type == "Metaspace") {
    RETURN_IF_ERROR(ReadMetaspace(node, &step));
  } else if (type == "BertPreTokenizer") {
    step.kind = SplitStep::Kind::kBert;
  } else if (type == "Whitespace") {
    step.pattern = kWords;
    step.invert = true;
    step.behavior = Behavior::kRemoved;
  } else if (type == "WhitespaceSplit") {
    step.kind = SplitStep::Kind::kSpace;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Punctuation") {
    step.kind = SplitStep::Kind::kPunctuation;
    ASSIGN_OR_RETURN(step.behavior, ReadBehavior(node["behavior"], Behavior::kIsolated));
  } else if (type == "Digits") {
    step.kind = SplitStep::Kind::kDigits;
    ASSIGN_OR_RETURN(const bool individually, node["individual_digits"].Bool(false));
    step.behavior = individually ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "CharDelimiterSplit") {
    step.kind = SplitStep::Kind::kText;
    ASSIGN_OR_RETURN(step.pattern, node["delimiter"].String());
    step.behavior = Behavior::kRemoved;
  } else if (type == "FixedLength") {
    step.kind = SplitStep::Kind::kLength;
    ASSIGN_OR_RETURN(int64_t length, node["length"].Int(1, std::numeric_limits<int32_t>::max()));
    step.length = static_cast<int32_t>(length);
  } else {
    return UnknownKind(node, type);
  }
  return step;
}

// The ids of a special token that a template names.
absl::Status AppendTemplateIds(const JsonNode& node, std::string_view name,
                               std::vector<int32_t>* ids) {
  const JsonNode list = node["special_tokens"][name]["ids"];
  if (list.array() == nullptr) return list.Wrong("a list of token ids");
  for (size_t i = 0; i < list.array()->size(); ++i) {
    ASSIGN_OR_RETURN(int64_t id, list.at(i).Int(0, std::numeric_limits<int32_t>::max()));
    ids->push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const JsonNode& node, TokenizerPipeline* pipeline) {
  const JsonNode single = node["single"];
  if (single.array() == nullptr) return single.Wrong("a list");
  if (single.array()->size() > kMaxSteps) return single.Wrong("a shorter list");
  std::vector<int32_t> prefix, suffix;
  bool after = false;
  for (size_t i = 0; i < single.array()->size(); ++i) {
    const JsonNode item = single.at(i);
    if (item["Sequence"].object() != nullptr) {
      after = true;
    } else if (item["SpecialToken"]["id"].is_string()) {
      RETURN_IF_ERROR(
          AppendTemplateIds(node, item["SpecialToken"]["id"].text(), after ? &suffix : &prefix));
    } else {
      return item.Wrong("a Sequence or a SpecialToken");
    }
  }
  pipeline->prefix = std::move(prefix);
  pipeline->suffix = std::move(suffix);
  return absl::OkStatus();
}

// ["[SEP]", 102]
absl::StatusOr<std::vector<int32_t>> ReadNamedId(const JsonNode& node) {
  if (node.array() == nullptr || node.array()->size() != 2) return node.Wrong("[token, id]");
  ASSIGN_OR_RETURN(int64_t id, node.at(1).Int(0, std::numeric_limits<int32_t>::max()));
  return std::vector<int32_t>{static_cast<int32_t>(id)};
}

}  // namespace

absl::Status ReadNormalizer(const JsonNode& node, TokenizerPipeline* pipeline) {
  using Kind = NormalizerStep::Kind;
  if (!node.present()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "normalizers",
                        [&](const JsonNode& step) { return ReadNormalizer(step, pipeline); });
  }
  static constexpr std::pair<std::string_view, Kind> kPlain[] = {
      {"NFC", Kind::kNfc},
      {"NFD", Kind::kNfd},
      {"NFKC", Kind::kNfkc},
      {"NFKD", Kind::kNfkd},
      {"Lowercase", Kind::kLowercase},
      {"StripAccents", Kind::kStripAccents},
      {"Strip", Kind::kStrip},
      {"ByteLevel", Kind::kByteLevel},
      {"Prepend", Kind::kPrepend},
      {"Replace", Kind::kReplaceText},
      {"BertNormalizer", Kind::kBert},
      {"Precompiled", Kind::kPrecompiled}};
  NormalizerStep step;
  bool known = false;
  for (const auto& [name, kind] : kPlain) {
    if (name != type) continue;
    step.kind = kind;
    known = true;
  }
  if (!known) return UnknownKind(node, type);
  if (pipeline->normalizers.size() >= kMaxSteps) return node.Wrong("one of fewer steps");
  if (step.kind == Kind::kStrip) {
    ASSIGN_OR_RETURN(step.left, node["strip_left"].Bool(true));
    ASSIGN_OR_RETURN(step.right, node["strip_right"].Bool(true));
  } else if (step.kind == Kind::kPrepend) {
    ASSIGN_OR_RETURN(step.content, node["prepend"].String());
  } else if (step.kind == Kind::kReplaceText) {
    RETURN_IF_ERROR(ReadReplace(node, &step));
  } else if (step.kind == Kind::kBert) {
    RETURN_IF_ERROR(ReadBertNormalizer(node, &step));
  } else if (step.kind == Kind::kPrecompiled) {
    const JsonNode map = node["precompiled_charsmap"];
    if (!map.present() || (map.is_string() && map.text().empty())) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string text, map.String());
    auto bytes = DecodeBase64(text);
    if (!bytes.ok()) return WithContext(bytes.status(), map.path());
    step.pattern = *std::move(bytes);
  }
  pipeline->normalizers.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const JsonNode& node, TokenizerPipeline* pipeline) {
  if (!node.present()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "pretokenizers",
                        [&](const JsonNode& step) { return ReadPreTokenizer(step, pipeline); });
  }
  if (pipeline->splits.size() >= kMaxSteps) return node.Wrong("one of fewer steps");
  ASSIGN_OR_RETURN(SplitStep step, ReadSplitStep(node, type));
  pipeline->splits.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const JsonNode& node, TokenizerPipeline* pipeline) {
  if (!node.present()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "processors",
                        [&](const JsonNode& step) { return ReadPostProcessor(step, pipeline); });
  }
  if (type == "ByteLevel") return absl::OkStatus();  // offsets only
  if (type == "TemplateProcessing") return ReadTemplate(node, pipeline);
  if (type != "BertProcessing" && type != "RobertaProcessing") return UnknownKind(node, type);
  ASSIGN_OR_RETURN(pipeline->prefix, ReadNamedId(node["cls"]));
  ASSIGN_OR_RETURN(pipeline->suffix, ReadNamedId(node["sep"]));
  return absl::OkStatus();
}

absl::Status ReadDecoder(const JsonNode& node, TokenizerPipeline* pipeline) {
  using Decode = TokenizerPipeline::Decode;
  if (!node.present()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string type, node["type"].String());
  if (type == "Sequence") {
    return ReadSequence(node, "decoders",
                        [&](const JsonNode& step) { return ReadDecoder(step, pipeline); });
  }
  if (type == "ByteLevel") {
    pipeline->decode = Decode::kByteLevel;
  } else if (type == "Metaspace") {
    SplitStep step;
    RETURN_IF_ERROR(ReadMetaspace(node, &step));
    pipeline->decode = Decode::kVisibleSpace;
    pipeline->strip_space = step.prefix != Prefix::kNever;
  } else if (type == "WordPiece") {
    pipeline->decode = Decode::kWordPiece;
    pipeline->strip_space = true;
  } else if (type == "BPEDecoder") {
    pipeline->decode = Decode::kSuffix;
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(node["pattern"]));
    if (pattern.text == kVisibleSpace) pipeline->decode = Decode::kVisibleSpace;
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const std::string content, node["content"].String(" "));
    if (content == " ") pipeline->strip_space = true;
  } else if (type != "ByteFallback" && type != "Fuse" && type != "CTC") {
    return UnknownKind(node, type);
  }
  return absl::OkStatus();
}

}  // namespace terrace
