#include "storage/container.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "platform/aligned_memory.h"
#include "platform/file.h"
#include "storage/checksum.h"
#include "storage/safetensors.h"

namespace glmd {
namespace {

constexpr int64_t small_file_bytes_max = 64 << 20;
constexpr int64_t manifest_bytes_max = 512 << 20;

constexpr std::string_view layout_names[] = {"matrix", "gate_up", "embedding", "vector", "expert"};
constexpr std::string_view format_names[] = {"f32", "f16", "bf16", "q8", "nl5", "nl4"};

void add_layer(const CheckpointConfig& config, int64_t layer, std::vector<TensorSpec>& specs) {
  const auto add = [&](std::string_view name, TensorLayout layout, int64_t rows, int64_t columns) {
    specs.push_back({.name = fmt::format("layers.{}.{}", layer, name),
                     .layout = layout,
                     .rows = rows,
                     .columns = columns,
                     .layer = layer});
  };
  const auto vector = [&](std::string_view name, int64_t size) {
    add(name, TensorLayout::vector, 1, size);
  };
  const auto matrix = [&](std::string_view name, int64_t rows, int64_t columns) {
    add(name, TensorLayout::matrix, rows, columns);
  };
  vector("input_norm", config.hidden);
  vector("post_attention_norm", config.hidden);
  matrix("attention.q_a", config.q_lora_rank, config.hidden);
  vector("attention.q_a_norm", config.q_lora_rank);
  matrix("attention.q_b", config.heads * (config.qk_nope_head_dim + config.qk_rope_head_dim),
         config.q_lora_rank);
  matrix("attention.kv_a", config.kv_lora_rank + config.qk_rope_head_dim, config.hidden);
  vector("attention.kv_a_norm", config.kv_lora_rank);
  matrix("attention.k_b", config.heads * config.kv_lora_rank, config.qk_nope_head_dim);
  matrix("attention.v_b", config.heads * config.v_head_dim, config.kv_lora_rank);
  matrix("attention.o", config.hidden, config.heads * config.v_head_dim);
  if (config.indexer_full[layer]) {
    matrix("indexer.q_b", config.index_heads * config.index_head_dim, config.q_lora_rank);
    matrix("indexer.k", config.index_head_dim, config.hidden);
    vector("indexer.k_norm", config.index_head_dim);
    vector("indexer.k_norm_bias", config.index_head_dim);
    matrix("indexer.weights", config.index_heads, config.hidden);
  }
  if (!config.is_sparse[layer]) {
    add("mlp.gate_up", TensorLayout::gate_up, config.intermediate, config.hidden);
    matrix("mlp.down", config.hidden, config.intermediate);
    return;
  }
  matrix("router", config.routed_experts, config.hidden);
  vector("router_bias", config.routed_experts);
  const int64_t shared_width = config.moe_intermediate * config.shared_experts;
  add("shared.gate_up", TensorLayout::gate_up, shared_width, config.hidden);
  matrix("shared.down", config.hidden, shared_width);
  for (int64_t expert = 0; expert < config.routed_experts; ++expert) {
    add(fmt::format("experts.{}", expert), TensorLayout::expert, config.moe_intermediate,
        config.hidden);
  }
}

}  // namespace

std::vector<TensorSpec> tensor_inventory(const CheckpointConfig& config, bool with_draft_layer) {
  std::vector<TensorSpec> specs;
  specs.push_back({"embedding", TensorLayout::embedding, config.vocabulary, config.hidden});
  specs.push_back({"norm", TensorLayout::vector, 1, config.hidden});
  specs.push_back({"head", TensorLayout::matrix, config.vocabulary, config.hidden});
  for (int64_t layer = 0; layer < config.layers; ++layer) add_layer(config, layer, specs);
  if (!with_draft_layer) return specs;
  const int64_t draft = config.layers;
  add_layer(config, draft, specs);
  const auto add = [&](std::string_view name, TensorLayout layout, int64_t rows, int64_t columns,
                       bool is_optional) {
    specs.push_back(
        {fmt::format("layers.{}.{}", draft, name), layout, rows, columns, draft, is_optional});
  };
  add("embedding_norm", TensorLayout::vector, 1, config.hidden, false);
  add("hidden_norm", TensorLayout::vector, 1, config.hidden, false);
  add("eh_proj", TensorLayout::matrix, config.hidden, 2 * config.hidden, false);
  add("head_norm", TensorLayout::vector, 1, config.hidden, false);
  add("embedding", TensorLayout::embedding, config.vocabulary, config.hidden, true);
  add("head", TensorLayout::matrix, config.vocabulary, config.hidden, true);
  return specs;
}

int64_t tensor_bytes(TensorLayout layout, BlockFormat format, int64_t rows, int64_t columns) {
  switch (layout) {
    case TensorLayout::matrix:
      return matrix_bytes(format, rows, columns);
    case TensorLayout::gate_up:
      return gate_up_bytes(format, rows, columns);
    case TensorLayout::embedding:
      return rows * embedding_row_bytes(format, columns);
    case TensorLayout::vector:
      return rows * columns * 4;
    case TensorLayout::expert:
      return expert_bytes(format, rows, columns);
  }
  return 0;
}

std::string_view name_of(TensorLayout layout) {
  return layout_names[static_cast<int>(layout)];
}
std::string_view name_of(BlockFormat format) {
  return format_names[static_cast<int>(format)];
}

std::optional<TensorLayout> layout_of(std::string_view name) {
  const auto found = std::find(std::begin(layout_names), std::end(layout_names), name);
  if (found == std::end(layout_names)) return std::nullopt;
  return static_cast<TensorLayout>(found - std::begin(layout_names));
}

std::optional<BlockFormat> format_of(std::string_view name) {
  const auto found = std::find(std::begin(format_names), std::end(format_names), name);
  if (found == std::end(format_names)) return std::nullopt;
  return static_cast<BlockFormat>(found - std::begin(format_names));
}

namespace {

bool format_fits(TensorLayout layout, BlockFormat format) {
  if (layout == TensorLayout::vector) return format == BlockFormat::f32;
  if (layout == TensorLayout::embedding) return format <= BlockFormat::q8;
  return true;
}

Result<uint64_t> parse_hash(const Json* json, const std::string& what) {
  if (json != nullptr && json->is_string() && json->as_string().size() == 16) {
    uint64_t hash = 0;
    bool is_hex = true;
    for (const char digit : json->as_string()) {
      const size_t value = std::string_view("0123456789abcdef").find(digit);
      is_hex = is_hex && value != std::string_view::npos;
      hash = hash * 16 + value;
    }
    if (is_hex) return hash;
  }
  return error(ErrorKind::bad_input, "{}: hash: wanted 16 hexadecimal digits", what);
}

// One entry of glmd.json's tensors, held against what the configuration asks for.
Result<Tensor> parse_entry(const std::string& what, const TensorSpec& spec, const Json& json,
                           const std::vector<std::string>& files) {
  Tensor tensor;
  tensor.name = spec.name;
  const auto text = [&](std::string_view member) -> std::string_view {
    const Json* value = json.find(member);
    return value != nullptr && value->is_string() ? std::string_view(value->as_string())
                                                  : std::string_view();
  };
  const std::optional<TensorLayout> layout = layout_of(text("layout"));
  const std::optional<BlockFormat> format = format_of(text("format"));
  if (!layout || *layout != spec.layout) {
    return error(ErrorKind::bad_input, "{}: layout: wanted {}, got \"{}\"", what,
                 name_of(spec.layout), text("layout"));
  }
  if (!format || !format_fits(*layout, *format)) {
    return error(ErrorKind::bad_input, "{}: format: \"{}\" cannot be used for a {}", what,
                 text("format"), name_of(*layout));
  }
  const Json* rows = json.find("rows");
  const Json* columns = json.find("columns");
  const auto is = [](const Json* value, int64_t wanted) {
    return value != nullptr && value->is_integer() && value->as_integer() == wanted;
  };
  if (!is(rows, spec.rows) || !is(columns, spec.columns)) {
    return error(ErrorKind::bad_input, "{}: shape: config.json wants [{}, {}], got [{}, {}]", what,
                 spec.rows, spec.columns, rows == nullptr ? "none" : rows->to_string(),
                 columns == nullptr ? "none" : columns->to_string());
  }
  const auto file = std::find_if(files.begin(), files.end(), [&](const std::string& path) {
    return path.substr(path.rfind('/') + 1) == text("file");
  });
  if (file == files.end()) {
    return error(ErrorKind::bad_input, "{}: file \"{}\" is not in the container's list", what,
                 text("file"));
  }
  tensor.layout = *layout;
  tensor.format = *format;
  tensor.rows = spec.rows;
  tensor.columns = spec.columns;
  tensor.file = static_cast<int32_t>(file - files.begin());
  tensor.hash = TRY(parse_hash(json.find("hash"), what));
  return tensor;
}

Result<void> check_manifest(const std::string& path, const Json& manifest) {
  const Json* version = manifest.find("format_version");
  if (version == nullptr || !version->is_integer()) {
    return error(ErrorKind::bad_input, "{}: format_version: wanted an integer", path);
  }
  if (version->as_integer() != container_format_version) {
    return error(
        ErrorKind::bad_input,
        "{}: format version {}: this program reads version {}; convert the checkpoint again with "
        "its glmd-convert",
        path, version->to_string(), container_format_version);
  }
  const auto is_ours = [&](std::string_view name, std::span<const int8_t> table) {
    const Json* stored = manifest.find(name);
    if (stored == nullptr || !stored->is_array() || stored->items().size() != table.size()) {
      return false;
    }
    for (size_t i = 0; i < table.size(); ++i) {
      const Json& entry = stored->items()[i];
      if (!entry.is_integer() || entry.as_integer() != table[i]) return false;
    }
    return true;
  };
  if (!is_ours("nl4_table", nl4_table) || !is_ours("nl5_table", nl5_table)) {
    return error(ErrorKind::bad_input,
                 "{}: nl4_table or nl5_table is not the one this program computes with", path);
  }
  return {};
}

std::string joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += (all.empty() ? "" : "; ") + line;
  return all;
}

}  // namespace

