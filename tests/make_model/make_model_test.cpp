// Containers with random weights: sound, loadable, the same for the same seed, and no geometry
// slips through that the model could not run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

#include "kernels/block_encoder.h"
#include "model/families/families.h"
#include "storage/container.h"
#include "tests/support/temporary_folder.h"
#include "tools/make-model/geometry.h"
#include "tools/make-model/model_maker.h"

namespace glmd {

// For names of tests; GoogleTest looks in the namespace of the type.
void PrintTo(const Policies& policies, std::ostream* out) {
  *out << "experts " << policy_name(policies.experts) << ", dense " << policy_name(policies.dense);
}

namespace {

using testing::HasSubstr;

// Odd sizes: rows that fill no tile, columns that fill no group.
constexpr const char* tiny_config = R"({
  "model_type": "glm_moe_dsa", "hidden_size": 96, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 1, "vocab_size": 120, "max_position_embeddings": 256,
  "num_attention_heads": 4, "q_lora_rank": 70, "kv_lora_rank": 64, "qk_nope_head_dim": 24,
  "qk_rope_head_dim": 8, "v_head_dim": 20, "rms_norm_eps": 1e-5, "rope_theta": 10000,
  "intermediate_size": 100, "moe_intermediate_size": 44, "n_routed_experts": 8,
  "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
  "routed_scaling_factor": 2.5, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8,
  "indexer_types": ["full", "shared"], "eos_token_id": [1, 119]})";

bool go_on(const ConvertProgress&) {
  return true;
}

MakeOptions tiny(const std::string& target, uint64_t seed = 1) {
  return {.config = parse_json(tiny_config, "config").value(),
          .target = target,
          .policies = {},
          .seed = seed};
}

Container make_and_open(const MakeOptions& options) {
  const Result<void> made = make_model(options, go_on);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  Result<Container> container = Container::open(options.target);
  EXPECT_TRUE(container.ok()) << (container.ok() ? "" : container.error().message);
  return std::move(container).value();
}

std::vector<uint8_t> bytes_of(const Container& container, std::string_view name) {
  const Tensor* tensor = container.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<uint8_t> bytes(static_cast<size_t>(tensor->bytes));
  EXPECT_TRUE(container.read(*tensor, bytes).ok()) << name;
  return bytes;
}

// Mean and deviation of a stored matrix.
std::pair<double, double> moments(const Container& container, std::string_view name) {
  const Tensor& tensor = *container.find(name);
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.columns));
  const std::vector<uint8_t> bytes = bytes_of(container, name);
  if (tensor.layout == TensorLayout::embedding) {
    decode_embedding(tensor.format, bytes.data(), tensor.rows, tensor.columns, values.data());
  } else {
    decode_matrix(tensor.format, bytes.data(), tensor.rows, tensor.columns, values.data());
  }
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const auto count = static_cast<double>(values.size());
  return {sum / count, std::sqrt(squares / count)};
}

// The logits of the last of `ids`.
std::vector<float> logits_of(const Container& container, std::vector<int32_t> ids) {
  const ModelSizes sizes = model_sizes(container, false).value();
  ModelOptions options{.kernels = find_kernels("auto"),
                       .arena_bytes = sizes.experts_bytes,
                       .kv_pool_bytes = 4 * cache_block_tokens * sizes.kv_bytes_per_token};
  const std::unique_ptr<Model> model = open_model(container, options).value();
  const std::unique_ptr<SequenceState> sequence = model->new_sequence(64).value();
  const BatchPart part{.sequence = sequence.get(), .tokens = ids, .wants_logits = true};
  const PassPtr pass = model->begin({&part, 1}).value();
  while (!pass->is_done()) {
    const Result<void> layer = pass->run_layer();
    EXPECT_TRUE(layer.ok()) << (layer.ok() ? "" : layer.error().message);
    if (!layer.ok()) return {};
  }
  const std::span<const float> logits = pass->logits(0);
  return {logits.begin(), logits.end()};
}

class MakeModelPolicy : public testing::TestWithParam<Policies> {};

TEST_P(MakeModelPolicy, what_is_made_is_sound_and_runs) {
  const TemporaryFolder folder;
  MakeOptions options = tiny(folder / "model");
  options.policies = GetParam();
  const Container container = make_and_open(options);
  EXPECT_THAT(Container::verify(options.target), testing::IsEmpty());
  EXPECT_EQ(container.checkpoint().draft_layers, 1);
  const std::vector<float> logits = logits_of(container, {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8});
  ASSERT_EQ(logits.size(), 120U);
  double squares = 0;
  for (const float logit : logits)
    squares += static_cast<double>(logit) * static_cast<double>(logit);
  EXPECT_GT(std::sqrt(squares / 120), 0.2);
  EXPECT_LT(std::sqrt(squares / 120), 5);
}
INSTANTIATE_TEST_SUITE_P(
    All, MakeModelPolicy,
    testing::Values(Policies{}, Policies{.experts = Policy::q8, .dense = Policy::q8},
                    Policies{.experts = Policy::nl5, .dense = Policy::nl4},
                    Policies{.experts = Policy::exact, .dense = Policy::exact}));

