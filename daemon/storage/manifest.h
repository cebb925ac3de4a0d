// glmd.json: what a container says about itself. The converter writes it, Container reads it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/json.h"
#include "platform/result.h"
#include "storage/container.h"

namespace glmd {

struct Manifest {
  struct FileEntry {
    std::string name;  // no folder in it
    int64_t bytes = 0;
  };
  // A file of the checkpoint that lies beside the tensors, as it was when the container was made.
  struct AccompanyingFile {
    std::string name;  // one of accompanying_names
    int64_t bytes = 0;
    uint64_t hash = 0;  // XXH3-64
  };
  struct TensorEntry {
    TensorLayout layout = TensorLayout::matrix;
    BlockFormat format = BlockFormat::f32;
    int64_t rows = 0, columns = 0;
    uint64_t hash = 0;
  };

  std::string family;
  std::string experts_policy, dense_policy;
  double latent_norm_eps = 1e-5;
  bool has_draft_layer = false;
  Json source;  // name, revision, files: for people
  std::vector<FileEntry> files;
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::vector<AccompanyingFile> accompanying;  // empty in a container of before they were recorded

  const AccompanyingFile* find_accompanying(std::string_view name) const;
  // A hash over the sorted names and hashes of the tensors.
  uint64_t identity() const;

  Json to_json() const;
  // Refuses another format version by its number, and tables other than ours.
  static Result<Manifest> parse(const Json& json, std::string_view what);
};

// What is taken over from a checkpoint as it is, where it has it.
inline constexpr const char* accompanying_names[] = {"config.json", "generation_config.json",
                                                     "tokenizer.json", "tokenizer_config.json",
                                                     "chat_template.jinja"};

// XXH3-64.
uint64_t hash_bytes(std::span<const uint8_t> bytes);
uint64_t hash_bytes(std::string_view text);
std::string hash_text(uint64_t hash);                   // 16 hexadecimal digits
std::optional<uint64_t> parse_hash(const Json* value);  // of such a text

}  // namespace glmd
