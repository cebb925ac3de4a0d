#include "storage/checkpoint_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace glmd {
namespace {

constexpr int64_t size_max = int64_t{1} << 20;
constexpr int64_t count_max = int64_t{1} << 16;
constexpr int64_t layers_max = 1024;
constexpr int64_t experts_max = int64_t{1} << 18;  // of all layers together
constexpr int64_t token_max = (int64_t{1} << 24) - 1;

const Json* present(const Json& config, std::string_view name) {
  const Json* value = config.find(name);
  return value != nullptr && value->is_null() ? nullptr : value;
}

// Reads the members of one object; the first error stays and later reads answer with the fallback.
class Reader {
 public:
  Reader(const Json& config, std::string_view what) : config_(config), what_(what) {}

  int64_t integer(std::string_view name, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = std::nullopt) {
    const Json* value = present(config_, name);
    if (value == nullptr && fallback) return *fallback;
    const bool is_good = value != nullptr && value->is_integer() && value->as_integer() >= low &&
                         value->as_integer() <= high;
    if (is_good) return value->as_integer();
    fail(name, fmt::format("an integer from {} to {}", low, high), value);
    return low;
  }

  double real(std::string_view name, double low, double high,
              std::optional<double> fallback = std::nullopt) {
    const Json* value = present(config_, name);
    if (value == nullptr && fallback) return *fallback;
    if (value != nullptr && value->is_number() && value->as_real() > low && value->as_real() < high)
      return value->as_real();
    fail(name, fmt::format("a number between {} and {}", low, high), value);
    return 1;
  }

  bool boolean(std::string_view name, bool fallback) {
    const Json* value = present(config_, name);
    if (value == nullptr) return fallback;
    if (value->is_boolean()) return value->as_boolean();
    fail(name, "true or false", value);
    return fallback;
  }

  // What we can run only with one value: absent means that value.
  void require(std::string_view name, const Json& wanted) {
    const Json* value = present(config_, name);
    if (value == nullptr || value->to_string() == wanted.to_string()) return;
    fail(name, fmt::format("{} (nothing else can be run)", wanted.to_string()), value);
  }

  void fail(std::string_view name, std::string_view wanted, const Json* got) {
    if (!error_) error_ = wrong_value(what_, name, wanted, got);
  }

  bool failed() const { return error_.has_value(); }
  Error take_error() { return std::move(*error_); }