TEST(MakeModel, values_are_centred_and_as_large_as_their_row_is_long) {
  const TemporaryFolder folder;
  MakeOptions options = tiny(folder / "model");
  const Container container = make_and_open(options);
  for (const char* name : {"layers.0.attention.q_b", "layers.1.attention.o", "head"}) {
    const auto [mean, deviation] = moments(container, name);
    const double wanted = 1 / std::sqrt(static_cast<double>(container.find(name)->columns));
    EXPECT_NEAR(mean, 0, wanted / 20) << name;
    EXPECT_NEAR(deviation, wanted, wanted / 10) << name;
  }
  EXPECT_NEAR(moments(container, "embedding").second, 1, 0.1);
  EXPECT_NEAR(moments(container, "layers.0.input_norm").first, 1, 0.1);
}

TEST(MakeModel, every_expert_has_bytes_of_its_own) {
  const TemporaryFolder folder;
  const Container container = make_and_open(tiny(folder / "model"));
  std::set<uint64_t> hashes;
  int64_t experts = 0;
  for (const auto& [name, tensor] : container.tensors()) {
    if (tensor.layout != TensorLayout::expert) continue;
    ++experts;
    hashes.insert(tensor.hash);
  }
  EXPECT_EQ(experts, 16);
  EXPECT_EQ(static_cast<int64_t>(hashes.size()), experts);
}

TEST(MakeModel, the_seed_decides_every_byte_and_threads_none) {
  const TemporaryFolder folder;
  const Container one = make_and_open(tiny(folder / "one"));
  MakeOptions options = tiny(folder / "two");
  options.threads = 3;
  const Container two = make_and_open(options);
  const Container other = make_and_open(tiny(folder / "other", 2));
  EXPECT_EQ(one.identity(), two.identity());
  EXPECT_NE(one.identity(), other.identity());
  EXPECT_NE(bytes_of(one, "layers.1.experts.5"), bytes_of(other, "layers.1.experts.5"));
}

TEST(MakeModel, a_run_broken_off_leaves_nothing) {
  const TemporaryFolder folder;
  const Result<void> made = make_model(tiny(folder / "model"), [](const ConvertProgress& progress) {
    return progress.bytes_done < progress.bytes_total / 2;
  });
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::cancelled);
  EXPECT_FALSE(std::filesystem::exists(folder / "model"));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.partial"));
}

TEST(MakeModel, what_is_there_is_not_touched) {
  const TemporaryFolder folder;
  make_and_open(tiny(folder / "model"));
  const Result<void> again = make_model(tiny(folder / "model", 2), go_on);
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, HasSubstr("model: exists, not touched"));
  std::filesystem::create_directories(folder / "new.partial");
  EXPECT_THAT(make_model(tiny(folder / "new"), go_on).error().message,
              HasSubstr("new.partial: exists, not touched: an empty folder; remove it first"));
  write_file_atomically(folder / "new.partial/dense-00.safetensors", "x").value();
  EXPECT_THAT(make_model(tiny(folder / "new"), go_on).error().message,
              HasSubstr("an unfinished container, as glmd-make-model leaves when killed"));
  std::filesystem::remove_all(folder / "new.partial");
  write_file_atomically(folder / "new.partial", "x").value();
  EXPECT_THAT(make_model(tiny(folder / "new"), go_on).error().message, HasSubstr("no folder"));
}

TEST(MakeModel, another_run_for_the_same_target_is_told) {
  const TemporaryFolder folder;
  std::optional<Error> second;
  const Result<void> first = make_model(tiny(folder / "model"), [&](const ConvertProgress&) {
    if (!second) second = make_model(tiny(folder / "model", 2), go_on).error();
    return true;
  });
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(second->kind, ErrorKind::busy);
  EXPECT_EQ(second->message, folder / "model.partial: another program writes it");
}

TEST(MakeModel, a_model_larger_than_the_disk_is_refused_before_a_byte_is_written) {
  const TemporaryFolder folder;
  MakeOptions options = tiny(folder / "model");
  options.config.set("moe_intermediate_size", Json::integer(1 << 20));
  options.config.set("hidden_size", Json::integer(1 << 20));
  const Result<void> made = make_model(options, go_on);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().kind, ErrorKind::io);
  EXPECT_THAT(made.error().message, testing::ContainsRegex("free space: wanted [0-9]+ bytes, got"));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.partial"));
}

