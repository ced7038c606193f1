#include "text/grammar/matcher.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/status.h"
#include "text/tokenizer.h"

namespace terrace::grammar {
namespace {

constexpr size_t kMaxMaskBytes = size_t{32} << 20;  // of one rule
constexpr size_t kKnownMasks = 8;                   // of one text
constexpr size_t kLatestGrammars = 32;
constexpr size_t kSharedRules = 256;
constexpr size_t kMaxKeyBytes = size_t{1} << 20;     // grammars longer than this are not remembered
constexpr size_t kMaxBeyond = 8192;                  // tokens that go on past a rule's end
constexpr size_t kMaxSharedBytes = size_t{4} << 10;  // of a shared rule's automaton
// Places that go on with at least this many bytes are found ahead of need, up to a number of them.
constexpr int kWarmBytes = 64;
constexpr size_t kWarmPlaces = 16;

void SetBit(int32_t token, std::vector<uint64_t>* bits) {
  (*bits)[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64);
}

}  // namespace

size_t PlaceMask::bytes() const {
  return sizeof(*this) + dense.size() * 8 + sparse.size() * 4 + beyond.bytes();
}

std::shared_ptr<const PlaceMask> RuleMasks::Find(uint64_t key) const {
  absl::MutexLock lock(&mutex_);
  const auto it = masks_.find(key);
  return it == masks_.end() ? nullptr : it->second;
}

void RuleMasks::Add(uint64_t key, std::shared_ptr<const PlaceMask> mask) {
  absl::MutexLock lock(&mutex_);
  if (bytes_ + mask->bytes() > kMaxMaskBytes) {
    masks_.clear();
    bytes_ = 0;
  }
  bytes_ += mask->bytes();
  masks_[key] = std::move(mask);
}

CompiledGrammar::CompiledGrammar(Program program, std::shared_ptr<const TokenTrie> tokens,
                                 std::vector<std::shared_ptr<RuleMasks>> masks)
    : program_(std::move(program)), tokens_(std::move(tokens)), masks_(std::move(masks)) {}

std::shared_ptr<const PlaceMask> CompiledGrammar::Mask(uint32_t state, uint32_t count) const {
  const int32_t id = program_.state(state).rule;
  const Program::CompiledRule& rule = program_.rule(id);
  // A token has at most `most` bytes, so it cannot tell larger distances to the limits apart.
  const auto most = static_cast<uint32_t>(tokens_->longest()) + 1;
  const auto min = static_cast<uint32_t>(rule.min);
  const uint32_t missing = count < min ? std::min(min - count, most) : 0;
  const uint32_t left =
      rule.max == kUnbounded ? most : std::min(static_cast<uint32_t>(rule.max) - count, most);
  const uint64_t key = (uint64_t{state - rule.first} << 32) | (missing << 16) | left;
  RuleMasks& masks = *masks_[static_cast<size_t>(id)];
  if (auto found = masks.Find(key)) return found;
  auto mask = std::make_shared<const PlaceMask>(Compute(state, count));
  masks.Add(key, mask);
  return mask;
}

PlaceMask CompiledGrammar::Compute(uint32_t state, uint32_t count) const {
  PlaceMask mask;
  Machine machine(&program_);
  const ByteTrie& trie = tokens_->trie();
  const auto nodes = trie.nodes();
  std::vector<uint64_t> bits((static_cast<size_t>(tokens_->vocab_size()) + 63) / 64);
  std::vector<Machine::SetId> path(ByteTrie::kMaxBytes + 1);
  std::vector<std::pair<std::string_view, int32_t>> beyond;
  path[0] = machine.Inside(state, count);
  for (uint32_t i = 0; i < nodes.size();) {
    const ByteTrie::Node& node = nodes[i];
    const Machine::SetId set = machine.Next(path[node.depth - 1u], node.byte);
    if (set == Machine::kDead) {
      i = node.end;
      continue;
    }
    path[node.depth] = set;
    for (int32_t token : trie.ids(node)) SetBit(token, &bits);
    if (machine.Escapes(set)) {
      // Counted before they are gathered: most places that give up do so at a blank, at once.
      if (beyond.size() + trie.CountBelow(node) > kMaxBeyond) {
        mask.unknown = true;
        return mask;
      }
      for (uint32_t below = i + 1; below < node.end; ++below) {
        for (int32_t token : trie.ids(nodes[below])) {
          beyond.emplace_back(tokens_->Bytes(token).substr(node.depth), token);
        }
      }
    }
    // Nothing goes on inside the rule: only what is beyond it, which has just been taken.
    i = machine.configs(set).empty() ? node.end : i + 1;
  }
  mask.beyond = ByteTrie(std::move(beyond));
  size_t allowed = 0;
  for (uint64_t word : bits) allowed += static_cast<size_t>(std::popcount(word));
  if (allowed * 2 > bits.size()) {
    mask.dense = std::move(bits);
    return mask;
  }
  for (size_t i = 0; i < bits.size(); ++i) {
    for (uint64_t word = bits[i]; word != 0; word &= word - 1) {
      mask.sparse.push_back(static_cast<int32_t>(i * 64) + std::countr_zero(word));
    }
  }
  return mask;
}

void CompiledGrammar::Warm() const {
  size_t places = 0;
  for (uint32_t state = 0; state < program_.states() && places < kWarmPlaces; ++state) {
    int bytes = 0;
    for (const auto& edge : program_.state(state).bytes) bytes += edge.high - edge.low + 1;
    if (bytes < kWarmBytes) continue;
    Mask(state, 0);
    ++places;
  }
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)), machine_(&grammar_->program()), set_(machine_.Start()) {}

