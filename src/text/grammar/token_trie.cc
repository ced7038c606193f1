#include "text/grammar/token_trie.h"

#include <algorithm>

#include "text/tokenizer.h"

namespace terrace::grammar {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries) {
  std::erase_if(entries, [](const auto& entry) {
    return entry.first.empty() || entry.first.size() > kMaxBytes;
  });
  std::sort(entries.begin(), entries.end());
  std::vector<uint32_t> path;  // open nodes, by depth
  std::string_view last;
  for (const auto& [text, id] : entries) {
    const auto differ = std::mismatch(last.begin(), last.end(), text.begin(), text.end());
    const auto shared = static_cast<size_t>(differ.second - text.begin());
    for (; path.size() > shared; path.pop_back()) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    }
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      Node node;
      node.byte = static_cast<uint8_t>(text[i]);
      node.depth = static_cast<uint8_t>(i + 1);
      node.first_id = static_cast<uint32_t>(ids_.size());
      nodes_.push_back(node);
    }
    // Equal strings stand side by side, so a node's ids do, too.
    Node& node = nodes_[path.back()];
    if (node.id_count < UINT16_MAX) {
      ids_.push_back(id);
      ++node.id_count;
    }
    last = text;
  }
  for (uint32_t open : path) nodes_[open].end = static_cast<uint32_t>(nodes_.size());
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer) {
  begins_.push_back(0);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsControl(id) && !tokenizer.IsEndOfGeneration(id)) {
      const std::string bytes = tokenizer.TokenBytes(id, false);
      if (bytes.size() <= ByteTrie::kMaxBytes) arena_ += bytes;
    }
    begins_.push_back(static_cast<uint32_t>(arena_.size()));
  }
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = Bytes(id);
    longest_ = std::max(longest_, bytes.size());
    if (!bytes.empty()) entries.emplace_back(bytes, id);
  }
  trie_ = ByteTrie(std::move(entries));
}

}  // namespace terrace::grammar
