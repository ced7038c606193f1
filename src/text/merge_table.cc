#include "text/merge_table.h"

#include "fmt/format.h"

namespace terrace {
namespace {

constexpr size_t kMaxMerges = size_t{1} << 25;

// The space that parts `merge` into two. Where several could, the one for which both parts and the
// whole are tokens; npos if there is none.
size_t FindBorder(const Vocab& vocab, std::string_view merge) {
  const size_t first = merge.find(' ', 1);
  if (first == std::string_view::npos || first + 1 >= merge.size()) return std::string_view::npos;
  if (merge.find(' ', first + 1) == std::string_view::npos) return first;
  for (size_t at = first; at != std::string_view::npos && at + 1 < merge.size();
       at = merge.find(' ', at + 1)) {
    const std::string_view left = merge.substr(0, at), right = merge.substr(at + 1);
    if (vocab.Find(left) >= 0 && vocab.Find(right) >= 0 &&
        vocab.Find(fmt::format("{}{}", left, right)) >= 0) {
      return at;
    }
  }
  return std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MergeTable>> MergeTable::Create(const TokenizerConfig& config,
                                                               const Vocab& vocab) {
  const size_t count = config.merges.size() + config.merge_pairs.size();
  if (count == 0) {
    return absl::InvalidArgumentError(
        fmt::format("tokenizer merges: missing, and model '{}' needs them", config.model));
  }
  if (!config.merges.empty() && !config.merge_pairs.empty()) {
    return absl::InvalidArgumentError("tokenizer merges: given both as strings and as pairs");
  }
  if (count > kMaxMerges) {
    return absl::InvalidArgumentError(
        fmt::format("tokenizer merges: {} entries, at most {} are accepted", count, kMaxMerges));
  }
  std::unique_ptr<MergeTable> table(new MergeTable);
  if (config.pipeline) table->continuing_prefix_ = config.pipeline->continuing_prefix;
  table->next_extra_ = vocab.size();
  table->entries_.reserve(count);
  table->ranks_.reserve(count);
  for (size_t i = 0; i < config.merges.size(); ++i) {
    const std::string_view merge = config.merges[i];
    const size_t border = FindBorder(vocab, merge);
    if (border == std::string_view::npos) {
      return absl::InvalidArgumentError(
          fmt::format("tokenizer merges: entry {} is not two parts with a space between", i));
    }
    table->Add(vocab, merge.substr(0, border), merge.substr(border + 1));
  }
  for (size_t i = 0; i < config.merge_pairs.size(); ++i) {
    const auto& [left, right] = config.merge_pairs[i];
    if (left.empty() || right.empty()) {
      return absl::InvalidArgumentError(
          fmt::format("tokenizer merges: entry {} has an empty part", i));
    }
    table->Add(vocab, left, right);
  }
  return table;
}

void MergeTable::Add(const Vocab& vocab, std::string_view left, std::string_view right) {
  std::string joined;
  joined.reserve(left.size() + right.size());
  const bool continues = !continuing_prefix_.empty() && right.starts_with(continuing_prefix_);
  joined.append(left).append(continues ? right.substr(continuing_prefix_.size()) : right);
  const uint32_t rank = static_cast<uint32_t>(entries_.size());
  entries_.push_back({Intern(vocab, left), Intern(vocab, right), Intern(vocab, joined)});
  // A pair listed twice keeps its first rank.
  ranks_.insert(rank);
}

int32_t MergeTable::Intern(const Vocab& vocab, std::string_view text) {
  const int32_t id = FindSymbol(vocab, text);
  if (id >= 0) return id;
  extra_.emplace(std::string(text), next_extra_);
  return next_extra_++;
}

int32_t MergeTable::FindSymbol(const Vocab& vocab, std::string_view text) const {
  const int32_t id = vocab.FindOrdinary(text);
  if (id >= 0 || extra_.empty()) return id;
  auto at = extra_.find(std::string(text));
  return at == extra_.end() ? -1 : at->second;
}

size_t MergeTable::bytes() const {
  size_t total = sizeof(*this) + entries_.capacity() * sizeof(Entry) +
                 ranks_.capacity() * (sizeof(uint32_t) + 1);
  for (const auto& [text, id] : extra_) total += sizeof(text) + text.capacity() + sizeof(id) + 1;
  return total;
}

}  // namespace terrace
