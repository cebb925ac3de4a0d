#include "text/utf8_assembler.h"

#include <utility>

#include "text/unicode.h"

namespace glmd {

std::string Utf8Assembler::push(std::string_view bytes) {
  const std::string text = std::exchange(tail_, {}).append(bytes);
  std::string out;
  out.reserve(text.size());
  for (size_t index = 0; index < text.size();) {
    const DecodedCharacter character = decode_utf8(text, index);
    const std::string_view sequence = std::string_view(text).substr(index, character.bytes);
    if (character.is_cut_off) {
      tail_ = sequence;
      break;
    }
    out += character.is_valid ? sequence : replacement_utf8;
    index += character.bytes;
  }
  return out;
}

std::string Utf8Assembler::finish() {
  return replace_invalid_utf8(std::exchange(tail_, {}));
}

}  // namespace glmd