CheckpointConfig slice(std::vector<std::string> layers) {
  const Json config = make_config({.preset = "glm52-slice", .layers = std::move(layers)}).value();
  return CheckpointConfig::parse(config, "config").value();
}

TEST(Geometry, the_slice_has_the_widths_of_glm52) {
  const CheckpointConfig config = slice({});
  EXPECT_EQ(config.hidden_size, 6144);
  EXPECT_EQ(config.heads * config.qk_head_dim(), 16384);
  EXPECT_EQ(config.kv_lora_rank + config.qk_rope_head_dim, 576);
  EXPECT_EQ(config.n_routed_experts, 256);
  EXPECT_EQ(config.vocabulary, 154880);
  EXPECT_EQ(expert_bytes(BlockFormat::nl4, config.moe_intermediate_size, config.hidden_size),
            20094976);
  EXPECT_EQ(config.is_sparse, std::vector<bool>({false, true, true}));
}

TEST(Geometry, layers_are_taken_as_listed) {
  const CheckpointConfig config = slice({"dense", "moe:shared", "moe", "draft"});
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.draft_layers, 1);
  EXPECT_EQ(config.is_sparse, std::vector<bool>({false, true, true, true}));
  EXPECT_EQ(config.indexer_full, std::vector<bool>({true, false, true, true}));
}

TEST(Geometry, sizes_can_be_overridden) {
  const Json config =
      make_config({.preset = "glm52-slice", .experts = 16, .vocabulary = 1000}).value();
  const CheckpointConfig parsed = CheckpointConfig::parse(config, "config").value();
  EXPECT_EQ(parsed.n_routed_experts, 16);
  EXPECT_EQ(parsed.vocabulary, 1000);
  EXPECT_TRUE(parsed.stop_tokens.empty());
}

TEST(Geometry, what_cannot_be_run_is_refused_in_one_line) {
  const auto refusal = [](GeometryOptions options) {
    if (options.preset.empty() && options.config_path.empty()) options.preset = "glm52-slice";
    const Result<Json> config = make_config(options);
    return config.ok() ? "" : config.error().message;
  };
  EXPECT_THAT(refusal({.preset = "glm99"}), HasSubstr("wanted one of glm52-slice, got \"glm99\""));
  EXPECT_THAT(refusal({.layers = {"moe", "sparse"}}), HasSubstr("got \"sparse\""));
  EXPECT_THAT(refusal({.layers = {"draft", "moe"}}), HasSubstr("got \"draft\""));
  EXPECT_THAT(refusal({.layers = {"dense:shared"}}), HasSubstr("indexer_types[0]"));
  EXPECT_THAT(refusal({.experts = 4}),
              HasSubstr("num_experts_per_tok: wanted at most n_routed_experts 4, got 8"));
  EXPECT_THAT(refusal({.vocabulary = 0}), HasSubstr("vocab_size: wanted an integer from 1"));
}

int run_program(const std::string& command) {
  return WEXITSTATUS(std::system(command.c_str()));
}

TEST(MakeModelProgram, makes_what_inspect_and_eval_accept) {
  const std::string bin = GLMD_BINARY_DIR "/bin/";
  const TemporaryFolder folder;
  const std::string quiet = " >/dev/null 2>&1";
  const std::string config = folder / "config.json", ids = folder / "ids.json";
  ASSERT_TRUE(write_file_atomically(config, tiny_config).ok());
  ASSERT_TRUE(write_file_atomically(ids, "[3, 1, 4, 1, 5]").ok());
  const std::string make = bin + "glmd-make-model ";
  EXPECT_EQ(run_program(make + "--version" + quiet), 0);
  EXPECT_EQ(run_program(make + (folder / "model") + quiet), 64);
  EXPECT_EQ(run_program(make + "--preset glm52-slice --config " + config + " " +
                        (folder / "model") + quiet),
            64);
  EXPECT_EQ(run_program(make + "--config " + (folder / "none") + " " + (folder / "model") + quiet),
            66);
  ASSERT_EQ(run_program(make + "--config " + config + " --layers dense,moe,moe:shared " +
                        (folder / "model") + quiet),
            0);
  EXPECT_EQ(run_program(bin + "glmd-inspect verify " + (folder / "model") + quiet), 0);
  EXPECT_EQ(run_program(bin + "glmd-eval --model " + (folder / "model") + " --ids " + ids +
                        " --greedy 4" + quiet),
            0);
}

}  // namespace
}  // namespace glmd
