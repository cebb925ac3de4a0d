#include "storage/checkpoint_config.h"

#include <algorithm>
#include <cmath>

namespace glmd {
namespace {

// Reads members of one object; the first thing wrong is kept.
class Reader {
 public:
  Reader(const Json& json, std::string_view what) : json_(json), what_(what) {}

  int64_t integer(std::string_view name, int64_t least, int64_t most) {
    const Json* value = json_.find(name);
    if (value == nullptr || value->is_null()) return missing(name), least;
    return checked(name, *value, least, most);
  }
  int64_t integer_or(std::string_view name, int64_t fallback, int64_t least, int64_t most) {
    const Json* value = json_.find(name);
    return value == nullptr || value->is_null() ? fallback : checked(name, *value, least, most);
  }
  double real_or(std::string_view name, double fallback, double least, double most) {
    const Json* value = json_.find(name);
    if (value == nullptr || value->is_null()) return fallback;
    if (!value->is_number() || !(value->as_real() >= least && value->as_real() <= most)) {
      fail(error(ErrorKind::bad_input, "{}: {}: wanted a number from {} to {}, got {}", what_, name,
                 least, most, value->to_string()));
      return fallback;
    }
    return value->as_real();
  }
  bool boolean_or(std::string_view name, bool fallback) {
    const Json* value = json_.find(name);
    if (value == nullptr || value->is_null()) return fallback;
    if (!value->is_boolean()) {
      fail(error(ErrorKind::bad_input, "{}: {}: wanted true or false, got {}", what_, name,
                 value->to_string()));
      return fallback;
    }
    return value->as_boolean();
  }
  // A member that may be absent but has only one value that we can run.
  void only(std::string_view name, std::string_view wanted_json) {
    const Json* value = json_.find(name);
    if (value == nullptr || value->is_null() || value->to_string() == wanted_json) return;
    fail(error(ErrorKind::bad_input, "{}: {}: only {} can be run, got {}", what_, name, wanted_json,
               value->to_string()));
  }
  const Json* find(std::string_view name) const { return json_.find(name); }
  void fail(Error why) {
    if (!error_) error_ = std::move(why);
  }
  const std::optional<Error>& first_error() const { return error_; }

 private:
  void missing(std::string_view name) {
    fail(error(ErrorKind::bad_input, "{}: {} is missing", what_, name));
  }
  int64_t checked(std::string_view name, const Json& value, int64_t least, int64_t most) {
    if (!value.is_integer() || value.is_unsigned_above_int64() || value.as_integer() < least ||
        value.as_integer() > most) {
      fail(error(ErrorKind::bad_input, "{}: {}: wanted an integer from {} to {}, got {}", what_,
                 name, least, most, value.to_string()));
      return least;
    }
    return value.as_integer();
  }