std::span<const uint64_t> Matcher::Allowed() {
  for (const auto& [set, bits] : known_) {
    if (set == set_) return bits;
  }
  std::vector<uint64_t> bits;
  if (known_.size() >= kKnownMasks) {  // the oldest gives its memory
    bits = std::move(known_.front().second);
    known_.erase(known_.begin());
  }
  Fill(&bits);
  known_.emplace_back(set_, std::move(bits));
  return known_.back().second;
}

void Matcher::Walk(const ByteTrie& trie, Machine::SetId from, std::vector<uint64_t>* bits) {
  path_.resize(ByteTrie::kMaxBytes + 1);
  path_[0] = from;
  const auto nodes = trie.nodes();
  for (uint32_t i = 0; i < nodes.size();) {
    const ByteTrie::Node& node = nodes[i];
    const Machine::SetId set = machine_.Next(path_[node.depth - 1u], node.byte);
    if (set == Machine::kDead) {
      i = node.end;
      continue;
    }
    path_[node.depth] = set;
    for (int32_t token : trie.ids(node)) SetBit(token, bits);
    ++i;
  }
}

void Matcher::Fill(std::vector<uint64_t>* bits) {
  const Program& program = grammar_->program();
  bits->assign((static_cast<size_t>(grammar_->tokens().vocab_size()) + 63) / 64, 0);
  // A copy: walking makes new sets.
  const auto span = machine_.configs(set_);
  const std::vector<Machine::Config> configs(span.begin(), span.end());
  for (const Machine::Config& config : configs) {
    for (const auto& edge : program.state(config.state).tokens) {
      if (edge.token >= 0 && edge.token < grammar_->tokens().vocab_size()) {
        SetBit(edge.token, bits);
      }
    }
    const auto mask = grammar_->Mask(config.state, config.count);
    for (int32_t token : mask->sparse) SetBit(token, bits);
    for (size_t i = 0; i < mask->dense.size(); ++i) (*bits)[i] |= mask->dense[i];
    if (mask->unknown) {
      Walk(grammar_->tokens().trie(), machine_.Only(config), bits);
    } else if (!mask->beyond.empty() && config.parent != Machine::kBottom) {
      Walk(mask->beyond, machine_.ReturnSet(config.parent), bits);
    }
  }
}

