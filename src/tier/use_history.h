// When a model was used: what predicts when it is used next.
#ifndef TERRACE_TIER_USE_HISTORY_H_
#define TERRACE_TIER_USE_HISTORY_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace terrace::tier {

// Counts what is asked of a model. Where requests are announced (Ask), each is one use. Else uses
// are guessed from accesses (Touch): those within kSameUseUs of a use's begin belong to it, as a
// request touches every segment once a token. Times may be negative: before this process began.
struct UseHistory {
  static constexpr int64_t kSameUseUs = 1'000'000;
  static constexpr size_t kHours = 24;
  static constexpr double kDayUs = 24 * 3600e6;
  static constexpr double kHalfLifeUs = 1800e6;
  // One use within this time may be chance.
  static constexpr double kDoubtUs = 10e6;
  // Uses that tell of a change of pace: by chance they come at twice the usual rate once in a
  // hundred times, and at half of it once in two thousand.
  static constexpr size_t kRecent = 16;
  // At a rate of r a pause of kPause / r comes once in twenty times: longer ones say that the rate
  // is not what it was.
  static constexpr double kPause = 3;

  int64_t last_us = 0;  // last access
  // Of the current or last use and the one before it; K = 2 of LRU-K, for which requests that come
  // together are one.
  int64_t use_began_us = 0;
  int64_t previous_began_us = 0;
  uint64_t uses = 0;
  int64_t first_us = 0;                     // since when uses are counted by hour
  std::array<double, kHours> by_hour = {};  // uses that began in each hour of the day (UTC)
  double weight = 0;                        // uses, each halved every kHalfLifeUs; as of weighed_us
  int64_t weighed_us = 0;
  std::array<int64_t, kRecent> recent_us = {};  // the last uses since this process began, in a ring
  uint64_t seen = 0;                            // how many there were
  bool asked = false;                           // its requests are announced

  // `wall_us`: the same moment since the epoch.
  void Ask(int64_t now_us, int64_t wall_us) {
    asked = true;
    Count(now_us, wall_us);
  }
  void Touch(int64_t now_us, int64_t wall_us) {
    if (!asked && (uses == 0 || now_us - use_began_us > kSameUseUs)) Count(now_us, wall_us);
    last_us = now_us;
  }

  // `weight` at another time.
  double WeightAt(int64_t now_us) const {
    return weight * std::exp2(-static_cast<double>(now_us - weighed_us) / kHalfLifeUs);
  }
  // Uses a microsecond over the last half hour or so, or since the first if that is less (of what
  // has just come for the first time only so much that it is not more than who comes all the time).
  // If the last kRecent uses came at another pace, theirs; and never more than the pause since the
  // last one still allows. So one measure serves a model that is asked for many times a second and
  // one that is asked for by the hour, and both when that changes.
  double RecentRate(int64_t now_us) const {
    if (uses == 0) return 0;
    const double halves = std::max(0.0, static_cast<double>(now_us - first_us)) / kHalfLifeUs;
    const double seen_us = kHalfLifeUs / std::log(2.0) * (1 - std::exp2(-halves));
    double rate = WeightAt(std::max(now_us, weighed_us)) / (seen_us + kDoubtUs);
    if (seen >= kRecent) {
      const int64_t took_us = std::max<int64_t>(1, now_us - recent_us[seen % kRecent]);
      const double pace = static_cast<double>(kRecent) / static_cast<double>(took_us);
      if (pace > 2 * rate || pace < rate / 2) rate = pace;
    }
    const auto pause_us = static_cast<double>(now_us - std::max(last_us, weighed_us));
    return pause_us > 0 ? std::min(rate, kPause / pause_us) : rate;
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

 private:
  void Count(int64_t now_us, int64_t wall_us) {
    if (uses == 0) first_us = last_us = now_us;
    if (uses == 0 || now_us - use_began_us > kSameUseUs) {
      previous_began_us = use_began_us;
      use_began_us = now_us;
    }
    weight = WeightAt(now_us) + 1;
    weighed_us = now_us;
    ++uses;
    recent_us[seen++ % kRecent] = now_us;
    by_hour[static_cast<size_t>(HourOf(wall_us))] += 1;
  }
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_USE_HISTORY_H_