 private:
  const Json& config_;
  std::string_view what_;
  std::optional<Error> error_;
};

// Newer checkpoints nest theta in rope_parameters; older ones have it at the top, beside
// rope_scaling.
void read_rope(const Json& config, Reader& reader, CheckpointConfig& out) {
  const Json* scaling = present(config, "rope_scaling");
  const Json* parameters = present(config, "rope_parameters");
  for (const Json* object : {scaling, parameters}) {
    if (object == nullptr) continue;
    const std::string_view name = object == scaling ? "rope_scaling" : "rope_parameters";
    if (!object->is_object()) return reader.fail(name, "an object", object);
    for (const char* type_name : {"rope_type", "type"}) {
      const Json* type = present(*object, type_name);
      if (type != nullptr && (!type->is_string() || type->as_string() != "default")) {
        return reader.fail(fmt::format("{}.{}", name, type_name),
                           "\"default\" (no other can be run)", type);
      }
    }
  }
  if (parameters != nullptr && present(*parameters, "rope_theta") != nullptr) {
    const Json* theta = present(*parameters, "rope_theta");
    if (!theta->is_number() || !(theta->as_real() >= 1 && theta->as_real() < 1e15))
      return reader.fail("rope_parameters.rope_theta", "a number from 1 to 1e15", theta);
    out.rope_theta = theta->as_real();
    return;
  }
  out.rope_theta = reader.real("rope_theta", 0.999, 1e15);
}

void read_layer_kinds(const Json& config, Reader& reader, CheckpointConfig& out) {
  const int64_t first_dense = reader.integer("first_k_dense_replace", 0, size_max, 3);
  const Json* kinds = present(config, "mlp_layer_types");
  if (kinds == nullptr) reader.require("moe_layer_freq", Json::integer(1));
  if (kinds != nullptr &&
      (!kinds->is_array() || static_cast<int64_t>(kinds->items().size()) != out.layers)) {
    return reader.fail("mlp_layer_types", fmt::format("a list of {} kinds", out.layers), kinds);
  }
  for (int64_t layer = 0; layer < out.layers; ++layer) {
    if (kinds == nullptr) {
      out.is_sparse.push_back(layer >= first_dense);
      continue;
    }
    const Json& kind = kinds->items()[static_cast<size_t>(layer)];
    const bool is_known =
        kind.is_string() && (kind.as_string() == "dense" || kind.as_string() == "sparse");
    if (!is_known) {
      return reader.fail(fmt::format("mlp_layer_types[{}]", layer), "\"dense\" or \"sparse\"",
                         &kind);
    }
    out.is_sparse.push_back(kind.as_string() == "sparse");
  }
  if (out.draft_layers > 0) out.is_sparse.push_back(true);
}

// `index_topk_pattern` is "FSSF" or a list like `indexer_types`; either in the words of the latter.
std::optional<Json> indexer_types_of_pattern(const Json& pattern) {
  if (!pattern.is_string()) return pattern;
  std::vector<Json> types;
  for (const char letter : pattern.as_string()) {
    if (letter != 'F' && letter != 'S') return std::nullopt;
    types.push_back(Json::string(letter == 'F' ? "full" : "shared"));
  }
  return Json::array(std::move(types));
}

// Which layers own an indexer: listed, or by a pattern, or by frequency and offset; in that order.
void read_indexer_types(const Json& config, Reader& reader, CheckpointConfig& out) {
  std::string_view name = "indexer_types";
  const Json* types = present(config, name);
  std::optional<Json> from_pattern;
  if (types == nullptr && present(config, "index_topk_pattern") != nullptr) {
    name = "index_topk_pattern";
    types = present(config, name);
    from_pattern = indexer_types_of_pattern(*types);
    if (!from_pattern) return reader.fail(name, "letters F (full) and S (shared)", types);
    types = &*from_pattern;
  }
  const int64_t frequency = reader.integer("index_topk_freq", 1, layers_max, 1);
  const int64_t offset = reader.integer("index_skip_topk_offset", 0, layers_max, 2);
  if (types != nullptr &&
      (!types->is_array() || static_cast<int64_t>(types->items().size()) != out.layers)) {
    return reader.fail(name, fmt::format("a list of {} kinds", out.layers), types);
  }
  for (int64_t layer = 0; layer < out.layers; ++layer) {
    if (types == nullptr) {
      out.indexer_full.push_back(std::max<int64_t>(layer - offset + 1, 0) % frequency == 0);
      continue;
    }
    const Json& type = types->items()[static_cast<size_t>(layer)];
    const bool is_known =
        type.is_string() && (type.as_string() == "full" || type.as_string() == "shared");
    if (!is_known) {
      return reader.fail(fmt::format("{}[{}]", name, layer), "\"full\" or \"shared\"", &type);
    }
    out.indexer_full.push_back(type.as_string() == "full");
  }
  if (!out.indexer_full.empty() && !out.indexer_full[0]) {
    const Json shared = Json::string("shared");
    return reader.fail(fmt::format("{}[0]", name),
                       "\"full\": the first layer has nobody to share with", &shared);
  }
  if (out.draft_layers > 0) out.indexer_full.push_back(true);
}

bool is_block_side(const Json& side) {
  return side.is_integer() && side.as_integer() >= 1 && side.as_integer() <= size_max;
}

Result<void> read_block(const Json& object, std::string_view name, std::string_view what,
                        CheckpointConfig& out) {
  const Json* block = present(object, name);
  const bool is_good = block != nullptr && block->is_array() && block->items().size() == 2 &&
                       std::all_of(block->items().begin(), block->items().end(), is_block_side);
  if (!is_good) return wrong_value(what, name, "two integers from 1", block);
  out.scale_block_rows = block->items()[0].as_integer();
  out.scale_block_columns = block->items()[1].as_integer();
  return {};
}

// Of one group: FP8 with a scale for each block, output channel or tensor. Absent, `type` would be
// int.
Result<void> read_weight_scheme(const Json& weights, std::string_view what, CheckpointConfig& out) {
  const Json* type = present(weights, "type");
  if (type == nullptr || type->to_string() != "\"float\"")
    return wrong_value(what, "type", "\"float\" (nothing else can be run)", type);
  Reader reader(weights, what);
  reader.require("num_bits", Json::integer(8));
  reader.require("symmetric", Json::boolean(true));
  reader.require("dynamic", Json::boolean(false));
  if (reader.failed()) return reader.take_error();
  const Json* strategy = present(weights, "strategy");
  const std::string name =
      strategy != nullptr && strategy->is_string() ? strategy->as_string() : "";
  if (name == "block") return read_block(weights, "block_structure", what, out);
  if (name != "channel" && name != "tensor")
    return wrong_value(what, "strategy", "\"block\", \"channel\" or \"tensor\"", strategy);
  out.scale_block_rows = name == "channel" ? 1 : CheckpointConfig::scale_block_whole;
  out.scale_block_columns = CheckpointConfig::scale_block_whole;
  return {};
}

// What changes weights besides their scales, or stores them otherwise, is refused by its name. How
// activations and keys were to be quantised says nothing of the weights.
Result<void> read_compressed_tensors(const Json& quantization, const std::string& what,
                                     CheckpointConfig& out) {
  Reader reader(quantization, what);
  reader.require("format", Json::string("float-quantized"));
  reader.require("transform_config", Json::object());
  if (reader.failed()) return reader.take_error();
  const Json* sparsity = present(quantization, "sparsity_config");
  if (sparsity != nullptr && sparsity->is_object()) {
    const std::string where = what + ": sparsity_config";
    Reader sparsity_reader(*sparsity, where);
    sparsity_reader.require("format", Json::string("dense"));
    if (sparsity_reader.failed()) return sparsity_reader.take_error();
  }
  const Json* groups = present(quantization, "config_groups");
  if (groups == nullptr || !groups->is_object() || groups->members().empty())
    return wrong_value(what, "config_groups", "an object with groups", groups);
  std::optional<std::pair<int64_t, int64_t>> block;
  for (const auto& [name, group] : groups->members()) {
    const std::string where = fmt::format("{}: config_groups.{}", what, name);
    const Json* weights = group.is_object() ? present(group, "weights") : nullptr;
    if (weights == nullptr || !weights->is_object())
      return wrong_value(where, "weights", "an object", weights);
    Reader group_reader(group, where);
    group_reader.require("format", Json::string("float-quantized"));
    if (group_reader.failed()) return group_reader.take_error();
    TRY(read_weight_scheme(*weights, where + ".weights", out));
    const std::pair own(out.scale_block_rows, out.scale_block_columns);
    if (block && *block != own)
      return wrong_value(where, "weights", "the strategy of the other groups", weights);
    block = own;
  }
  return {};
}

Result<void> read_quantization(const Json& config, std::string_view what, CheckpointConfig& out) {
  const Json* quantization = present(config, "quantization_config");
  if (quantization == nullptr) return {};
  if (!quantization->is_object())
    return wrong_value(what, "quantization_config", "an object", quantization);
  const std::string where = fmt::format("{}: quantization_config", what);
  const Json* method = present(*quantization, "quant_method");
  const std::string name = method == nullptr     ? "fp8"
                           : method->is_string() ? method->as_string()
                                                 : "";
  if (name == "compressed-tensors") return read_compressed_tensors(*quantization, where, out);
  if (name != "fp8")
    return wrong_value(where, "quant_method", "\"fp8\" or \"compressed-tensors\"", method);
  if (present(*quantization, "weight_block_size") == nullptr) return {};
  return read_block(*quantization, "weight_block_size", where, out);
}

// eos_token_id is an id or a list of ids.
Result<void> add_stop_tokens(const Json& config, std::string_view what, int64_t vocabulary,
                             std::vector<int32_t>& stop_tokens) {
  const Json* ids = present(config, "eos_token_id");
  if (ids == nullptr) return {};
  const std::vector<Json> one = {ids->is_array() ? Json() : *ids};
  for (const Json& id : ids->is_array() ? ids->items() : one) {
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() >= vocabulary) {
      return error(ErrorKind::bad_input, "{}: eos_token_id: wanted ids from 0 to {}, got {}", what,
                   vocabulary - 1, shown(&id));
    }
    stop_tokens.push_back(static_cast<int32_t>(id.as_integer()));
  }
  std::sort(stop_tokens.begin(), stop_tokens.end());
  stop_tokens.erase(std::unique(stop_tokens.begin(), stop_tokens.end()), stop_tokens.end());
  return {};
}

