// A number with its noun, for messages: "1 layer", "2 layers".
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace glmd {

template <typename Number>
std::string counted(Number number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace glmd
