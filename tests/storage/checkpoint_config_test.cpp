// config.json: what GLM-5.2 says is understood, what cannot be run is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/checkpoint_config.h"
#include "tests/convert/tiny_checkpoint.h"

namespace glmd {
namespace {

using testing::HasSubstr;

Json good_config() {
  return test::TinyCheckpoint::make().config;
}

Result<CheckpointConfig> parse_with(const std::string& name, const std::string& value) {
  Json config = good_config();
  config.set(name, parse_json(value, "value").value());
  return CheckpointConfig::parse(config, "config.json");
}

Json without(const std::string& name) {
  Json config = good_config();
  std::erase_if(config.members(), [&](const Json::Member& member) { return member.first == name; });
  return config;
}

TEST(CheckpointConfig, reads_every_number) {
  const Result<CheckpointConfig> parsed = CheckpointConfig::parse(good_config(), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  const CheckpointConfig& config = parsed.value();
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.all_layers(), 3);
  EXPECT_EQ(config.qk_head_dim(), 10);
  EXPECT_EQ(config.shared_intermediate_size(), 24);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.is_sparse, (std::vector<bool>{false, true, true}));
  EXPECT_EQ(config.indexer_full, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(config.stop_tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(config.scale_block_rows, 8);
}

TEST(CheckpointConfig, without_a_list_the_rule_names_full_indexers) {
  Json config = without("indexer_types");
  EXPECT_EQ(CheckpointConfig::parse(config, "").value().indexer_full,
            (std::vector<bool>{true, true, true}));
  config.set("num_hidden_layers", Json::integer(12));
  config.set("index_topk_freq", Json::integer(4));
  config.set("index_skip_topk_offset", Json::integer(3));
  const std::vector<bool> full = CheckpointConfig::parse(config, "").value().indexer_full;
  for (size_t layer = 0; layer < 12; ++layer)
    EXPECT_EQ(full[layer], layer <= 2 || layer == 6 || layer == 10) << layer;
  EXPECT_TRUE(full[12]);
}

TEST(CheckpointConfig, a_pattern_of_indexers_is_letters_or_a_list) {
  Json config = without("indexer_types");
  for (const char* pattern : {R"("FS")", R"(["full","shared"])"}) {
    config.set("index_topk_pattern", parse_json(pattern, "").value());
    EXPECT_EQ(CheckpointConfig::parse(config, "").value().indexer_full,
              (std::vector<bool>{true, false, true}));
  }
  for (const char* pattern : {R"("FX")", R"("F")", R"("SF")", "7", R"(["F","S"])"}) {
    config.set("index_topk_pattern", parse_json(pattern, "").value());
    const Result<CheckpointConfig> parsed = CheckpointConfig::parse(config, "config.json");
    ASSERT_FALSE(parsed.ok()) << pattern;
    EXPECT_THAT(parsed.error().message, HasSubstr("config.json: index_topk_pattern"));
  }
}

TEST(CheckpointConfig, older_and_newer_spellings_are_read) {
  Json config = without("rope_parameters");
  config.set("rope_theta", Json::integer(5000));
  config.set("mlp_layer_types", parse_json(R"(["sparse","dense"])", "").value());
  config.set("num_nextn_predict_layers", Json::integer(0));
  config.set("eos_token_id", Json::integer(7));
  Result<CheckpointConfig> parsed = CheckpointConfig::parse(config, "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(parsed.value().rope_theta, 5000);
  EXPECT_EQ(parsed.value().is_sparse, (std::vector<bool>{true, false}));
  ASSERT_TRUE(parsed.value()
                  .add_generation_config(parse_json(R"({"eos_token_id":[7,3]})", "").value(), "g")
                  .ok());
  EXPECT_EQ(parsed.value().stop_tokens, (std::vector<int32_t>{3, 7}));
}

TEST(CheckpointConfig, what_cannot_be_run_is_refused_by_name) {
  const std::vector<std::pair<const char*, const char*>> table = {
      {"model_type", R"("llama")"},
      {"model_type", "3"},
      {"hidden_size", "0"},
      {"hidden_size", "-1"},
      {"hidden_size", "2147483648"},
      {"hidden_size", "9223372036854775808"},
      {"hidden_size", "1e3"},
      {"hidden_size", R"("16")"},
      {"hidden_size", "null"},
      {"num_hidden_layers", "0"},
      {"num_hidden_layers", "2147483648"},
      {"num_nextn_predict_layers", "2"},
      {"num_nextn_predict_layers", "-1"},
      {"vocab_size", "0"},
      {"vocab_size", "2147483648"},
      {"max_position_embeddings", "-5"},
      {"num_attention_heads", "0"},
      {"q_lora_rank", "null"},
      {"kv_lora_rank", "-9223372036854775808"},
      {"qk_nope_head_dim", "0"},
      {"qk_rope_head_dim", "3"},
      {"qk_rope_head_dim", "16"},
      {"v_head_dim", "2147483648"},
      {"rms_norm_eps", "0"},
      {"rms_norm_eps", "-1e-5"},
      {"rms_norm_eps", "null"},
      {"rms_norm_eps", R"("NaN")"},
      {"rope_parameters", R"({"rope_theta":10000,"rope_type":"yarn"})"},
      {"rope_parameters", "[]"},
      {"rope_parameters", R"({"rope_theta":0})"},
      {"rope_parameters", "{}"},
      {"rope_scaling", R"({"type":"linear","factor":2})"},
      {"intermediate_size", "-20"},
      {"moe_intermediate_size", "0"},
      {"n_routed_experts", "0"},
      {"n_routed_experts", "65536000"},
      {"n_shared_experts", "0"},
      {"num_experts_per_tok", "0"},
      {"num_experts_per_tok", "5"},
      {"n_group", "3"},
      {"n_group", "0"},
      {"topk_group", "2"},
      {"n_group", "4"},
      {"routed_scaling_factor", "-2.5"},
      {"norm_topk_prob", "1"},
      {"first_k_dense_replace", "-1"},
      {"mlp_layer_types", R"(["dense"])"},
      {"mlp_layer_types", R"(["dense","mixed"])"},
      {"moe_layer_freq", "2"},
      {"index_n_heads", "0"},
      {"index_head_dim", "2"},
      {"index_topk", "0"},
      {"indexer_types", R"(["full"])"},
      {"indexer_types", R"(["shared","full"])"},
      {"indexer_types", R"(["full","none"])"},
      {"indexer_types", R"(["full",1])"},
      {"indexer_types", R"("full")"},
      {"index_topk_freq", "0"},
      {"hidden_act", R"("gelu")"},
      {"scoring_func", R"("softmax")"},
      {"topk_method", R"("greedy")"},
      {"attention_bias", "true"},
      {"tie_word_embeddings", "true"},
      {"rope_interleave", "false"},
      {"indexer_rope_interleave", "false"},
      {"eos_token_id", "24"},
      {"eos_token_id", "[-1]"},
      {"eos_token_id", "[[1]]"},
      {"eos_token_id", "18446744073709551615"},
      {"eos_token_id", "[100000000000000000000]"},
      {"n_routed_experts", "100000000000000000000"},
      {"rms_norm_eps", "100000000000000000000"},
      {"rms_norm_eps", "1e400"},
      {"quantization_config", "1"},
      {"quantization_config", R"({"weight_block_size":[128]})"},
      {"quantization_config", R"({"weight_block_size":[-1,128]})"},
      {"quantization_config", R"({"weight_block_size":[100000000000000000000,128]})"},
  };
  for (const auto& [name, value] : table) {
    SCOPED_TRACE(std::string(name) + " = " + value);
    const Result<CheckpointConfig> parsed = parse_with(name, value);
    ASSERT_FALSE(parsed.ok());
    EXPECT_THAT(parsed.error().message, HasSubstr("config.json: "));
    // A group count that does not fit may be named by its counterpart.
    const std::string_view key = name;
    if (key != "n_group") {
      EXPECT_THAT(parsed.error().message, HasSubstr(key == "rope_parameters" ? "rope_" : name));
    }
    EXPECT_THAT(parsed.error().message, HasSubstr("wanted"));
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(exit_code(parsed.error().kind), 65);
  }
}

std::string compressed(const std::string& members, const std::string& weights,
                       const std::string& group = "") {
  return R"({"quant_method":"compressed-tensors",)" + members + R"("config_groups":{"group_0":{)" +
         group + R"("weights":{)" + weights + "}}}}";
}

TEST(CheckpointConfig, compressed_tensors_in_fp8_say_what_a_scale_is_of) {
  const std::string fp8 = R"("num_bits":8,"type":"float","symmetric":true,"strategy":)";
  const auto parse = [](const std::string& text) {
    return parse_with("quantization_config", text.c_str()).value();
  };
  const auto block = parse(compressed("", fp8 + R"("block","block_structure":[64,32])"));
  EXPECT_EQ(block.scale_rows(65), 2);
  EXPECT_EQ(block.scale_columns(96), 3);
  const auto channel = parse(compressed(R"("format":"float-quantized",)", fp8 + R"("channel")"));
  EXPECT_EQ(channel.scale_rows(65), 65);
  EXPECT_EQ(channel.scale_columns(96), 1);
  const auto tensor = parse(compressed(R"("sparsity_config":{},)", fp8 + R"("tensor")"));
  EXPECT_EQ(tensor.scale_rows(65), 1);
  EXPECT_EQ(tensor.scale_columns(96), 1);
}

TEST(CheckpointConfig, other_compressed_tensors_are_refused_by_their_names) {
  const std::string fp8 = R"("num_bits":8,"type":"float","strategy":"channel")";
  const struct {
    std::string config;
    const char* message;
  } table[] = {
      {compressed(R"("format":"pack-quantized",)", fp8),
       "format: wanted \"float-quantized\" (nothing else can be run), got \"pack-quantized\""},
      {compressed(R"("format":"int-quantized",)", fp8), "got \"int-quantized\""},
      {compressed(R"("format":"nvfp4-pack-quantized",)", fp8), "got \"nvfp4-pack-quantized\""},
      {compressed(R"("format":"marlin-24",)", fp8), "got \"marlin-24\""},
      {compressed(R"("format":"mixed-precision",)", fp8), "got \"mixed-precision\""},
      {compressed("", fp8, R"("format":"pack-quantized",)"),
       "config_groups.group_0: format: wanted \"float-quantized\""},
      {compressed(R"("sparsity_config":{"format":"sparse-24-bitmask"},)", fp8),
       "sparsity_config: format: wanted \"dense\""},
      {compressed(R"("transform_config":{"config_groups":{"u":{}}},)", fp8), "transform_config"},
      {compressed("", R"("num_bits":8,"strategy":"channel")"), "type: wanted \"float\""},
      {compressed("", R"("num_bits":8,"type":"int","strategy":"channel")"), "got \"int\""},
      {compressed("", R"("num_bits":4,"type":"float","strategy":"channel")"),
       "config_groups.group_0.weights: num_bits: wanted 8"},
      {compressed("", fp8 + R"(,"symmetric":false)"), "symmetric: wanted true"},
      {compressed("", fp8 + R"(,"dynamic":true)"), "dynamic: wanted false"},
      {compressed("", R"("type":"float","strategy":"group")"), "got \"group\""},
      {compressed("", R"("type":"float")"), "strategy: wanted"},
      {compressed("", R"("type":"float","strategy":"block")"), "block_structure: wanted"},
      {R"({"quant_method":"compressed-tensors"})", "config_groups: wanted"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"a":{"weights":null}}})",
       "config_groups.a: weights: wanted an object"},
      {R"({"quant_method":"compressed-tensors","config_groups":{
          "a":{"weights":{"type":"float","strategy":"channel"}},
          "b":{"weights":{"type":"float","strategy":"tensor"}}}})",
       "config_groups.b: weights: wanted the strategy of the other groups"},
      {R"({"quant_method":"modelopt"})", "quant_method: wanted \"fp8\" or \"compressed-tensors\""},
  };
  for (const auto& [config, message] : table) {
    const Result<CheckpointConfig> parsed = parse_with("quantization_config", config.c_str());
    ASSERT_FALSE(parsed.ok()) << config;
    EXPECT_THAT(parsed.error().message, HasSubstr(message));
    EXPECT_THAT(parsed.error().message, HasSubstr("config.json: quantization_config: "));
    EXPECT_EQ(parsed.error().kind, ErrorKind::bad_input);
  }
}

TEST(CheckpointConfig, what_must_be_there_is_asked_for_by_name) {
  for (const char* name :
       {"model_type", "hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads",
        "q_lora_rank", "kv_lora_rank", "v_head_dim", "rms_norm_eps", "rope_parameters",
        "n_routed_experts", "index_topk", "routed_scaling_factor"}) {
    const Result<CheckpointConfig> parsed = CheckpointConfig::parse(without(name), "config.json");
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_THAT(parsed.error().message, HasSubstr("got nothing")) << name;
  }
  EXPECT_FALSE(CheckpointConfig::parse(Json::array(), "config.json").ok());
}

}  // namespace
}  // namespace glmd
