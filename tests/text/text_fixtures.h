// What the text tests share: the embedded model's tokeniser, the golden files, and the GLM-4.6
// tokeniser, which is too large for the repository and is used where a copy lies nearby.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "platform/file.h"
#include "platform/json.h"
#include "text/tokenizer.h"

namespace glmd {

inline const std::string mini_tokenizer_path = GLMD_SOURCE_DIR "/models/mini/tokenizer.json";

inline const Tokenizer& mini_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::open(mini_tokenizer_path).value();
  return tokenizer;
}

inline constexpr const char* no_large_tokenizer =
    "no GLM-4.6 tokeniser: set GLMD_TEST_TOKENIZER to its tokenizer.json (HACKING.md)";

// Unpacked by gzip, since nothing of ours reads gzip.
inline std::optional<std::string> read_large_tokenizer() {
  const char* named = std::getenv("GLMD_TEST_TOKENIZER");
  std::string path = named != nullptr ? named : "";
  if (path.empty()) path = GLMD_SOURCE_DIR "/../shared/glm52/glm-4.6-tokenizer.json.gz";
  if (!path_exists(path)) return {};
  const std::string reader = path.ends_with(".gz") ? "gzip -dc '" : "cat '";
  FILE* pipe = popen((reader + path + "'").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  std::vector<char> block(1 << 20);
  while (const size_t count = fread(block.data(), 1, block.size(), pipe)) {
    text.append(block.data(), count);
  }
  return pclose(pipe) == 0 ? std::optional(text) : std::nullopt;
}

// Null where there is no copy.
inline const Tokenizer* large_tokenizer() {
  static const std::optional<Tokenizer> tokenizer = []() -> std::optional<Tokenizer> {
    const std::optional<std::string> text = read_large_tokenizer();
    if (!text) return {};
    return Tokenizer::parse(*text, "GLM-4.6").value();
  }();
  return tokenizer ? &*tokenizer : nullptr;
}

inline Json golden(const std::string& name) {
  return read_json_file(std::string(GLMD_TESTS_DIR "/golden/") + name, 64 << 20).value();
}

inline std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& item : list.items()) ids.push_back(static_cast<int32_t>(item.as_integer()));
  return ids;
}

}  // namespace glmd
