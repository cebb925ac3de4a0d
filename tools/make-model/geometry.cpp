#include "tools/make-model/geometry.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "storage/checkpoint_config.h"

namespace glmd {
namespace {

constexpr int64_t config_bytes_max = int64_t{16} << 20;

struct Preset {
  const char* name;
  const char* config;
};

// glm52-slice: GLM-5.2's own widths; of its 78 layers one dense, one sparse with an indexer and one
// sparse without.
constexpr Preset presets[] = {{"glm52-slice", R"({
  "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 3,
  "num_nextn_predict_layers": 0, "vocab_size": 154880, "max_position_embeddings": 1048576,
  "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
  "qk_rope_head_dim": 64, "v_head_dim": 256, "rms_norm_eps": 1e-5,
  "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"},
  "intermediate_size": 12288, "moe_intermediate_size": 2048, "n_routed_experts": 256,
  "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
  "norm_topk_prob": true, "routed_scaling_factor": 2.5, "index_n_heads": 32,
  "index_head_dim": 128, "index_topk": 2048, "eos_token_id": [154820, 154827, 154829],
  "mlp_layer_types": ["dense", "sparse", "sparse"],
  "indexer_types": ["full", "full", "shared"]})"}};

Result<Json> read_config(const GeometryOptions& options) {
  if (!options.config_path.empty()) return read_json_file(options.config_path, config_bytes_max);
  for (const Preset& preset : presets) {
    if (options.preset == preset.name) return parse_json(preset.config, preset.name);
  }
  return error(ErrorKind::usage, "--preset: wanted one of {}, got \"{}\"",
               fmt::join(preset_names(), ", "), options.preset);
}

Result<void> set_layers(const std::vector<std::string>& layers, Json& config) {
  std::vector<Json> kinds, indexers;
  bool has_draft = false;
  for (const std::string& layer : layers) {
    const std::string_view suffix = ":shared";
    const bool is_shared = layer.ends_with(suffix);
    const std::string kind = layer.substr(0, layer.size() - (is_shared ? suffix.size() : 0));
    const bool is_draft = kind == "draft" && !is_shared && &layer == &layers.back();
    if (!is_draft && kind != "dense" && kind != "moe") {
      return error(ErrorKind::usage,
                   "--layers: wanted dense, moe, dense:shared or moe:shared, and draft at the end, "
                   "got \"{}\"",
                   layer);
    }
    has_draft = is_draft;
    if (is_draft) continue;
    kinds.push_back(Json::string(kind == "moe" ? "sparse" : "dense"));
    indexers.push_back(Json::string(is_shared ? "shared" : "full"));
  }
  config.set("num_hidden_layers", Json::integer(static_cast<int64_t>(kinds.size())));
  config.set("num_nextn_predict_layers", Json::integer(has_draft ? 1 : 0));
  config.set("mlp_layer_types", Json::array(std::move(kinds)));
  config.set("indexer_types", Json::array(std::move(indexers)));
  return {};
}

void set_vocabulary(int64_t vocabulary, Json& config) {
  config.set("vocab_size", Json::integer(vocabulary));
  const Json* stops = config.find("eos_token_id");
  if (stops == nullptr) return;
  std::vector<Json> kept;
  for (const Json& id : stops->is_array() ? stops->items() : std::vector<Json>{*stops}) {
    if (!id.is_integer() || id.as_integer() < vocabulary) kept.push_back(id);
  }
  config.set("eos_token_id", Json::array(std::move(kept)));
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets) names.emplace_back(preset.name);
  return names;
}

Result<Json> make_config(const GeometryOptions& options) {
  Json config = TRY(read_config(options));
  const std::string what = options.config_path.empty() ? options.preset : options.config_path;
  if (!config.is_object()) {
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", what,
                 config.to_string().substr(0, 60));
  }
  if (!options.layers.empty()) TRY(set_layers(options.layers, config));
  if (options.experts) config.set("n_routed_experts", Json::integer(*options.experts));
  if (options.vocabulary) set_vocabulary(*options.vocabulary, config);
  TRY(CheckpointConfig::parse(config, what));
  return config;
}

}  // namespace glmd
