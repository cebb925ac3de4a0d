#include "storage/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "storage/safetensors.h"
#include "storage/tensor_inventory.h"

namespace glmd {
namespace {

template <size_t count>
Json table_json(const int8_t (&table)[count]) {
  std::vector<Json> items;
  for (const int8_t entry : table) items.push_back(Json::integer(entry));
  return Json::array(std::move(items));
}

Json tables_json() {
  return Json::object({{"nl4", table_json(nl4_table)}, {"nl5", table_json(nl5_table)}});
}

Result<std::string> read_string(const Json& json, std::string_view name, std::string_view what) {
  const Json* value = json.find(name);
  if (value == nullptr || !value->is_string()) return wrong_value(what, name, "a string", value);
  return value->as_string();
}

Result<int64_t> read_size(const Json& json, std::string_view name, std::string_view what) {
  const Json* value = json.find(name);
  if (value == nullptr || !value->is_integer() || value->as_integer() < 0)
    return wrong_value(what, name, "a size", value);
  return value->as_integer();
}

// A file's name, of this folder and no other.
bool is_file_name(const std::string& name) {
  return name.size() > 12 && name.ends_with(".safetensors") && name[0] != '.' &&
         name.find('/') == std::string::npos && name.size() <= 200 &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return static_cast<unsigned char>(c) > 0x20 && c != 0x7f; });
}

Result<Manifest::TensorEntry> read_tensor(const Json& json, const std::string& what) {
  Manifest::TensorEntry entry;
  if (!json.is_object())
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", what, shown(&json));
  const std::string layout = TRY(read_string(json, "layout", what));
  const std::string format = TRY(read_string(json, "format", what));
  bool layout_known = false, format_known = false;
  for (int i = 0; i <= static_cast<int>(TensorLayout::expert); ++i) {
    if (layout != layout_name(static_cast<TensorLayout>(i))) continue;
    entry.layout = static_cast<TensorLayout>(i);
    layout_known = true;
  }
  for (int i = 0; i < block_format_count; ++i) {
    if (format != format_name(static_cast<BlockFormat>(i))) continue;
    entry.format = static_cast<BlockFormat>(i);
    format_known = true;
  }
  if (!layout_known) return wrong_value(what, "layout", "a known layout", json.find("layout"));
  if (!format_known)
    return wrong_value(what, "format", "a known block format", json.find("format"));
  entry.rows = TRY(read_size(json, "rows", what));
  entry.columns = TRY(read_size(json, "columns", what));
  const std::optional<uint64_t> hash = parse_hash(json.find("hash"));
  if (!hash) return wrong_value(what, "hash", "16 hexadecimal digits", json.find("hash"));
  entry.hash = *hash;
  return entry;
}

Result<void> read_files(const Json& json, std::string_view what, Manifest& manifest) {
  const Json* files = json.find("files");
  if (files == nullptr || !files->is_array() || files->items().empty() ||
      files->items().size() > 100000)
    return wrong_value(what, "files", "a list of files", files);
  for (const Json& item : files->items()) {
    if (!item.is_object()) return wrong_value(what, "files", "objects", &item);
    Manifest::FileEntry entry;
    entry.name = TRY(read_string(item, "name", what));
    entry.bytes = TRY(read_size(item, "bytes", what));
    if (!is_file_name(entry.name))
      return wrong_value(what, "files: name", "the name of a .safetensors file", item.find("name"));
    for (const auto& other : manifest.files) {
      if (other.name == entry.name) return wrong_value(what, "files", "each file once", &item);
    }
    manifest.files.push_back(std::move(entry));
  }
  return {};
}

// Absent in older containers.
Result<void> read_accompanying(const Json& json, std::string_view what, Manifest& manifest) {
  const Json* list = json.find("accompanying");
  if (list == nullptr) return {};
  if (!list->is_array()) return wrong_value(what, "accompanying", "a list of files", list);
  for (const Json& item : list->items()) {
    if (!item.is_object()) return wrong_value(what, "accompanying", "objects", &item);
    Manifest::AccompanyingFile file;
    file.name = TRY(read_string(item, "name", what));
    file.bytes = TRY(read_size(item, "bytes", what));
    const std::optional<uint64_t> hash = parse_hash(item.find("hash"));
    if (!hash)
      return wrong_value(what, "accompanying: hash", "16 hexadecimal digits", item.find("hash"));
    file.hash = *hash;
    const bool is_known = std::any_of(std::begin(accompanying_names), std::end(accompanying_names),
                                      [&](const char* name) { return file.name == name; });
    if (!is_known)
      return wrong_value(what, "accompanying: name", "one that we take over", item.find("name"));
    if (manifest.find_accompanying(file.name) != nullptr)
      return wrong_value(what, "accompanying", "each file once", &item);
    manifest.accompanying.push_back(std::move(file));
  }
  return {};
}

Result<void> read_version(const Json& json, std::string_view what) {
  const Json* version = json.find("format_version");
  if (version == nullptr || !version->is_integer())
    return wrong_value(what, "format_version", "an integer", version);
  if (version->as_integer() == Container::format_version) return {};
  return error(ErrorKind::bad_input,
               "{}: container has format version {}, this glmd reads format version {}; {}", what,
               version->to_string(), Container::format_version,
               version->as_integer() > Container::format_version
                   ? "use a newer glmd"
                   : "convert the checkpoint again with glmd-convert");
}

}  // namespace

