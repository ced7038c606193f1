// Which tokens may follow: a compiled grammar with the vocabulary it is for, and one text's way
// through it.
//
// What is known of a place inside a rule does not depend on who called the rule, except for tokens
// that go on past the rule's end. So for each place the tokens that stay inside are found once, in
// a walk over the whole vocabulary, and kept; for the others the parts behind the rule's end are
// kept as a tree of their own, which is walked for each caller. Places where those are a large part
// of the vocabulary (after a blank, say) are left to a walk with the callers known, which is short
// where they want something certain.
#ifndef TERRACE_TEXT_GRAMMAR_MATCHER_H_
#define TERRACE_TEXT_GRAMMAR_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "text/grammar/machine.h"
#include "text/grammar/program.h"
#include "text/grammar/token_trie.h"

namespace terrace::grammar {

// The tokens that one place allows.
struct PlaceMask {
  std::vector<uint64_t> dense;  // a bit a token, or, if there are few,
  std::vector<int32_t> sparse;  // their ids
  ByteTrie beyond;              // what tokens go on with past the rule's end
  bool unknown = false;         // none of the above: depends on the callers too much
  size_t bytes() const;
};

// The masks of one rule's places. Thread-safe; shared by grammars that have the same rule.
class RuleMasks {
 public:
  // By place and the class of its count; null: not known yet.
  std::shared_ptr<const PlaceMask> Find(uint64_t key) const;
  void Add(uint64_t key, std::shared_ptr<const PlaceMask> mask);

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const PlaceMask>> masks_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Immutable but for what it remembers; thread-safe.
class CompiledGrammar {
 public:
  // `masks` by rule of the program.
  CompiledGrammar(Program program, std::shared_ptr<const TokenTrie> tokens,
                  std::vector<std::shared_ptr<RuleMasks>> masks);

  const Program& program() const { return program_; }
  const TokenTrie& tokens() const { return *tokens_; }
  std::shared_ptr<const PlaceMask> Mask(uint32_t state, uint32_t count) const;
  // Finds the masks of the places where most tokens are allowed, so that no token waits for that.
  void Warm() const;

 private:
  PlaceMask Compute(uint32_t state, uint32_t count) const;

  const Program program_;
  const std::shared_ptr<const TokenTrie> tokens_;
  const std::vector<std::shared_ptr<RuleMasks>> masks_;
};

// One text on its way. Used by one thread at a time.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);

  // A bit for each token of the vocabulary that may follow. Valid until the next call.
  std::span<const uint64_t> Allowed();
  // Goes on by a token; false, and nothing changes, if it is not allowed.
  bool Accept(int32_t token);

  bool can_end() const { return machine_.Accepts(set_); }
  bool can_continue() const { return !machine_.configs(set_).empty(); }
  // The grammar is too ambiguous to be followed: what it allows is incomplete.
  bool overflowed() const { return machine_.overflowed(); }

 private:
  void Fill(std::vector<uint64_t>* bits);
  // Sets the bits of the strings of `trie` that may follow `from`.
  void Walk(const ByteTrie& trie, Machine::SetId from, std::vector<uint64_t>* bits);

  const std::shared_ptr<const CompiledGrammar> grammar_;
  Machine machine_;
  Machine::SetId set_;
  std::vector<std::pair<Machine::SetId, std::vector<uint64_t>>> known_;  // a few, oldest first
  std::vector<Machine::SetId> path_;                                     // of a walk, by depth
};

// Sets the logits of tokens without a bit to -infinity; those beyond the bits have none.
void ForbidOthers(std::span<const uint64_t> allowed, std::span<float> logits);

// Compiles grammars for one model's vocabulary and remembers the latest. Thread-safe.
class GrammarCache {
 public:
  // `tokenizer` must outlive the cache.
  explicit GrammarCache(const Tokenizer* tokenizer) : tokenizer_(*tokenizer) {}

  // `key` names what `make` gives. Errors are those of `make` and of Program::Create.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Get(
      const std::string& key, const std::function<absl::StatusOr<Grammar>()>& make);

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const CompiledGrammar>>;
  std::vector<std::shared_ptr<RuleMasks>> MasksLocked(const Program& program)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Tokenizer& tokenizer_;
  absl::Mutex mutex_;
  std::shared_ptr<const TokenTrie> tokens_ ABSL_GUARDED_BY(mutex_);
  std::list<Entry> latest_ ABSL_GUARDED_BY(mutex_);  // newest first
  absl::flat_hash_map<std::string, std::shared_ptr<RuleMasks>> shared_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_MATCHER_H_