void check_consistency(Reader& reader, const CheckpointConfig& out) {
  const auto number = [](int64_t value) { return Json::integer(value); };
  if (out.qk_rope_head_dim % 2 != 0) {
    const Json got = number(out.qk_rope_head_dim);
    reader.fail("qk_rope_head_dim", "an even number", &got);
  }
  if (out.index_head_dim < out.qk_rope_head_dim) {
    const Json got = number(out.index_head_dim);
    reader.fail("index_head_dim", fmt::format("at least qk_rope_head_dim {}", out.qk_rope_head_dim),
                &got);
  }
  if (out.experts_per_token > out.n_routed_experts) {
    const Json got = number(out.experts_per_token);
    reader.fail("num_experts_per_tok",
                fmt::format("at most n_routed_experts {}", out.n_routed_experts), &got);
  }
  if (out.n_routed_experts * out.all_layers() > experts_max) {
    const Json got = number(out.n_routed_experts);
    reader.fail("n_routed_experts", fmt::format("at most {} in all layers", experts_max), &got);
  }
  if (out.n_routed_experts % out.n_group != 0 ||
      (out.n_group > 1 && out.n_routed_experts / out.n_group < 2)) {
    const Json got = number(out.n_group);
    reader.fail("n_group",
                fmt::format("a divisor of n_routed_experts {} with two or more a group",
                            out.n_routed_experts),
                &got);
  }
  if (out.topk_group > out.n_group) {
    const Json got = number(out.topk_group);
    reader.fail("topk_group", fmt::format("at most n_group {}", out.n_group), &got);
  }
  if (out.experts_per_token > out.topk_group * (out.n_routed_experts / out.n_group)) {
    const Json got = number(out.experts_per_token);
    reader.fail("num_experts_per_tok", "no more than the experts of topk_group groups", &got);
  }
}

}  // namespace

