#include "text/stop_strings.h"

#include <algorithm>

namespace terrace {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    Stop stop;
    stop.failure.assign(text.size(), 0);
    for (size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = stop.failure[border - 1];
      if (text[i] == text[border]) ++border;
      stop.failure[i] = static_cast<uint32_t>(border);
    }
    stop.text = std::move(text);
    stops_.push_back(std::move(stop));
  }
}

std::string StopMatcher::Append(std::string_view piece) {
  if (stopped()) return "";
  for (size_t i = 0; i < piece.size(); ++i) {
    size_t longest = 0;
    for (size_t s = 0; s < stops_.size(); ++s) {
      Stop& stop = stops_[s];
      if (stop.text.empty()) continue;
      while (stop.state > 0 && piece[i] != stop.text[stop.state]) {
        stop.state = stop.failure[stop.state - 1];
      }
      if (piece[i] == stop.text[stop.state]) ++stop.state;
      if (stop.state == stop.text.size() && stop.text.size() > longest) {
        longest = stop.text.size();
        matched_ = static_cast<int>(s);
      }
    }
    if (!stopped()) continue;
    held_ += piece.substr(0, i + 1);
    std::string out = held_.substr(0, held_.size() - longest);
    held_.clear();
    return out;
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max<size_t>(keep, stop.state);
  held_ += piece;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::Finish() {
  for (Stop& stop : stops_) stop.state = 0;
  std::string out = std::move(held_);
  held_.clear();
  return out;
}

}  // namespace terrace
