#include "text/special_matcher.h"

namespace terrace {

void SpecialMatcher::Add(std::string_view spelling, int32_t id) {
  if (spelling.empty()) return;
  first_[static_cast<uint8_t>(spelling[0])] = true;
  uint32_t node = 0;
  for (char c : spelling) {
    auto [at, inserted] = children_.try_emplace(Key(node, c), static_cast<uint32_t>(ids_.size()));
    if (inserted) ids_.push_back(-1);
    node = at->second;
  }
  ids_[node] = id;
}

}  // namespace terrace
