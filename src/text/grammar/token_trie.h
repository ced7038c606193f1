// The tokens of a vocabulary by their bytes, as a tree in one array, so that all tokens that a
// grammar allows are found in one walk. Immutable, safe to share.
#ifndef TERRACE_TEXT_GRAMMAR_TOKEN_TRIE_H_
#define TERRACE_TEXT_GRAMMAR_TOKEN_TRIE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace {
class Tokenizer;
}

namespace terrace::grammar {

// A tree of byte strings, each with the ids that it stands for. Nodes lie in depth-first order.
class ByteTrie {
 public:
  struct Node {
    uint32_t end = 0;       // one past the last node below this one
    uint32_t first_id = 0;  // ids()[first_id .. first_id + id_count)
    uint16_t id_count = 0;
    uint8_t byte = 0;
    uint8_t depth = 0;  // 1: at the top; kMaxBytes at most
  };
  static constexpr size_t kMaxBytes = 255;  // longer strings are left out

  ByteTrie() = default;
  // Strings may come several times. Those that are empty or too long are left out.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries);

  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> ids(const Node& node) const {
    return std::span<const int32_t>(ids_).subspan(node.first_id, node.id_count);
  }
  // Ids of all strings that go on past `node`, which is one of nodes().
  size_t CountBelow(const Node& node) const {
    const size_t end = node.end < nodes_.size() ? nodes_[node.end].first_id : ids_.size();
    return end - node.first_id - node.id_count;
  }
  bool empty() const { return nodes_.empty(); }
  size_t bytes() const { return nodes_.size() * sizeof(Node) + ids_.size() * sizeof(int32_t); }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
};

class TokenTrie {
 public:
  // Control tokens and others that stand for no bytes are not in it, nor are those that end a text.
  explicit TokenTrie(const Tokenizer& tokenizer);

  const ByteTrie& trie() const { return trie_; }
  int32_t vocab_size() const { return static_cast<int32_t>(begins_.size()) - 1; }
  // The bytes of a token; empty for those left out and for ids that are none.
  std::string_view Bytes(int32_t id) const {
    if (id < 0 || id >= vocab_size()) return {};
    const auto i = static_cast<size_t>(id);
    return std::string_view(arena_).substr(begins_[i], begins_[i + 1] - begins_[i]);
  }
  size_t longest() const { return longest_; }

 private:
  std::string arena_;
  std::vector<uint32_t> begins_;
  size_t longest_ = 0;
  ByteTrie trie_;
};

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_TOKEN_TRIE_H_