Result<CheckpointConfig> CheckpointConfig::parse(const Json& config, std::string_view what) {
  if (!config.is_object())
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", what, shown(&config));
  const Json* type = present(config, "model_type");
  if (type == nullptr || !type->is_string() || type->as_string() != "glm_moe_dsa") {
    return error(ErrorKind::bad_input, "{}: model_type: wanted \"glm_moe_dsa\", got {}", what,
                 shown(type));
  }
  CheckpointConfig out;
  Reader reader(config, what);
  out.family = type->as_string();
  out.hidden_size = reader.integer("hidden_size", 1, size_max);
  out.layers = reader.integer("num_hidden_layers", 1, layers_max);
  out.draft_layers = reader.integer("num_nextn_predict_layers", 0, 1, 0);
  out.vocabulary = reader.integer("vocab_size", 1, token_max + 1);
  out.max_position = reader.integer("max_position_embeddings", 1, (int64_t{1} << 31) - 1);
  out.heads = reader.integer("num_attention_heads", 1, 4096);
  out.q_lora_rank = reader.integer("q_lora_rank", 1, size_max);
  out.kv_lora_rank = reader.integer("kv_lora_rank", 1, size_max);
  out.qk_nope_head_dim = reader.integer("qk_nope_head_dim", 1, count_max);
  out.qk_rope_head_dim = reader.integer("qk_rope_head_dim", 2, count_max);
  out.v_head_dim = reader.integer("v_head_dim", 1, count_max);
  out.rms_norm_eps = reader.real("rms_norm_eps", 0, 1);
  out.intermediate_size = reader.integer("intermediate_size", 1, size_max);
  out.moe_intermediate_size = reader.integer("moe_intermediate_size", 1, size_max);
  out.n_routed_experts = reader.integer("n_routed_experts", 1, count_max);
  out.n_shared_experts = reader.integer("n_shared_experts", 1, 256);
  out.experts_per_token = reader.integer("num_experts_per_tok", 1, 1024);
  out.n_group = reader.integer("n_group", 1, count_max, 1);
  out.topk_group = reader.integer("topk_group", 1, count_max, 1);
  out.norm_topk_prob = reader.boolean("norm_topk_prob", true);
  out.routed_scaling_factor = reader.real("routed_scaling_factor", 0, 1e6);
  out.index_n_heads = reader.integer("index_n_heads", 1, 4096);
  out.index_head_dim = reader.integer("index_head_dim", 1, count_max);
  out.index_topk = reader.integer("index_topk", 1, (int64_t{1} << 31) - 1);
  reader.require("hidden_act", Json::string("silu"));
  reader.require("scoring_func", Json::string("sigmoid"));
  reader.require("topk_method", Json::string("noaux_tc"));
  reader.require("attention_bias", Json::boolean(false));
  reader.require("tie_word_embeddings", Json::boolean(false));
  reader.require("rope_interleave", Json::boolean(true));
  reader.require("indexer_rope_interleave", Json::boolean(true));
  if (reader.failed()) return reader.take_error();
  read_rope(config, reader, out);
  read_layer_kinds(config, reader, out);
  read_indexer_types(config, reader, out);
  check_consistency(reader, out);
  if (reader.failed()) return reader.take_error();
  TRY(read_quantization(config, what, out));
  TRY(add_stop_tokens(config, what, out.vocabulary, out.stop_tokens));
  return out;
}

Result<void> CheckpointConfig::add_generation_config(const Json& generation_config,
                                                     std::string_view what) {
  if (!generation_config.is_object()) {
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", what,
                 shown(&generation_config));
  }
  return add_stop_tokens(generation_config, what, vocabulary, stop_tokens);
}

}  // namespace glmd
