// When a model was used: what predicts when it is used next.
#ifndef TERRACE_TIER_USE_HISTORY_H_
#define TERRACE_TIER_USE_HISTORY_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace terrace::tier {

// Accesses that follow each other within kSameUseUs are one use: a request touches every segment
// once a token, which says nothing about when the next request comes. Times may be negative: before
// this process began.
struct UseHistory {
  static constexpr int64_t kSameUseUs = 1'000'000;
  static constexpr size_t kHours = 24;
  static constexpr double kDayUs = 24 * 3600e6;
  static constexpr double kHalfLifeUs = 1800e6;

  int64_t last_us = 0;            // last access
  int64_t use_began_us = 0;       // of the current or last use
  int64_t previous_began_us = 0;  // of the use before it; K = 2 of LRU-K
  uint64_t uses = 0;
  int64_t first_us = 0;                     // since when uses are counted by hour
  std::array<double, kHours> by_hour = {};  // uses that began in each hour of the day (UTC)
  double weight = 0;  // uses, each halved every kHalfLifeUs; as of use_began_us

  // `wall_us`: the same moment since the epoch.
  void Touch(int64_t now_us, int64_t wall_us) {
    if (uses == 0) first_us = now_us;
    if (uses == 0 || now_us - last_us > kSameUseUs) {
      weight = WeightAt(now_us) + 1;
      previous_began_us = use_began_us;
      use_began_us = now_us;
      ++uses;
      by_hour[static_cast<size_t>(HourOf(wall_us))] += 1;
    }
    last_us = now_us;
  }

  double WeightAt(int64_t now_us) const {
    if (uses == 0) return 0;
    const double halves = static_cast<double>(now_us - use_began_us) / kHalfLifeUs;
    return weight * std::exp2(-std::max(0.0, halves));
  }
  // Uses a microsecond over the last half hour or so, or since the first if that is less.
  double RecentRate(int64_t now_us) const {
    const double halves = std::max(1.0, static_cast<double>(now_us - first_us)) / kHalfLifeUs;
    const double seen_us = kHalfLifeUs / std::log(2.0) * (1 - std::exp2(-halves));
    return WeightAt(now_us) / seen_us;
  }

  // Hour of the day, [0, 24).
  static double HourOf(int64_t wall_us) {
    const double day_us = std::fmod(static_cast<double>(wall_us), kDayUs);
    return (day_us < 0 ? day_us + kDayUs : day_us) / 3600e6;
  }

  // Uses a microsecond that are usual at this time of the day, between the middles of two hours; 0
  // until a whole day has been seen.
  double UsualRate(int64_t now_us, int64_t wall_us) const {
    const double days = static_cast<double>(now_us - first_us) / kDayUs;
    if (uses == 0 || days < 1) return 0;
    const double at = HourOf(wall_us) + static_cast<double>(kHours) - 0.5;
    const auto hour = static_cast<size_t>(at);
    const double share = at - std::floor(at);
    const double rate = by_hour[hour % kHours] * (1 - share) + by_hour[(hour + 1) % kHours] * share;
    return rate / days / 3600e6;
  }
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_USE_HISTORY_H_
