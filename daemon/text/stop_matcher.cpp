#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace glmd {

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    Stop stop{.text = std::move(text), .fallback = {}};
    stop.fallback.assign(stop.text.size(), 0);
    size_t border = 0;
    for (size_t i = 1; i < stop.text.size(); ++i) {
      while (border > 0 && stop.text[i] != stop.text[border]) border = stop.fallback[border - 1];
      if (stop.text[i] == stop.text[border]) ++border;
      stop.fallback[i] = border;
    }
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::advance(Stop& stop, char byte) {
  if (stop.text.empty()) return;
  size_t& matched = stop.matched_bytes;
  while (matched > 0 && stop.text[matched] != byte) matched = stop.fallback[matched - 1];
  if (stop.text[matched] == byte) ++matched;
}

std::string StopMatcher::push(std::string_view text) {
  if (is_stopped()) return {};
  for (const char byte : text) {
    held_ += byte;
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      advance(stop, byte);
      if (stop.text.empty() || stop.matched_bytes < stop.text.size()) continue;
      if (!matched_ || stop.text.size() > stops_[*matched_].text.size()) matched_ = i;
    }
    if (matched_) {
      held_.resize(held_.size() - stops_[*matched_].text.size());
      return std::exchange(held_, {});
    }
  }
  size_t kept_bytes = 0;
  for (const Stop& stop : stops_) kept_bytes = std::max(kept_bytes, stop.matched_bytes);
  std::string released = held_.substr(0, held_.size() - kept_bytes);
  held_.erase(0, released.size());
  return released;
}

std::string StopMatcher::finish() {
  for (Stop& stop : stops_) stop.matched_bytes = 0;
  return std::exchange(held_, {});
}

}  // namespace glmd