Result<Container> Container::open(const std::string& folder) {
  Container container;
  container.folder_ = folder;
  const std::string manifest_path = folder + "/glmd.json";
  if (!path_exists(manifest_path)) {
    return error(
        path_exists(folder) ? ErrorKind::bad_input : ErrorKind::not_found,
        "{}: no container here: glmd.json is missing{}", folder,
        path_exists(folder + "/config.json") ? " (a checkpoint? glmd-convert makes it one)" : "");
  }
  container.manifest_ = TRY(read_json_file(manifest_path, manifest_bytes_max));
  const Json& manifest = container.manifest_;
  TRY(check_manifest(manifest_path, manifest));
  container.config_ = TRY(read_json_file(folder + "/config.json", small_file_bytes_max));
  container.checkpoint_ = TRY(CheckpointConfig::parse(container.config_, folder + "/config.json"));
  if (path_exists(folder + "/generation_config.json")) {
    const std::string path = folder + "/generation_config.json";
    const Json generation = TRY(read_json_file(path, small_file_bytes_max));
    TRY(add_eos_ids(generation, path, container.checkpoint_.vocabulary,
                    container.checkpoint_.eos_ids));
  }

  const Json* eps = manifest.find("latent_norm_eps");
  if (eps == nullptr || !eps->is_number() || !(eps->as_real() >= 0 && eps->as_real() <= 1)) {
    return error(ErrorKind::bad_input, "{}: latent_norm_eps: wanted a number from 0 to 1",
                 manifest_path);
  }
  container.latent_norm_eps_ = eps->as_real();
  const Json* reference = manifest.find("reference");
  container.is_reference_ =
      reference != nullptr && reference->is_boolean() && reference->as_boolean();

  // Every file, named at once where some are missing.
  const Json* file_list = manifest.find("files");
  if (file_list == nullptr || !file_list->is_array()) {
    return error(ErrorKind::bad_input, "{}: files: wanted a list", manifest_path);
  }
  std::vector<std::string> missing;
  std::map<std::string, StoredTensor, std::less<>> stored;
  std::map<std::string, std::string, std::less<>> stored_in;
  for (const Json& name : file_list->items()) {
    if (!name.is_string() || name.as_string().find('/') != std::string::npos) {
      return error(ErrorKind::bad_input, "{}: files: {} is no file name", manifest_path,
                   name.to_string());
    }
    container.files_.push_back(folder + "/" + name.as_string());
    if (!path_exists(container.files_.back())) missing.push_back(name.as_string());
  }
  if (!missing.empty()) {
    return error(ErrorKind::bad_input, "{}: {} of {} files are missing: {}", folder, missing.size(),
                 container.files_.size(), joined(missing));
  }
  for (const std::string& path : container.files_) {
    const File file = TRY(File::open_read_only(path));
    const std::vector<StoredTensor> tensors = TRY(read_safetensors_header(file));
    for (const StoredTensor& tensor : tensors) {
      if (!stored.emplace(tensor.name, tensor).second) {
        return error(ErrorKind::bad_input, "{}: tensor {} stands in two files", path, tensor.name);
      }
      stored_in[tensor.name] = path;
    }
  }

  const Json* entries = manifest.find("tensors");
  if (entries == nullptr || !entries->is_object()) {
    return error(ErrorKind::bad_input, "{}: tensors: wanted an object", manifest_path);
  }
  std::map<std::string_view, const Json*> entry_of;
  for (const auto& [name, entry] : entries->members()) entry_of[name] = &entry;
  const CheckpointConfig& config = container.checkpoint_;
  container.has_draft_layer_ = config.draft_layers == 1 &&
                               entry_of.contains(fmt::format("layers.{}.eh_proj", config.layers));
  for (const TensorSpec& spec : tensor_inventory(config, container.has_draft_layer_)) {
    const auto entry = entry_of.find(spec.name);
    const auto found = stored.find(spec.name);
    if (entry == entry_of.end() || found == stored.end()) {
      if (spec.is_optional && entry == entry_of.end() && found == stored.end()) continue;
      return error(ErrorKind::bad_input, "{}: tensor {} is missing from {}", folder, spec.name,
                   entry == entry_of.end() ? "glmd.json" : "the files");
    }
    const std::string what = fmt::format("{}: tensor {}", manifest_path, spec.name);
    Tensor tensor = TRY(parse_entry(what, spec, *entry->second, container.files_));
    const StoredTensor& bytes = found->second;
    tensor.offset = bytes.offset;
    tensor.bytes = tensor_bytes(tensor.layout, tensor.format, tensor.rows, tensor.columns);
    if (bytes.bytes != tensor.bytes || stored_in[spec.name] != container.files_[tensor.file]) {
      return error(ErrorKind::bad_input, "{}: wanted {} bytes in {}, got {} in {}", what,
                   tensor.bytes, container.files_[tensor.file], bytes.bytes, stored_in[spec.name]);
    }
    if (tensor.layout == TensorLayout::expert && tensor.offset % 4096 != 0) {
      return error(ErrorKind::bad_input, "{}: offset {}: wanted a multiple of 4096", what,
                   tensor.offset);
    }
    container.tensors_.emplace(spec.name, std::move(tensor));
  }
  if (container.tensors_.size() != stored.size() || container.tensors_.size() != entry_of.size()) {
    return error(ErrorKind::bad_input,
                 "{}: wanted {} tensors, got {} in the files and {} in glmd.json", folder,
                 container.tensors_.size(), stored.size(), entry_of.size());
  }

  std::string hashes;
  for (const auto& [name, tensor] : container.tensors_) {
    hashes += fmt::format("{} {:016x}\n", name, tensor.hash);
  }
  container.identity_ = checksum({reinterpret_cast<const uint8_t*>(hashes.data()), hashes.size()});
  return container;
}

bool Container::has_tokenizer() const {
  return path_exists(folder_ + "/tokenizer.json");
}

const Tensor* Container::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<void> Container::read(const Tensor& tensor, std::span<uint8_t> target, bool verify) const {
  CHECK(static_cast<int64_t>(target.size()) == tensor.bytes);
  const File file = TRY(File::open_read_only(files_[tensor.file]));
  TRY_CONTEXT(file.read_at(tensor.offset, target), fmt::format("tensor {}", tensor.name));
  if (verify && checksum(target) != tensor.hash) {
    return error(ErrorKind::corrupt,
                 "{}: tensor {}: checksum of {} bytes at {}: wanted {:016x}, got {:016x}",
                 files_[tensor.file], tensor.name, tensor.bytes, tensor.offset, tensor.hash,
                 checksum(target));
  }
  return {};
}

std::vector<std::string> Container::verify() const {
  std::vector<std::string> faults;
  std::vector<uint8_t> bytes;
  for (const auto& [name, tensor] : tensors_) {
    bytes.resize(static_cast<size_t>(tensor.bytes));
    const Result<void> result = read(tensor, bytes);
    if (!result.ok()) faults.push_back(result.error().message);
  }
  return faults;
}

}  // namespace glmd