uint64_t hash_bytes(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t hash_bytes(std::string_view text) {
  return XXH3_64bits(text.data(), text.size());
}

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::optional<uint64_t> parse_hash(const Json* value) {
  if (value == nullptr || !value->is_string() || value->as_string().size() != 16) return {};
  const std::string& text = value->as_string();
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + 16, number, 16);
  if (code != std::errc() || end != text.data() + 16) return {};
  return number;
}

const Manifest::AccompanyingFile* Manifest::find_accompanying(std::string_view name) const {
  const auto found = std::find_if(accompanying.begin(), accompanying.end(),
                                  [&](const AccompanyingFile& file) { return file.name == name; });
  return found == accompanying.end() ? nullptr : &*found;
}

uint64_t Manifest::identity() const {
  std::string text;
  for (const auto& [name, entry] : tensors)
    text += fmt::format("{} {}\n", name, hash_text(entry.hash));
  return hash_bytes(text);
}

Json Manifest::to_json() const {
  std::vector<Json> file_items;
  for (const FileEntry& file : files) {
    file_items.push_back(
        Json::object({{"name", Json::string(file.name)}, {"bytes", Json::integer(file.bytes)}}));
  }
  std::vector<Json> accompanying_items;
  for (const AccompanyingFile& file : accompanying) {
    accompanying_items.push_back(Json::object({{"name", Json::string(file.name)},
                                               {"bytes", Json::integer(file.bytes)},
                                               {"hash", Json::string(hash_text(file.hash))}}));
  }
  std::vector<Json::Member> tensor_members;
  for (const auto& [name, entry] : tensors) {
    tensor_members.emplace_back(name,
                                Json::object({{"layout", Json::string(layout_name(entry.layout))},
                                              {"format", Json::string(format_name(entry.format))},
                                              {"rows", Json::integer(entry.rows)},
                                              {"columns", Json::integer(entry.columns)},
                                              {"hash", Json::string(hash_text(entry.hash))}}));
  }
  return Json::object({{"format_version", Json::integer(Container::format_version)},
                       {"family", Json::string(family)},
                       {"identity", Json::string(hash_text(identity()))},
                       {"policy", Json::object({{"experts", Json::string(experts_policy)},
                                                {"dense", Json::string(dense_policy)}})},
                       {"source", source},
                       {"latent_norm_eps", Json::real(latent_norm_eps)},
                       {"draft_layer", Json::boolean(has_draft_layer)},
                       {"tables", tables_json()},
                       {"accompanying", Json::array(std::move(accompanying_items))},
                       {"files", Json::array(std::move(file_items))},
                       {"tensors", Json::object(std::move(tensor_members))}});
}

Result<Manifest> Manifest::parse(const Json& json, std::string_view what) {
  if (!json.is_object())
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", what, shown(&json));
  TRY(read_version(json, what));
  Manifest manifest;
  manifest.family = TRY(read_string(json, "family", what));
  if (manifest.family != "glm_moe_dsa")
    return wrong_value(what, "family", "\"glm_moe_dsa\"", json.find("family"));
  const Json* policy = json.find("policy");
  if (policy == nullptr || !policy->is_object())
    return wrong_value(what, "policy", "an object", policy);
  manifest.experts_policy = TRY(read_string(*policy, "experts", what));
  manifest.dense_policy = TRY(read_string(*policy, "dense", what));
  const Json* epsilon = json.find("latent_norm_eps");
  if (epsilon == nullptr || !epsilon->is_number() ||
      !(epsilon->as_real() > 0 && epsilon->as_real() < 1))
    return wrong_value(what, "latent_norm_eps", "a number between 0 and 1", epsilon);
  manifest.latent_norm_eps = epsilon->as_real();
  const Json* draft = json.find("draft_layer");
  if (draft == nullptr || !draft->is_boolean())
    return wrong_value(what, "draft_layer", "true or false", draft);
  manifest.has_draft_layer = draft->as_boolean();
  const Json* tables = json.find("tables");
  if (tables == nullptr || tables->to_string() != tables_json().to_string())
    return wrong_value(what, "tables", "the nl4 and nl5 tables of this glmd", tables);
  if (const Json* source = json.find("source")) manifest.source = *source;
  TRY(read_accompanying(json, what, manifest));
  TRY(read_files(json, what, manifest));

  const Json* tensors = json.find("tensors");
  if (tensors == nullptr || !tensors->is_object())
    return wrong_value(what, "tensors", "an object", tensors);
  for (const auto& [name, entry] : tensors->members()) {
    if (!is_tensor_name(name)) {
      const Json got = Json::string(name);
      return wrong_value(what, "tensors", "printable names", &got);
    }
    const std::string where = fmt::format("{}: tensor {}", what, name);
    if (!manifest.tensors.emplace(name, TRY(read_tensor(entry, where))).second)
      return error(ErrorKind::bad_input, "{}: stands twice", where);
  }
  const std::optional<uint64_t> identity = parse_hash(json.find("identity"));
  if (!identity || *identity != manifest.identity()) {
    const Json wanted = Json::string(hash_text(manifest.identity()));
    return wrong_value(what, "identity", wanted.to_string() + " (of the tensors' hashes)",
                       json.find("identity"));
  }
  return manifest;
}

}  // namespace glmd