bool Matcher::Accept(int32_t token) {
  Machine::SetId next = machine_.NextToken(set_, token);
  if (next == Machine::kDead) {
    const std::string_view bytes = grammar_->tokens().Bytes(token);
    if (bytes.empty()) return false;
    next = machine_.Next(set_, bytes);
  }
  if (next == Machine::kDead) return false;
  set_ = next;
  if (machine_.large()) {
    set_ = machine_.Compact(next);
    known_.clear();
  }
  return true;
}

void ForbidOthers(std::span<const uint64_t> allowed, std::span<float> logits) {
  constexpr float kForbidden = -std::numeric_limits<float>::infinity();
  size_t begin = 0;
  for (size_t word = 0; word < allowed.size() && begin < logits.size(); ++word, begin += 64) {
    const uint64_t bits = allowed[word];
    const size_t count = std::min<size_t>(64, logits.size() - begin);
    float* out = logits.data() + begin;
    if (bits == ~uint64_t{0}) continue;
    if (bits == 0) {
      std::fill_n(out, count, kForbidden);
      continue;
    }
    if (std::popcount(bits) > 32) {
      for (uint64_t others = ~bits; others != 0; others &= others - 1) {
        const auto i = static_cast<size_t>(std::countr_zero(others));
        if (i < count) out[i] = kForbidden;
      }
      continue;
    }
    std::array<float, 64> kept;
    std::copy_n(out, count, kept.begin());
    std::fill_n(out, count, kForbidden);
    for (uint64_t own = bits; own != 0; own &= own - 1) {
      const auto i = static_cast<size_t>(std::countr_zero(own));
      if (i < count) out[i] = kept[i];
    }
  }
  if (begin < logits.size()) {
    std::fill(logits.begin() + static_cast<ptrdiff_t>(begin), logits.end(), kForbidden);
  }
}

std::vector<std::shared_ptr<RuleMasks>> GrammarCache::MasksLocked(const Program& program) {
  std::vector<std::shared_ptr<RuleMasks>> out(program.rules());
  if (shared_.size() > kSharedRules) shared_.clear();
  for (size_t i = 0; i < out.size(); ++i) {
    const auto rule = static_cast<int32_t>(i);
    out[i] = std::make_shared<RuleMasks>();
    const Program::CompiledRule& compiled = program.rule(rule);
    if (!compiled.self_contained || compiled.last - compiled.first > 200) continue;
    std::string content = program.RuleContent(rule);
    if (content.size() > kMaxSharedBytes) continue;
    const auto [it, fresh] = shared_.try_emplace(std::move(content), out[i]);
    out[i] = it->second;
  }
  return out;
}

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> GrammarCache::Get(
    const std::string& key, const std::function<absl::StatusOr<Grammar>()>& make) {
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = latest_.begin(); it != latest_.end(); ++it) {
      if (it->first != key) continue;
      latest_.splice(latest_.begin(), latest_, it);
      return it->second;
    }
  }
  ASSIGN_OR_RETURN(const Grammar grammar, make());
  ASSIGN_OR_RETURN(Program program, Program::Create(grammar));
  std::shared_ptr<const CompiledGrammar> compiled;
  {
    absl::MutexLock lock(&mutex_);
    if (tokens_ == nullptr) tokens_ = std::make_shared<const TokenTrie>(tokenizer_);
    auto masks = MasksLocked(program);
    compiled =
        std::make_shared<const CompiledGrammar>(std::move(program), tokens_, std::move(masks));
    if (key.size() <= kMaxKeyBytes) {
      latest_.emplace_front(key, compiled);
      if (latest_.size() > kLatestGrammars) latest_.pop_back();
    }
  }
  compiled->Warm();
  return compiled;
}

}  // namespace terrace::grammar
