// For whom bytes move over a link, and how a link is divided among those.
#ifndef TERRACE_TIER_LINK_CLASS_H_
#define TERRACE_TIER_LINK_CLASS_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace terrace::tier {

// The class of the most urgent request that needs the bytes; kAhead: nobody asks for them yet
// (predictions, write-back, scrubbing).
enum class LinkClass : uint8_t { kRealtime, kStandard, kBatch, kAhead };

inline constexpr size_t kLinkClassCount = 4;

// While several classes have bytes waiting for a link, each gets bytes in proportion to its share;
// a share that one does not use is the others'. REQUIRES: all above 0.
struct LinkShares {
  std::array<double, kLinkClassCount> of = {100, 25, 5, 1};

  double operator[](LinkClass each) const { return of[static_cast<size_t>(each)]; }
  double& operator[](LinkClass each) { return of[static_cast<size_t>(each)]; }
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_LINK_CLASS_H_
