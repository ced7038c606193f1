// What an attempt to pin a segment, or to find room for it, comes to at once.
#ifndef TERRACE_TIER_ATTEMPT_H_
#define TERRACE_TIER_ATTEMPT_H_

#include <cstdint>
#include <memory>

#include "tier/handles.h"
#include "tier/page_table.h"

namespace terrace::tier {

// A pin; a load the caller now waits for; or a load on its way out, after which it tries again.
struct Attempt {
  Pin pin;
  std::shared_ptr<Load> joined;
  std::shared_ptr<Load> leaving;
};

// Whether bytes that cannot be had now can be had without anybody's leave: never, once others let
// go of their pins, or when loads under way have ended.
enum class RoomHope : uint8_t { kNone, kIfUnpinned, kSoon };

}  // namespace terrace::tier

#endif  // TERRACE_TIER_ATTEMPT_H_