  const Json& json_;
  std::string what_;
  std::optional<Error> error_;
};

// Which layers are sparse: mlp_layer_types, else the first first_k_dense_replace are dense.
void read_layer_kinds(Reader& reader, std::string_view what, CheckpointConfig& config) {
  const Json* types = reader.find("mlp_layer_types");
  if (types == nullptr || types->is_null()) {
    const int64_t dense = reader.integer_or("first_k_dense_replace", 0, 0, config.layers);
    for (int64_t layer = 0; layer < config.layers; ++layer)
      config.is_sparse.push_back(layer >= dense);
    return;
  }
  if (!types->is_array() || static_cast<int64_t>(types->items().size()) != config.layers) {
    return reader.fail(
        error(ErrorKind::bad_input, "{}: mlp_layer_types: wanted a list of {}, got {}", what,
              config.layers,
              types->is_array() ? std::to_string(types->items().size()) : types->to_string()));
  }
  for (const Json& type : types->items()) {
    const bool is_sparse = type.is_string() && type.as_string() == "sparse";
    if (!is_sparse && !(type.is_string() && type.as_string() == "dense")) {
      return reader.fail(error(ErrorKind::bad_input,
                               "{}: mlp_layer_types: wanted \"dense\" or \"sparse\", got {}", what,
                               type.to_string()));
    }
    config.is_sparse.push_back(is_sparse);
  }
}

// Which layers own an indexer: indexer_types wins, else the rule of GLM52 1.2 (DECISIONS 9).
void read_indexer_kinds(Reader& reader, std::string_view what, CheckpointConfig& config) {
  const Json* types = reader.find("indexer_types");
  if (types == nullptr || types->is_null()) {
    const int64_t freq = reader.integer_or("index_topk_freq", 1, 1, 1 << 20);
    const int64_t offset = reader.integer_or("index_skip_topk_offset", 2, 0, 1 << 20);
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      config.indexer_full.push_back(std::max<int64_t>(layer - offset + 1, 0) % freq == 0);
    }
  } else {
    if (!types->is_array() || static_cast<int64_t>(types->items().size()) != config.layers) {
      return reader.fail(
          error(ErrorKind::bad_input, "{}: indexer_types: wanted a list of {}, got {}", what,
                config.layers,
                types->is_array() ? std::to_string(types->items().size()) : types->to_string()));
    }
    for (const Json& type : types->items()) {
      const bool is_full = type.is_string() && type.as_string() == "full";
      if (!is_full && !(type.is_string() && type.as_string() == "shared")) {
        return reader.fail(error(ErrorKind::bad_input,
                                 "{}: indexer_types: wanted \"full\" or \"shared\", got {}", what,
                                 type.to_string()));
      }
      config.indexer_full.push_back(is_full);
    }
  }
  if (!config.indexer_full.empty() && !config.indexer_full.front()) {
    reader.fail(error(
        ErrorKind::bad_input,
        "{}: indexer_types: layer 0 is \"shared\", it has no earlier layer to share with", what));
  }
}

void read_rope(Reader& reader, std::string_view what, CheckpointConfig& config) {
  const Json* nested = reader.find("rope_parameters");
  if (nested == nullptr || nested->is_null()) {
    config.rope_theta = reader.real_or("rope_theta", 10000, 1, 1e15);
    reader.only("rope_scaling", "null");
    return;
  }
  if (!nested->is_object()) {
    return reader.fail(error(ErrorKind::bad_input, "{}: rope_parameters: wanted an object, got {}",
                             what, nested->to_string()));
  }
  Reader inner(*nested, std::string(what) + ": rope_parameters");
  config.rope_theta = inner.real_or("rope_theta", 10000, 1, 1e15);
  inner.only("rope_type", "\"default\"");
  if (inner.first_error()) reader.fail(*inner.first_error());
}

void read_fp8_blocks(Reader& reader, std::string_view what, CheckpointConfig& config) {
  const Json* quantisation = reader.find("quantization_config");
  if (quantisation == nullptr || quantisation->is_null()) return;
  const Json* block = quantisation->find("weight_block_size");
  if (block == nullptr || block->is_null()) return;
  const auto is_size = [](const Json& size) {
    return size.is_integer() && size.as_integer() >= 1 && size.as_integer() <= (1 << 20);
  };
  if (!block->is_array() || block->items().size() != 2 || !is_size(block->items()[0]) ||
      !is_size(block->items()[1])) {
    return reader.fail(error(ErrorKind::bad_input,
                             "{}: quantization_config.weight_block_size: wanted two sizes, got {}",
                             what, block->to_string()));
  }
  config.fp8_block_rows = block->items()[0].as_integer();
  config.fp8_block_columns = block->items()[1].as_integer();
}

}  // namespace

Result<void> add_eos_ids(const Json& json, std::string_view what, int64_t vocabulary,
                         std::vector<int32_t>& eos_ids) {
  const Json* value = json.find("eos_token_id");
  if (value == nullptr || value->is_null()) return {};
  const std::vector<Json> ids = value->is_array() ? value->items() : std::vector<Json>{*value};
  for (const Json& id : ids) {
    if (!id.is_integer() || id.as_integer() < 0 || id.as_integer() >= vocabulary) {
      return error(ErrorKind::bad_input, "{}: eos_token_id: wanted ids below {}, got {}", what,
                   vocabulary, id.to_string());
    }
    const auto number = static_cast<int32_t>(id.as_integer());
    if (std::find(eos_ids.begin(), eos_ids.end(), number) == eos_ids.end()) {
      eos_ids.push_back(number);
    }
  }
  return {};
}

