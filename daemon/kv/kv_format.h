// How the keys of attention are kept: the administrator's choice between memory and exactness.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace glmd {

enum class KvFormat : uint8_t { f16, int8 };

constexpr std::array<std::string_view, 2> kv_format_names = {"f16", "int8"};

constexpr std::string_view kv_format_name(KvFormat format) {
  return kv_format_names[static_cast<size_t>(format)];
}

constexpr std::optional<KvFormat> kv_format_from(std::string_view name) {
  for (const KvFormat format : {KvFormat::f16, KvFormat::int8}) {
    if (kv_format_name(format) == name) return format;
  }
  return std::nullopt;
}

}  // namespace glmd
