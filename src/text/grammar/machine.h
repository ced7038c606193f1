// Runs a Program over bytes: the set of all places where the text so far may be, each a state with
// the calls that it must return to. Sets are numbered and steps between them remembered, so that
// known text costs a look-up a byte. Used by one thread at a time.
#ifndef TERRACE_TEXT_GRAMMAR_MACHINE_H_
#define TERRACE_TEXT_GRAMMAR_MACHINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "text/grammar/program.h"

namespace terrace::grammar {

class Machine {
 public:
  using SetId = int32_t;
  static constexpr SetId kDead = 0;        // nothing can follow, and the text is not complete
  static constexpr int32_t kBottom = -1;   // parent of the root's states
  static constexpr int32_t kUnknown = -2;  // parent outside what is looked at; see Inside

  struct Config {
    uint32_t state = 0;
    uint32_t count = 0;  // times that the state's rule has been passed, if it repeats
    int32_t parent = kBottom;
    auto operator<=>(const Config&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Config& c) {
      return H::combine(std::move(h), c.state, c.count, c.parent);
    }
  };

  // `program` must outlive the machine.
  explicit Machine(const Program* program);

  // The set before anything is read.
  SetId Start();
  // The set of one place inside a rule whose callers are not known: the edges of `state` itself.
  SetId Inside(uint32_t state, uint32_t count);
  // The set of one config alone, without what follows from it without reading.
  SetId Only(const Config& config);
  // The set where one goes on after the call `parent` of a config.
  SetId ReturnSet(int32_t parent);

  SetId Next(SetId set, uint8_t byte) {
    const auto& next = sets_[static_cast<size_t>(set)].next;
    if (next != nullptr && (*next)[byte] != kNotKnown) return (*next)[byte];
    return ComputeNext(set, byte);
  }
  SetId Next(SetId set, std::string_view bytes) {
    for (char c : bytes) {
      if (set == kDead) break;
      set = Next(set, static_cast<uint8_t>(c));
    }
    return set;
  }
  // After a token that the grammar names; kDead if it names it nowhere here.
  SetId NextToken(SetId set, int32_t token);

  std::span<const Config> configs(SetId set) const {
    return sets_[static_cast<size_t>(set)].configs;
  }
  // The text may end here.
  bool Accepts(SetId set) const { return sets_[static_cast<size_t>(set)].accepts; }
  // The unknown caller may have been returned to.
  bool Escapes(SetId set) const { return sets_[static_cast<size_t>(set)].escapes; }
  // A set had more places than are followed; what it led to counts as dead.
  bool overflowed() const { return overflowed_; }

  // There are so many sets that they are better forgotten.
  bool large() const;
  // Forgets all sets but `set`; returns its new number.
  SetId Compact(SetId set);

 private:
  static constexpr int32_t kNotKnown = -1;
  struct Set {
    std::vector<Config> configs;  // sorted
    bool accepts = false;
    bool escapes = false;
    std::unique_ptr<std::array<int32_t, 256>> next;
  };
  using Key = std::vector<uint32_t>;

  SetId ComputeNext(SetId set, uint8_t byte);
  // The numbered set of `configs` and all that follows from them without reading.
  SetId Close(std::vector<Config> configs);
  void Close(const Config& config, std::vector<Config>* work, Set* set);
  SetId Number(Set set);
  int32_t Parent(const Config& config);

  const Program* program_;
  std::vector<Set> sets_;
  absl::flat_hash_map<Key, SetId> numbers_;
  std::vector<Config> parents_;
  absl::flat_hash_map<Config, int32_t> parent_ids_;
  absl::flat_hash_map<int32_t, SetId> returns_;
  bool overflowed_ = false;
};

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_MACHINE_H_
