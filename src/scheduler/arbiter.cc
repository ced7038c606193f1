#include "scheduler/arbiter.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

namespace terrace::scheduler {
namespace {

// What the waiting and running requests of a model come to.
struct Demand {
  int band = kNoBand;  // the best
  int32_t waiting = 0;
};

std::vector<Demand> Sum(const ArbiterOptions& options, const ArbiterInput& input) {
  std::vector<Demand> demands(input.models.size());
  for (size_t i = 0; i < input.models.size(); ++i) {
    const ArbiterModel& model = input.models[i];
    if (model.running > 0) demands[i].band = static_cast<int>(model.running_sla);
  }
  for (const QueuedView& each : input.queued) {
    Demand& demand = demands[static_cast<size_t>(each.model)];
    ++demand.waiting;
    const int64_t waited_us = input.now_us - each.waiting_since_us();
    demand.band = std::min(demand.band, Band(options, each.sla, waited_us));
  }
  return demands;
}

bool HasWork(const ArbiterModel& model, const Demand& demand) {
  return !model.silent && (model.running > 0 || demand.waiting > 0);
}

// The next model beside the current one; -1: none has work.
int32_t Best(const ArbiterOptions& options, const ArbiterInput& input,
             std::span<const Demand> demands) {
  int band = kNoBand;
  double most_rate = 0, most_wait = 0;
  auto rate_of = [&](size_t i) {
    // A tenth of a second stands for what a switch costs beside the bytes.
    return demands[i].waiting / (0.1 + static_cast<double>(input.models[i].load_us) * 1e-6);
  };
  auto wait_of = [&](size_t i) {
    return static_cast<double>(input.now_us - input.models[i].waiting_since_us);
  };
  auto candidate = [&](size_t i) {
    return static_cast<int32_t>(i) != input.current && HasWork(input.models[i], demands[i]);
  };
  for (size_t i = 0; i < demands.size(); ++i) {
    if (!candidate(i) || demands[i].band > band) continue;
    if (demands[i].band < band) most_rate = most_wait = 0;
    band = demands[i].band;
    most_rate = std::max(most_rate, rate_of(i));
    most_wait = std::max(most_wait, wait_of(i));
  }
  int32_t best = -1;
  double best_score = -1;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (!candidate(i) || demands[i].band != band) continue;
    double score = 0;
    // Who has waited too long goes first, whatever else would be cheaper.
    const bool overdue = wait_of(i) >= static_cast<double>(options.max_wait_us);
    if (overdue) score += 1 + options.qps_weight + options.latency_weight + wait_of(i) / most_wait;
    if (most_rate > 0) score += options.qps_weight * rate_of(i) / most_rate;
    if (most_wait > 0) score += options.latency_weight * wait_of(i) / most_wait;
    if (score > best_score) {
      best_score = score;
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// Its weights are on their way and take longer than `limit_us`.
bool IsComing(const ArbiterModel& model, int64_t limit_us) {
  return !model.stuck && model.load_us > limit_us;
}

// A realtime request waits to be taken in.
bool Urgent(const Demand& demand) { return demand.waiting > 0 && demand.band == 0; }

// The model with work that has waited longest, beside the current one: for models that take turns.
int32_t LongestWaiting(const ArbiterInput& input, std::span<const Demand> demands,
                       int64_t most_load_us) {
  int32_t best = -1;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (static_cast<int32_t>(i) == input.current || !HasWork(input.models[i], demands[i])) continue;
    if (input.models[i].held || IsComing(input.models[i], most_load_us)) continue;
    if (best < 0 || input.models[i].waiting_since_us <
                        input.models[static_cast<size_t>(best)].waiting_since_us) {
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// A model with a realtime request that waits, before anyone else's step; -1: none, or somebody has
// waited for too long.
int32_t UrgentAmongFitting(const ArbiterOptions& options, const ArbiterInput& input,
                           std::span<const Demand> demands) {
  int32_t urgent = -1;
  for (size_t i = 0; i < demands.size(); ++i) {
    const ArbiterModel& model = input.models[i];
    if (!HasWork(model, demands[i]) || IsComing(model, options.load_beside_us)) continue;
    if (Urgent(demands[i])) {
      if (urgent < 0 ||
          model.waiting_since_us < input.models[static_cast<size_t>(urgent)].waiting_since_us) {
        urgent = static_cast<int32_t>(i);
      }
    } else if (!model.held && input.now_us - model.waiting_since_us >= options.aside_most_us) {
      return -1;
    }
  }
  return urgent;
}

// A model that steps beside the current one, whose turn goes on; the current one itself if that has
// waited for its step meanwhile; -1: there is none.
int32_t Aside(const ArbiterOptions& options, const ArbiterInput& input,
              std::span<const Demand> demands) {
  const auto at = static_cast<size_t>(input.current);
  const ArbiterModel& current = input.models[at];
  const bool busy = HasWork(current, demands[at]);
  int32_t best = -1;
  for (size_t i = 0; i < demands.size(); ++i) {
    const ArbiterModel& model = input.models[i];
    if (i == at || !HasWork(model, demands[i])) continue;
    if (demands[i].band > 0 && (!busy || demands[i].band >= demands[at].band)) continue;
    if (model.stuck || model.load_us > options.load_beside_us) continue;
    // KV finds its room: worse classes give way when a request is taken in.
    if (model.weight_bytes + current.weight_bytes > input.budget_bytes) continue;
    const auto rank = [&](size_t m) {
      return std::tuple(demands[m].band, !Urgent(demands[m]), input.models[m].waiting_since_us);
    };
    if (best < 0 || rank(i) < rank(static_cast<size_t>(best))) best = static_cast<int32_t>(i);
  }
  if (best < 0 || !busy) return best;
  if (input.now_us - current.waiting_since_us >= options.aside_most_us) return input.current;
  if (current.held || Urgent(demands[static_cast<size_t>(best)])) return best;
  // Equals, by aging, take turns by step.
  const bool equal = demands[static_cast<size_t>(best)].band >= demands[at].band;
  const bool longer =
      current.waiting_since_us < input.models[static_cast<size_t>(best)].waiting_since_us;
  return equal && longer ? input.current : best;
}

// A model that would take the turn, but has not had it for far too long: others step beside it all
// the time. The longest waiting; -1: there is none.
int32_t KeptFromTheTurn(const ArbiterOptions& options, const ArbiterInput& input,
                        std::span<const Demand> demands, int32_t beside) {
  if (input.now_us - input.turn_since_us < options.min_residency_us) return -1;
  int32_t longest = -1;
  int64_t since_us = input.now_us - 2 * options.max_wait_us;
  for (size_t i = 0; i < demands.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    if (index == input.current || index == beside || !HasWork(input.models[i], demands[i])) {
      continue;
    }
    if (input.models[i].waiting_since_us > since_us) continue;
    since_us = input.models[i].waiting_since_us;
    longest = index;
  }
  return longest;
}

void ChooseAmongFitting(const ArbiterOptions& options, const ArbiterInput& input,
                        std::span<const Demand> demands, ArbiterDecision* decision) {
  constexpr int64_t kLookAgainUs = 20'000;
  const auto at = static_cast<size_t>(input.current);
  int64_t nearest_us = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < demands.size(); ++i) {
    const ArbiterModel& model = input.models[i];
    if (!HasWork(model, demands[i]) || !IsComing(model, options.load_beside_us)) continue;
    decision->load.push_back(static_cast<int32_t>(i));
    nearest_us = std::min(nearest_us, model.load_us);
  }
  decision->model = UrgentAmongFitting(options, input, demands);
  if (decision->model >= 0) return;
  for (const int64_t most_load_us : {options.load_beside_us, options.load_alone_us}) {
    // The one that has waited longest is the next in the round.
    decision->model = LongestWaiting(input, demands, most_load_us);
    if (decision->model >= 0) return;
    if (HasWork(input.models[at], demands[at]) && !IsComing(input.models[at], most_load_us)) {
      decision->model = input.current;
      return;
    }
  }
  if (!decision->load.empty()) {
    decision->wait_us = std::clamp<int64_t>(nearest_us - options.load_alone_us, 1, kLookAgainUs);
  }
}

// Whether the turn has lasted long enough for what it took until it gave its first token: weights
// and KV that came, or were computed again, would otherwise go for next to nothing, and all of the
// time be spent on that.
bool HasPaid(const ArbiterOptions& options, const ArbiterInput& input) {
  constexpr int64_t kWorth = 3;
  constexpr int64_t kMostWaits = 10;  // of max_wait
  const int64_t lasted_us = input.now_us - input.turn_since_us;
  if (lasted_us >= kMostWaits * options.max_wait_us) return true;
  return input.turn_first_us > 0 &&
         lasted_us >= kWorth * (input.turn_first_us - input.turn_since_us);
}

void ChooseModel(const ArbiterOptions& options, const ArbiterInput& input,
                 std::span<const Demand> demands, ArbiterDecision* decision) {
  uint64_t kv_bytes = 0, weight_bytes = 0;
  for (size_t i = 0; i < input.models.size(); ++i) {
    kv_bytes += input.models[i].kv_bytes;
    const bool current = static_cast<int32_t>(i) == input.current;
    if (current || HasWork(input.models[i], demands[i])) {
      weight_bytes += input.models[i].weight_bytes;
    }
  }
  const bool has_current =
      input.current >= 0 && static_cast<size_t>(input.current) < input.models.size();
  if (has_current && weight_bytes + kv_bytes <= input.budget_bytes) {
    return ChooseAmongFitting(options, input, demands, decision);
  }
  if (has_current) {
    const int32_t beside = Aside(options, input, demands);
    if (beside >= 0) {
      decision->model = KeptFromTheTurn(options, input, demands, beside);
      if (decision->model >= 0) return;
      decision->model = beside;
      decision->aside = beside != input.current;
      return;
    }
  }
  const int32_t other = Best(options, input, demands);
  if (!has_current) {
    decision->model = other;
    return;
  }
  const ArbiterModel& current = input.models[static_cast<size_t>(input.current)];
  const Demand& demand = demands[static_cast<size_t>(input.current)];
  const bool busy = HasWork(current, demand);
  if (other < 0) {
    decision->model = busy ? input.current : -1;
    return;
  }
  const ArbiterModel& next = input.models[static_cast<size_t>(other)];
  const int64_t waited_us = input.now_us - next.waiting_since_us;
  const bool better = busy && demands[static_cast<size_t>(other)].band < demand.band;
  const bool due = waited_us >= options.max_wait_us || better;
  if (!busy) {
    const int64_t linger_left = input.last_work_us + options.linger_us - input.now_us;
    const bool returns =
        !current.silent && current.return_us <= static_cast<double>(options.linger_us);
    if (!due && returns && linger_left > 0) {
      decision->wait_us = linger_left;
    } else {
      decision->model = other;
    }
    return;
  }
  const bool resident_long_enough = input.now_us - input.turn_since_us >= options.min_residency_us;
  if (!due || !resident_long_enough) {
    decision->model = input.current;
    return;
  }
  // The other's turn has come. Running requests pause with their KV kept if there is room for it
  // beside the other's weights; else they run to their end and nobody new joins them. If that takes
  // too long, they give way: their KV moves down or is dropped as the other needs the room.
  const bool too_long = waited_us >= 2 * options.max_wait_us && HasPaid(options, input);
  if (too_long || current.running == 0 || kv_bytes + next.weight_bytes <= input.budget_bytes) {
    decision->model = other;
  } else {
    decision->model = input.current;
    decision->admit = false;
  }
}

struct Candidate {
  int band;
  int64_t arrived_us;
  int32_t index;
  bool operator<(const Candidate& other) const {
    return std::tie(band, arrived_us, index) < std::tie(other.band, other.arrived_us, other.index);
  }
};

void ChooseRequests(const ArbiterOptions& options, const ArbiterInput& input,
                    ArbiterDecision* decision) {
  const ArbiterModel& model = input.models[static_cast<size_t>(decision->model)];
  // Of each class: running requests of it and of better ones.
  std::array<int32_t, kNoBand> taken = {model.running - model.worse_than[0],
                                        model.running - model.worse_than[1], model.running};
  const auto room = static_cast<size_t>(std::max(0, options.max_batch - taken[0]));
  if (room == 0 || !decision->admit) return;
  std::vector<std::vector<Candidate>> by_tenant(input.tenants.size());
  for (size_t i = 0; i < input.queued.size(); ++i) {
    const QueuedView& each = input.queued[i];
    if (each.model != decision->model) continue;
    by_tenant[static_cast<size_t>(each.tenant)].push_back(
        {Band(options, each.sla, input.now_us - each.waiting_since_us()), each.arrived_us,
         static_cast<int32_t>(i)});
  }
  // Of each tenant no more than the room is ever looked at.
  std::vector<size_t> next(by_tenant.size(), 0);
  std::vector<ArbiterTenant> tenants(input.tenants.begin(), input.tenants.end());
  for (auto& list : by_tenant) {
    const size_t kept = std::min(room, list.size());
    std::partial_sort(list.begin(), list.begin() + static_cast<ptrdiff_t>(kept), list.end());
    list.resize(kept);
  }
  // What one more request counts for among requests whose lengths nobody knows yet.
  constexpr double kExpectedTokens = 256;
  while (decision->order.size() < room) {
    int32_t best = -1;
    for (size_t t = 0; t < by_tenant.size(); ++t) {
      if (next[t] == by_tenant[t].size()) continue;
      const int32_t limit = tenants[t].limit > 0 ? tenants[t].limit : options.tenant_running;
      if (limit > 0 && tenants[t].running >= limit) continue;
      if (best >= 0) {
        const auto b = static_cast<size_t>(best);
        const Candidate &mine = by_tenant[t][next[t]], &theirs = by_tenant[b][next[b]];
        const double my_share = tenants[t].served / tenants[t].weight;
        const double their_share = tenants[b].served / tenants[b].weight;
        if (std::tie(mine.band, my_share, mine.arrived_us, mine.index) >=
            std::tie(theirs.band, their_share, theirs.arrived_us, theirs.index)) {
          continue;
        }
      }
      best = static_cast<int32_t>(t);
    }
    if (best < 0) return;
    const auto t = static_cast<size_t>(best);
    // Candidates come by band: who finds no room is followed by none who does.
    const auto band = static_cast<size_t>(by_tenant[t][next[t]].band);
    if (taken[band] >= options.max_batch) return;
    for (size_t worse = band; worse < taken.size(); ++worse) ++taken[worse];
    decision->order.push_back(by_tenant[t][next[t]++].index);
    tenants[t].served += kExpectedTokens;
    ++tenants[t].running;
  }
}

}  // namespace

int Band(const ArbiterOptions& options, SlaClass sla, int64_t waited_us) {
  const int band = static_cast<int>(sla);
  if (options.aging_us <= 0 || waited_us < options.aging_us) return band;
  return static_cast<int>(std::max<int64_t>(0, band - waited_us / options.aging_us));
}

ArbiterDecision Arbitrate(const ArbiterOptions& options, const ArbiterInput& input) {
  ArbiterDecision decision;
  const std::vector<Demand> demands = Sum(options, input);
  ChooseModel(options, input, demands, &decision);
  if (decision.model >= 0) {
    ChooseRequests(options, input, &decision);
  } else if (std::any_of(input.models.begin(), input.models.end(),
                         [](const ArbiterModel& model) { return model.silent; })) {
    constexpr int64_t kListenAgainUs = 50'000;
    decision.wait_us =
        decision.wait_us < 0 ? kListenAgainUs : std::min(decision.wait_us, kListenAgainUs);
  }
  return decision;
}

}  // namespace terrace::scheduler