Result<CheckpointConfig> CheckpointConfig::parse(const Json& json, std::string_view what) {
  if (!json.is_object()) return error(ErrorKind::bad_input, "{}: wanted a JSON object", what);
  constexpr int64_t width_max = 1 << 20;  // of any vector: keeps every product of two far from 2^63
  Reader reader(json, what);
  CheckpointConfig config;

  reader.only("model_type", "\"glm_moe_dsa\"");
  if (json.find("model_type") == nullptr) {
    reader.fail(
        error(ErrorKind::bad_input, "{}: model_type: wanted \"glm_moe_dsa\", got none", what));
  }
  config.hidden = reader.integer("hidden_size", 1, width_max);
  config.layers = reader.integer("num_hidden_layers", 1, 1000);
  config.draft_layers = reader.integer_or("num_nextn_predict_layers", 0, 0, 1);
  config.vocabulary = reader.integer("vocab_size", 2, 1 << 24);
  config.max_position = reader.integer_or("max_position_embeddings", 1 << 20, 1, 1 << 24);
  config.rms_norm_eps = reader.real_or("rms_norm_eps", 1e-5, 0, 1);

  config.heads = reader.integer("num_attention_heads", 1, 4096);
  config.q_lora_rank = reader.integer("q_lora_rank", 1, width_max);
  config.kv_lora_rank = reader.integer("kv_lora_rank", 1, width_max);
  config.qk_nope_head_dim = reader.integer("qk_nope_head_dim", 1, 65536);
  config.qk_rope_head_dim = reader.integer("qk_rope_head_dim", 2, 65536);
  config.v_head_dim = reader.integer("v_head_dim", 1, 65536);
  if (config.qk_rope_head_dim % 2 != 0) {
    reader.fail(error(ErrorKind::bad_input, "{}: qk_rope_head_dim: wanted an even number, got {}",
                      what, config.qk_rope_head_dim));
  }

  config.intermediate = reader.integer("intermediate_size", 1, width_max);
  config.moe_intermediate = reader.integer("moe_intermediate_size", 1, width_max);
  config.routed_experts = reader.integer("n_routed_experts", 1, 65536);
  config.shared_experts = reader.integer("n_shared_experts", 1, 64);
  config.experts_per_token = reader.integer("num_experts_per_tok", 1, config.routed_experts);
  config.expert_groups = reader.integer_or("n_group", 1, 1, config.routed_experts);
  config.expert_groups_kept = reader.integer_or("topk_group", 1, 1, config.expert_groups);
  config.norm_topk_prob = reader.boolean_or("norm_topk_prob", true);
  config.routed_scaling_factor =
      static_cast<float>(reader.real_or("routed_scaling_factor", 1, 1e-6, 1e6));
  if (config.routed_experts % config.expert_groups != 0) {
    reader.fail(error(ErrorKind::bad_input, "{}: n_group: wanted a divisor of {} experts, got {}",
                      what, config.routed_experts, config.expert_groups));
  } else if (config.routed_experts / config.expert_groups * config.expert_groups_kept <
             config.experts_per_token) {
    reader.fail(
        error(ErrorKind::bad_input,
              "{}: topk_group: {} groups of {} experts are fewer than the {} chosen per token",
              what, config.expert_groups_kept, config.routed_experts / config.expert_groups,
              config.experts_per_token));
  }

  config.index_heads = reader.integer("index_n_heads", 1, 4096);
  config.index_head_dim = reader.integer("index_head_dim", 1, 65536);
  config.index_topk = reader.integer("index_topk", 1, 1 << 24);
  if (config.index_head_dim < config.qk_rope_head_dim) {
    reader.fail(error(ErrorKind::bad_input,
                      "{}: index_head_dim: wanted at least qk_rope_head_dim {}, got {}", what,
                      config.qk_rope_head_dim, config.index_head_dim));
  }

  reader.only("hidden_act", "\"silu\"");
  reader.only("scoring_func", "\"sigmoid\"");
  reader.only("topk_method", "\"noaux_tc\"");
  reader.only("attention_bias", "false");
  reader.only("tie_word_embeddings", "false");
  reader.only("rope_interleave", "true");
  reader.only("indexer_rope_interleave", "true");
  reader.only("moe_layer_freq", "1");
  reader.only("index_topk_pattern", "null");
  if (!reader.first_error()) {
    read_layer_kinds(reader, what, config);
    read_indexer_kinds(reader, what, config);
    read_rope(reader, what, config);
    read_fp8_blocks(reader, what, config);
  }
  if (reader.first_error()) return *reader.first_error();
  if (config.draft_layers == 1) {  // block num_hidden_layers is sparse and owns an indexer
    config.is_sparse.push_back(true);
    config.indexer_full.push_back(true);
  }
  TRY(add_eos_ids(json, what, config.vocabulary, config.eos_ids));
  return config;
}

}  // namespace glmd
