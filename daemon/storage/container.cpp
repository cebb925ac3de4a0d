#include "storage/container.h"

#include <algorithm>
#include <set>

#include "platform/file.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "storage/tensor_inventory.h"

namespace glmd {
namespace {

constexpr int64_t config_bytes_max = int64_t{16} << 20;
constexpr int64_t accompanying_bytes_max = int64_t{256} << 20;
constexpr int64_t manifest_bytes_max = int64_t{256} << 20;
constexpr int64_t expert_alignment = 4096;
constexpr int64_t read_piece_bytes = int64_t{32} << 20;  // a third of a second at 100 MB/s

Result<Manifest> read_manifest(const std::string& folder, Json* json_out) {
  const std::string path = folder + "/glmd.json";
  if (!path_exists(path)) {
    return error(ErrorKind::not_found,
                 "{}: no container: wanted glmd.json in it (glmd-convert makes one)", folder);
  }
  Json json = TRY(read_json_file(path, manifest_bytes_max));
  Manifest manifest = TRY(Manifest::parse(json, path));
  if (json_out != nullptr) *json_out = std::move(json);
  return manifest;
}

// What tensors and token ids mean: with another one of these the answers would be wrong.
constexpr const char* binding_names[] = {"config.json", "tokenizer.json"};

bool is_binding(std::string_view name) {
  return std::find(std::begin(binding_names), std::end(binding_names), name) !=
         std::end(binding_names);
}

std::string remedy(std::string_view name) {
  return name == "config.json" ? "; other settings need another conversion of the checkpoint" : "";
}

// Whether a file is still what glmd.json recorded; its text.
Result<std::string> read_recorded(const std::string& folder,
                                  const Manifest::AccompanyingFile& wanted) {
  const std::string path = folder + "/" + wanted.name;
  std::string text = TRY(read_file(path, accompanying_bytes_max));
  const auto bytes = static_cast<int64_t>(text.size());
  if (bytes != wanted.bytes) {
    return error(ErrorKind::corrupt, "{}: changed after the conversion: wanted {} bytes, got {}{}",
                 path, wanted.bytes, bytes, remedy(wanted.name));
  }
  const uint64_t hash = hash_bytes(text);
  if (hash != wanted.hash) {
    return error(ErrorKind::corrupt,
                 "{}: changed after the conversion: checksum: wanted {:016x}, got {:016x}{}", path,
                 wanted.hash, hash, remedy(wanted.name));
  }
  return text;
}

Result<CheckpointConfig> read_checkpoint(const std::string& folder, const Manifest& manifest,
                                         Json& json) {
  const bool has_draft_layer = manifest.has_draft_layer;
  const std::string path = folder + "/config.json";
  if (const Manifest::AccompanyingFile* wanted = manifest.find_accompanying("config.json")) {
    const std::string text = TRY(read_recorded(folder, *wanted));
    json = TRY(parse_json(text, path));
  } else {
    json = TRY(read_json_file(path, config_bytes_max));
  }
  CheckpointConfig config = TRY(CheckpointConfig::parse(json, path));
  const std::string generation_path = folder + "/generation_config.json";
  if (path_exists(generation_path)) {
    const Json generation = TRY(read_json_file(generation_path, config_bytes_max));
    TRY(config.add_generation_config(generation, generation_path));
  }
  if (has_draft_layer && config.draft_layers == 0) {
    return error(ErrorKind::bad_input,
                 "{}: num_nextn_predict_layers: wanted 1 (the container has a draft layer), got 0",
                 path);
  }
  if (!has_draft_layer && config.draft_layers > 0) {
    config.draft_layers = 0;
    config.is_sparse.resize(static_cast<size_t>(config.layers));
    config.indexer_full.resize(static_cast<size_t>(config.layers));
  }
  return config;
}

// A .safetensors file that glmd.json does not name is of another container, or a rest.
Result<void> check_no_extra_files(const std::string& folder, const Manifest& manifest) {
  for (const std::string& name : TRY(list_directory(folder))) {
    if (!name.ends_with(".safetensors")) continue;
    const bool is_listed = std::any_of(manifest.files.begin(), manifest.files.end(),
                                       [&](const auto& file) { return file.name == name; });
    if (!is_listed) {
      return error(ErrorKind::bad_input, "{}/{}: not one of the {} files that glmd.json lists",
                   folder, name, manifest.files.size());
    }
  }
  return {};
}

// The header of one listed file, after its size.
Result<SafetensorsHeader> read_listed_file(const std::string& path, int64_t wanted_bytes) {
  const File file = TRY(File::open_read_only(path));
  TRY(check_is_downloaded(file));
  const int64_t got_bytes = TRY(file.size_bytes());
  if (got_bytes != wanted_bytes) {
    return error(ErrorKind::bad_input, "{}: size: wanted {} bytes, got {}", path, wanted_bytes,
                 got_bytes);
  }
  return read_safetensors_header(file);
}

// Fills in where each tensor lies, for those that glmd.json describes.
Result<void> add_file(const std::string& path, int32_t index, const SafetensorsHeader& header,
                      const Manifest& manifest,
                      std::map<std::string, Tensor, std::less<>>& tensors) {
  for (const StoredTensor& stored : header.tensors) {
    const auto entry = manifest.tensors.find(stored.name);
    if (entry == manifest.tensors.end()) {
      return error(ErrorKind::bad_input, "{}: tensor {}: glmd.json does not know it", path,
                   stored.name);
    }
    const Tensor tensor{.name = stored.name,
                        .layout = entry->second.layout,
                        .format = entry->second.format,
                        .rows = entry->second.rows,
                        .columns = entry->second.columns,
                        .file = index,
                        .offset = stored.offset,
                        .bytes = stored.bytes,
                        .hash = entry->second.hash};
    if (!tensors.emplace(stored.name, tensor).second) {
      return error(ErrorKind::bad_input, "{}: tensor {}: stands in an earlier file too", path,
                   stored.name);
    }
  }
  return {};
}

Result<void> check_tensor(const InventoryEntry& wanted, const Tensor& got,
                          const std::string& path) {
  const auto where = [&] { return fmt::format("{}: tensor {}", path, wanted.name); };
  if (got.layout != wanted.layout) {
    return error(ErrorKind::bad_input, "{}: layout: wanted {}, got {}", where(),
                 layout_name(wanted.layout), layout_name(got.layout));
  }
  if (got.rows != wanted.rows || got.columns != wanted.columns) {
    return error(ErrorKind::bad_input, "{}: shape: wanted [{}, {}], got [{}, {}]", where(),
                 wanted.rows, wanted.columns, got.rows, got.columns);
  }
  if (!layout_allows(wanted.layout, wanted.kind, got.format)) {
    return error(ErrorKind::bad_input, "{}: format: wanted one that {} can have, got {}", where(),
                 layout_name(wanted.layout), format_name(got.format));
  }
  const int64_t bytes = stored_bytes(got.layout, got.format, got.rows, got.columns);
  if (got.bytes != bytes) {
    return error(ErrorKind::bad_input, "{}: wanted {} bytes, got {}", where(), bytes, got.bytes);
  }
  if (got.layout == TensorLayout::expert && got.offset % expert_alignment != 0) {
    return error(ErrorKind::bad_input, "{}: offset: wanted a multiple of {}, got {}", where(),
                 expert_alignment, got.offset);
  }
  return {};
}

Result<void> check_inventory(const Container& container) {
  int64_t known = 0;
  for (const InventoryEntry& wanted : list_tensors(container.checkpoint())) {
    const Tensor* got = container.find(wanted.name);
    if (got == nullptr && wanted.is_optional) continue;
    if (got == nullptr) {
      return error(ErrorKind::bad_input, "{}: tensor {}: missing in all {} files",
                   container.folder(), wanted.name, container.files().size());
    }
    TRY(check_tensor(wanted, *got, container.files()[static_cast<size_t>(got->file)]));
    ++known;
  }
  if (known == static_cast<int64_t>(container.tensors().size())) return {};
  std::set<std::string, std::less<>> names;
  for (const InventoryEntry& wanted : list_tensors(container.checkpoint()))
    names.insert(wanted.name);
  for (const auto& [name, tensor] : container.tensors()) {
    if (!names.contains(name)) {
      return error(ErrorKind::bad_input, "{}: tensor {}: config.json has no use for it",
                   container.files()[static_cast<size_t>(tensor.file)], name);
    }
  }
  return {};
}

Error hash_mismatch(const std::string& path, std::string_view name, uint64_t wanted, uint64_t got) {
  return error(ErrorKind::corrupt, "{}: tensor {}: checksum: wanted {:016x}, got {:016x}", path,
               name, wanted, got);
}

// The checksums of one listed file; every problem becomes a line.
void verify_file(const std::string& path, const Manifest::FileEntry& entry,
                 const Manifest& manifest, std::set<std::string, std::less<>>& seen,
                 std::vector<std::string>& problems) {
  const auto note = [&](const Error& error) { problems.push_back(error.message); };
  const Result<SafetensorsHeader> header = read_listed_file(path, entry.bytes);
  if (!header.ok()) return note(header.error());
  const Result<File> file = File::open_read_only(path);
  if (!file.ok()) return note(file.error());
  std::vector<uint8_t> bytes;
  for (const StoredTensor& tensor : header.value().tensors) {
    const auto known = manifest.tensors.find(tensor.name);
    if (known == manifest.tensors.end()) {
      problems.push_back(
          fmt::format("{}: tensor {}: glmd.json does not know it", path, tensor.name));
      continue;
    }
    seen.insert(tensor.name);
    bytes.resize(static_cast<size_t>(tensor.bytes));
    const Result<void> read = file.value().read_at(tensor.offset, bytes);
    if (!read.ok()) {
      note(read.error());
      continue;
    }
    const uint64_t hash = hash_bytes(bytes);
    if (hash != known->second.hash)
      note(hash_mismatch(path, tensor.name, known->second.hash, hash));
  }
}

}  // namespace

Result<Container> Container::open(const std::string& folder) {
  Container container;
  container.folder_ = folder;
  const Manifest manifest = TRY(read_manifest(folder, &container.manifest_));
  container.checkpoint_ = TRY(read_checkpoint(folder, manifest, container.config_));
  if (const Manifest::AccompanyingFile* wanted = manifest.find_accompanying("tokenizer.json"))
    TRY(read_recorded(folder, *wanted));
  TRY(check_no_extra_files(folder, manifest));
  for (const Manifest::FileEntry& entry : manifest.files) {
    const std::string path = folder + "/" + entry.name;
    const SafetensorsHeader header = TRY(read_listed_file(path, entry.bytes));
    TRY(add_file(path, static_cast<int32_t>(container.files_.size()), header, manifest,
                 container.tensors_));
    container.files_.push_back(path);
  }
  TRY(check_inventory(container));
  for (const auto& [name, entry] : manifest.tensors) {
    if (container.find(name) == nullptr) {
      return error(ErrorKind::bad_input, "{}: tensor {}: glmd.json lists it, no file has it",
                   folder, name);
    }
  }
  container.identity_ = manifest.identity();
  container.is_reference_ = manifest.experts_policy == "exact" && manifest.dense_policy == "exact";
  container.latent_norm_eps_ = manifest.latent_norm_eps;
  return container;
}

bool Container::has_tokenizer() const {
  return path_exists(folder_ + "/tokenizer.json");
}

const Tensor* Container::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<void> Container::read(const Tensor& tensor, std::span<uint8_t> target,
                             const ReadProgress& progress) const {
  CHECK(static_cast<int64_t>(target.size()) == tensor.bytes);
  const std::string& path = files_[static_cast<size_t>(tensor.file)];
  const File file = TRY(File::open_read_only(path));
  for (int64_t begin = 0; begin < tensor.bytes; begin += read_piece_bytes) {
    const int64_t bytes = std::min(read_piece_bytes, tensor.bytes - begin);
    const auto piece = target.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
    TRY_CONTEXT(file.read_at(tensor.offset + begin, piece), "tensor " + tensor.name);
    if (progress) TRY(progress(begin + bytes));
  }
  const uint64_t hash = hash_bytes(target);
  if (hash != tensor.hash) return hash_mismatch(path, tensor.name, tensor.hash, hash);
  return {};
}

std::vector<std::string> Container::verify(const std::string& folder) {
  std::vector<std::string> problems;
  const Result<Manifest> manifest = read_manifest(folder, nullptr);
  if (!manifest.ok()) return {manifest.error().message};
  for (const Manifest::AccompanyingFile& wanted : manifest.value().accompanying) {
    if (!is_binding(wanted.name)) continue;
    const Result<std::string> text = read_recorded(folder, wanted);
    if (!text.ok()) problems.push_back(text.error().message);
  }
  std::set<std::string, std::less<>> seen;
  for (const Manifest::FileEntry& entry : manifest.value().files) {
    verify_file(folder + "/" + entry.name, entry, manifest.value(), seen, problems);
  }
  // With every file sound, what is left to find are tensors and settings that do not fit each
  // other.
  if (problems.empty()) {
    const Result<Container> container = open(folder);
    if (!container.ok()) problems.push_back(container.error().message);
  }
  return problems;
}

std::vector<std::string> Container::changed_texts(const std::string& folder) {
  std::vector<std::string> lines;
  const Result<Manifest> manifest = read_manifest(folder, nullptr);
  if (!manifest.ok() || manifest.value().accompanying.empty()) return lines;
  for (const char* name : accompanying_names) {
    if (is_binding(name)) continue;
    const Manifest::AccompanyingFile* wanted = manifest.value().find_accompanying(name);
    if (wanted != nullptr) {
      const Result<std::string> text = read_recorded(folder, *wanted);
      if (!text.ok()) lines.push_back(text.error().message);
    } else if (path_exists(folder + "/" + name)) {
      lines.push_back(fmt::format("{}/{}: added after the conversion", folder, name));
    }
  }
  return lines;
}

}  // namespace glmd
