#include <algorithm>
#include <limits>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "fmt/format.h"
#include "text/pipeline/characters.h"
#include "text/pipeline/piece_model.h"

namespace terrace {
namespace {

// How much less probable than the least probable token an unknown character is, in log.
constexpr double kUnknownPenalty = 10.0;

class UnigramPieces final : public PieceModel {
 public:
  UnigramPieces(const TokenizerConfig& config, const Vocab* vocab)
      : vocab_(*vocab),
        scores_(config.pipeline->scores),
        byte_fallback_(config.pipeline->byte_fallback),
        unknown_(config.unk ? static_cast<int32_t>(*config.unk) : -1) {
    double least = 0;
    for (int32_t id = 0; id < vocab_.size(); ++id) {
      const TokenType type = vocab_.Type(id);
      least = std::min(least, scores_[static_cast<size_t>(id)]);
      if (type == TokenType::kNormal || type == TokenType::kUserDefined) Add(vocab_.Text(id), id);
    }
    unknown_score_ = least - kUnknownPenalty;
  }

  void Encode(std::string_view piece, MergeScratch* /*scratch*/, EncodeStats* stats,
              std::vector<int32_t>* ids) const override {
    const std::vector<Node> best = BestPath(piece, stats);
    // From the end back; neighbouring unknown characters become one token.
    std::vector<std::pair<uint32_t, uint32_t>> unknown_runs;  // of the piece, last first
    std::vector<int32_t> reversed;
    for (auto end = static_cast<uint32_t>(piece.size()); end > 0; end = best[end].start) {
      const Node& node = best[end];
      if (node.id >= 0) {
        reversed.push_back(node.id);
      } else if (!reversed.empty() && reversed.back() == kRun && unknown_runs.back().first == end) {
        unknown_runs.back().first = node.start;
      } else {
        reversed.push_back(kRun);
        unknown_runs.emplace_back(node.start, end);
      }
    }
    for (auto id = reversed.rbegin(); id != reversed.rend(); ++id) {
      if (*id != kRun) {
        ids->push_back(*id);
        continue;
      }
      const auto [begin, end] = unknown_runs.back();
      unknown_runs.pop_back();
      AppendUnknown(piece.substr(begin, end - begin), ids);
    }
  }

  size_t bytes() const override {
    return sizeof(*this) + scores_.capacity() * sizeof(double) +
           children_.capacity() * (sizeof(uint64_t) * 2 + 1) + ids_.capacity() * sizeof(int32_t);
  }

 private:
  static constexpr int32_t kRun = -2;  // a run of unknown characters

  // The best way to a place in the piece: by the token `id` (-1: one unknown character) from
  // `start`.
  struct Node {
    double score = -std::numeric_limits<double>::infinity();
    uint32_t start = 0;
    int32_t id = -1;
    bool reached = false;
  };

  static uint64_t Key(uint32_t node, char c) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(c);
  }

  void Add(std::string_view text, int32_t id) {
    if (text.empty()) return;
    uint32_t node = 0;
    for (char c : text) {
      auto [at, added] = children_.try_emplace(Key(node, c), static_cast<uint32_t>(ids_.size()));
      if (added) ids_.push_back(-1);
      node = at->second;
    }
    ids_[node] = id;
  }

  std::vector<Node> BestPath(std::string_view piece, EncodeStats* stats) const {
    std::vector<Node> best(piece.size() + 1);
    best[0].score = 0;
    best[0].reached = true;
    auto offer = [&](size_t end, double score, size_t start, int32_t id) {
      Node& node = best[end];
      if (node.reached && score <= node.score) return;
      node = {score, static_cast<uint32_t>(start), id, true};
    };
    for (size_t at = 0; at < piece.size();) {
      const size_t length = jinja::DecodeAt(piece, at).bytes;
      bool single = false;
      uint32_t node = 0;
      for (size_t end = at; end < piece.size();) {
        auto child = children_.find(Key(node, piece[end]));
        if (child == children_.end()) break;
        ++stats->merge_steps;
        node = child->second;
        ++end;
        if (ids_[node] < 0) continue;
        offer(end, best[at].score + scores_[static_cast<size_t>(ids_[node])], at, ids_[node]);
        single = single || end - at == length;
      }
      if (!single) offer(at + length, best[at].score + unknown_score_, at, -1);
      at += length;
    }
    return best;
  }

  void AppendUnknown(std::string_view text, std::vector<int32_t>* ids) const {
    const bool bytes = byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) {
                         return vocab_.ByteToken(static_cast<uint8_t>(c)) >= 0;
                       });
    if (bytes) {
      for (char c : text) ids->push_back(vocab_.ByteToken(static_cast<uint8_t>(c)));
    } else if (unknown_ >= 0) {
      ids->push_back(unknown_);
    }
  }

  const Vocab& vocab_;
  const std::vector<double> scores_;  // by id
  const bool byte_fallback_;
  const int32_t unknown_;
  double unknown_score_ = 0;
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // the trie of spellings
  std::vector<int32_t> ids_{-1};                      // by node; -1 where no spelling ends
};

}  // namespace

absl::StatusOr<std::unique_ptr<PieceModel>> MakeUnigramModel(const TokenizerConfig& config,
                                                             const Vocab* vocab) {
  if (config.pipeline->scores.size() != static_cast<size_t>(vocab->size())) {
    return absl::InvalidArgumentError(fmt::format("tokenizer scores: {} for {} tokens",
                                                  config.pipeline->scores.size(), vocab->size()));
  }
  return std::make_unique<UnigramPieces>(config, vocab);
}

}  // namespace terrace
