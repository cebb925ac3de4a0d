// Text out of bytes that arrive in pieces: a token can end inside a code point (an emoji may take
// three tokens), and half a character must not be shown. However the bytes are cut, the joined
// output is that of decoding them at once with replacement. Thread: any; one stream each.
#pragma once

#include <string>
#include <string_view>

namespace glmd {

class Utf8Assembler {
 public:
  // The text that is certain now: an incomplete tail is held back, invalid bytes become U+FFFD.
  std::string push(std::string_view bytes);
  // The end of the stream: an incomplete tail becomes U+FFFD. Starts over.
  std::string finish();

 private:
  std::string tail_;  // an incomplete but so far valid sequence, at most 3 bytes
};

}  // namespace glmd
