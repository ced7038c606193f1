// Faults that a build may plant on purpose, to show that the simulator would find them. A normal
// build defines none of these macros and has none of the faults.
#ifndef TERRACE_TIER_PLANTED_H_
#define TERRACE_TIER_PLANTED_H_

namespace terrace::tier {

#ifdef TERRACE_PLANT_SKIP_CHECKSUM
inline constexpr bool kPlantSkipChecksum = true;
#else
inline constexpr bool kPlantSkipChecksum = false;
#endif

#ifdef TERRACE_PLANT_DOUBLE_RELEASE
inline constexpr bool kPlantDoubleRelease = true;
#else
inline constexpr bool kPlantDoubleRelease = false;
#endif

#ifdef TERRACE_PLANT_EVICT_PINNED
inline constexpr bool kPlantEvictPinned = true;
#else
inline constexpr bool kPlantEvictPinned = false;
#endif

}  // namespace terrace::tier

#endif  // TERRACE_TIER_PLANTED_H_
