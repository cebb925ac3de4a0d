// Finds the stop strings of a request in text that arrives in pieces, and lets no part of them out:
// text that may still become a stop string is held back until it is certain. The match that is
// complete first wins, since generation ends there; of several that are complete at the same byte,
// the longest. How the text is cut makes no difference. Thread: any; one stream each.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace glmd {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings never match

  // The text that is certain now. After a match: nothing, whatever comes.
  std::string push(std::string_view text);
  // The end of the stream: what was held back, since no stop string completed it.
  std::string finish();

  bool is_stopped() const { return matched_.has_value(); }
  std::optional<size_t> matched() const { return matched_; }  // index of the stop string found

 private:
  // Knuth, Morris and Pratt: how many bytes of the stop string the text ends in, and where to go on
  // when the next byte does not fit.
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [text.size()], longest proper border of each prefix
    size_t matched_bytes = 0;
  };

  static void advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;  // not yet released; ends where the stream ends now
  std::optional<size_t> matched_;
};

}  // namespace glmd
