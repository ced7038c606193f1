#include "text/grammar/machine.h"

#include <algorithm>
#include <utility>

namespace terrace::grammar {
namespace {

// Places that are followed at once: grammars of use have a few, hostile ones grow without end.
constexpr size_t kMaxConfigs = 512;
constexpr size_t kMaxSets = 3000;
constexpr size_t kMaxParents = 200'000;

}  // namespace

Machine::Machine(const Program* program) : program_(program) {
  sets_.emplace_back();  // kDead
  numbers_[{0, 0}] = kDead;
}

int32_t Machine::Parent(const Config& config) {
  const auto [it, fresh] = parent_ids_.try_emplace(config, static_cast<int32_t>(parents_.size()));
  if (fresh) parents_.push_back(config);
  return it->second;
}

Machine::SetId Machine::Number(Set set) {
  Key key;
  key.reserve(set.configs.size() * 3 + 2);
  key.push_back(set.accepts);
  key.push_back(set.escapes);
  for (const Config& config : set.configs) {
    key.insert(key.end(), {config.state, config.count, static_cast<uint32_t>(config.parent)});
  }
  const auto [it, fresh] = numbers_.try_emplace(std::move(key), static_cast<SetId>(sets_.size()));
  if (fresh) sets_.push_back(std::move(set));
  return it->second;
}

void Machine::Close(const Config& config, std::vector<Config>* work, Set* set) {
  const Program::State& state = program_->state(config.state);
  const Program::CompiledRule& rule = program_->rule(state.rule);
  if (state.final) {
    const uint32_t done = config.count + 1;
    if (rule.max == 1 || done >= static_cast<uint32_t>(rule.min)) {
      if (config.parent == kBottom) {
        set->accepts = true;
      } else if (config.parent == kUnknown) {
        set->escapes = true;
      } else {
        work->push_back(parents_[static_cast<size_t>(config.parent)]);
      }
    }
    if (rule.max == kUnbounded) {
      // Past the least number all counts mean the same.
      const uint32_t count = std::min(done, static_cast<uint32_t>(rule.min));
      work->push_back({rule.start, count, config.parent});
    } else if (rule.max > 1 && done < static_cast<uint32_t>(rule.max)) {
      work->push_back({rule.start, done, config.parent});
    }
  }
  for (const Program::CallEdge& call : state.calls) {
    const int32_t parent =
        call.tail ? config.parent : Parent({call.target, config.count, config.parent});
    work->push_back({program_->rule(call.rule).start, 0, parent});
  }
}

Machine::SetId Machine::Close(std::vector<Config> configs) {
  Set set;
  std::vector<Config> work = std::move(configs);
  while (!work.empty()) {
    const Config config = work.back();
    work.pop_back();
    const auto place = std::lower_bound(set.configs.begin(), set.configs.end(), config);
    if (place != set.configs.end() && *place == config) continue;
    if (set.configs.size() >= kMaxConfigs) {
      overflowed_ = true;
      return kDead;
    }
    set.configs.insert(place, config);
    Close(config, &work, &set);
  }
  // States that read nothing have led on to all that they lead to.
  std::erase_if(set.configs, [this](const Config& config) {
    const Program::State& state = program_->state(config.state);
    return state.bytes.empty() && state.tokens.empty();
  });
  return Number(std::move(set));
}

Machine::SetId Machine::Start() {
  return Close({{program_->rule(program_->root()).start, 0, kBottom}});
}

Machine::SetId Machine::Inside(uint32_t state, uint32_t count) {
  return Only({state, count, kUnknown});
}

Machine::SetId Machine::Only(const Config& config) {
  Set set;
  set.configs.push_back(config);
  return Number(std::move(set));
}

Machine::SetId Machine::ReturnSet(int32_t parent) {
  const auto [it, fresh] = returns_.try_emplace(parent, kDead);
  if (fresh) {
    const SetId set = Close({parents_[static_cast<size_t>(parent)]});
    returns_[parent] = set;
    return set;
  }
  return it->second;
}

Machine::SetId Machine::ComputeNext(SetId set, uint8_t byte) {
  std::vector<Config> moved;
  for (const Config& config : configs(set)) {
    for (const Program::ByteEdge& edge : program_->state(config.state).bytes) {
      if (edge.low <= byte && byte <= edge.high) {
        moved.push_back({edge.target, config.count, config.parent});
      }
    }
  }
  const SetId next = moved.empty() ? kDead : Close(std::move(moved));
  auto& table = sets_[static_cast<size_t>(set)].next;
  if (table == nullptr) {
    table = std::make_unique<std::array<int32_t, 256>>();
    table->fill(kNotKnown);
  }
  (*table)[byte] = next;
  return next;
}

Machine::SetId Machine::NextToken(SetId set, int32_t token) {
  std::vector<Config> moved;
  for (const Config& config : configs(set)) {
    for (const Program::TokenEdge& edge : program_->state(config.state).tokens) {
      if (edge.token == token) moved.push_back({edge.target, config.count, config.parent});
    }
  }
  return moved.empty() ? kDead : Close(std::move(moved));
}

bool Machine::large() const { return sets_.size() > kMaxSets || parents_.size() > kMaxParents; }

Machine::SetId Machine::Compact(SetId set) {
  Machine fresh(program_);
  absl::flat_hash_map<int32_t, int32_t> moved;
  Set copy;
  copy.accepts = Accepts(set);
  copy.escapes = Escapes(set);
  for (Config config : configs(set)) {
    // Innermost first, so that each caller is copied after its own callers.
    std::vector<int32_t> chain;
    for (int32_t at = config.parent; at >= 0 && !moved.contains(at);
         at = parents_[static_cast<size_t>(at)].parent) {
      chain.push_back(at);
    }
    for (; !chain.empty(); chain.pop_back()) {
      Config parent = parents_[static_cast<size_t>(chain.back())];
      if (parent.parent >= 0) parent.parent = moved[parent.parent];
      moved[chain.back()] = fresh.Parent(parent);
    }
    if (config.parent >= 0) config.parent = moved[config.parent];
    copy.configs.push_back(config);
  }
  std::sort(copy.configs.begin(), copy.configs.end());
  const SetId id = fresh.Number(std::move(copy));
  fresh.overflowed_ = overflowed_;
  *this = std::move(fresh);
  return id;
}

}  // namespace terrace::grammar
