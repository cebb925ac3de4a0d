// Steps, threads, cache and kernels never change a bit.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"
#include "tools/make-model/model_maker.h"

namespace glmd {

// For names of tests; GoogleTest looks in the namespace of the type.
void PrintTo(Policy policy, std::ostream* out) {
  *out << policy_name(policy);
}

namespace {

// Exact and quantised containers alike: nothing but the tokens decides a bit.
class BitIdentity : public testing::TestWithParam<std::tuple<std::string, Policy>> {};

TEST_P(BitIdentity, steps_threads_arena_and_kernels_never_change_a_bit) {
  const auto& [name, policy] = GetParam();
  const ReferenceModel reference = read_reference(name);
  const TemporaryFolder folder;
  const Container container =
      convert_and_open(oracle_folder(name), folder / "container", policy,
                       policy == Policy::nl4 ? Policy::nl5 : policy, reference.latent_norm_eps);
  const ReferenceCase& one = reference.cases.back();
  const Logits whole = logits_of(container, one.ids, {.threads = 1, .kernels = "scalar"});
  for (const char* kernels : {"scalar", "avx2", "avx512"}) {
    if (find_kernels(kernels) == nullptr) continue;  // this CPU has no such table
    const bool is_scalar =
        std::string_view(kernels) == "scalar";  // slow: one run of its own is enough
    for (const int threads : {1, 2}) {
      for (const int64_t step_rows : {int64_t{1}, int64_t{7}, int64_t{4096}}) {
        for (const double arena_share : {0.0, 0.5, 1.0}) {
          if (is_scalar && (step_rows != 7 || threads != 2 || arena_share != 0)) continue;
          // Half an arena has room to read ahead; many rows stream through it.
          if (arena_share == 0.5 && (step_rows == 7 || threads != 2)) continue;
          const Logits got = logits_of(container, one.ids,
                                       {.threads = threads,
                                        .kernels = kernels,
                                        .arena_share = arena_share,
                                        .look_ahead = LookAhead::on,
                                        .step_rows = step_rows});
          SCOPED_TRACE(testing::Message() << kernels << ", " << threads << " threads, steps of "
                                          << step_rows << ", arena share " << arena_share);
          ASSERT_EQ(got.main.size(), whole.main.size());
          EXPECT_EQ(std::memcmp(got.main.data(), whole.main.data(), got.main.size() * 4), 0);
          EXPECT_EQ(got.draft.size(), whole.draft.size());
          EXPECT_EQ(std::memcmp(got.draft.data(), whole.draft.data(), got.draft.size() * 4), 0);
        }
      }
    }
  }
}

constexpr const char* config_of_64_heads = R"({
  "model_type": "glm_moe_dsa", "hidden_size": 64, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 1, "vocab_size": 64, "max_position_embeddings": 512,
  "num_attention_heads": 64, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 8,
  "qk_rope_head_dim": 8, "v_head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000,
  "intermediate_size": 64, "moe_intermediate_size": 32, "n_routed_experts": 4,
  "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
  "routed_scaling_factor": 2.5, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 512,
  "indexer_types": ["full", "shared"], "eos_token_id": [1]})";

// A row of more than one span of keys: alone it is cut at spans, among others it is not.
TEST(BitIdentityOfSpans, a_team_that_shares_the_keys_of_a_row_never_changes_a_bit) {
  const ReferenceModel reference = read_reference("groups");  // without selection
  const TemporaryFolder folder;
  const Container container = convert_and_open(oracle_folder("groups"), folder / "container",
                                               Policy::q8, Policy::q8, reference.latent_norm_eps);
  const std::vector<int32_t>& some = reference.cases.back().ids;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < attention_span_keys + 70; ++i) ids.push_back(some[i * 7 % some.size()]);
  const Logits whole = logits_of(container, ids, {.threads = 1});
  for (const int threads : {1, 2}) {
    for (const int64_t step_rows : {int64_t{1}, int64_t{400}}) {
      const Logits got = logits_of(container, ids, {.threads = threads, .step_rows = step_rows});
      SCOPED_TRACE(testing::Message() << threads << " threads, steps of " << step_rows);
      ASSERT_EQ(got.main.size(), whole.main.size());
      EXPECT_EQ(std::memcmp(got.main.data(), whole.main.data(), got.main.size() * 4), 0);
    }
  }
}

// Two threads halve the heads of a single row, three share its spans.
TEST(BitIdentityOfHeads, a_team_that_shares_the_heads_of_a_row_never_changes_a_bit) {
  const TemporaryFolder folder;
  const Result<void> made = make_model({.config = parse_json(config_of_64_heads, "config").value(),
                                        .target = folder / "model",
                                        .policies = {}},
                                       [](const ConvertProgress&) { return true; });
  ASSERT_TRUE(made.ok()) << made.error().message;
  const Container container = Container::open(folder / "model").value();
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < attention_span_keys + 40; ++i) ids.push_back(i * 7 % 64);
  const Logits whole = logits_of(container, ids, {.threads = 1});
  for (const int threads : {1, 2, 3}) {
    const Logits got = logits_of(container, ids, {.threads = threads, .step_rows = 1});
    SCOPED_TRACE(testing::Message() << threads << " threads");
    ASSERT_EQ(got.main.size(), whole.main.size());
    EXPECT_EQ(std::memcmp(got.main.data(), whole.main.data(), got.main.size() * 4), 0);
  }
}

TEST(BitIdentityOfCodedKeys, steps_threads_and_kernels_never_change_a_bit) {
  const ReferenceModel reference = read_reference("base");
  const TemporaryFolder folder;
  const Container container = convert_and_open(oracle_folder("base"), folder / "container",
                                               Policy::q8, Policy::q8, reference.latent_norm_eps);
  const std::vector<int32_t>& ids = reference.cases.back().ids;
  const Logits whole =
      logits_of(container, ids, {.kernels = "scalar", .kv_format = KvFormat::int8});
  const Logits of_f16 = logits_of(container, ids, {.kernels = "scalar"});
  ASSERT_EQ(of_f16.main.size(), whole.main.size());
  EXPECT_NE(std::memcmp(of_f16.main.data(), whole.main.data(), whole.main.size() * 4), 0);
  for (const char* kernels : {"scalar", "avx2", "avx512"}) {
    if (find_kernels(kernels) == nullptr) continue;  // this CPU has no such table
    for (const int threads : {1, 2}) {
      for (const int64_t step_rows : {int64_t{1}, int64_t{7}, int64_t{4096}}) {
        const Logits got = logits_of(container, ids,
                                     {.threads = threads,
                                      .kernels = kernels,
                                      .step_rows = step_rows,
                                      .kv_format = KvFormat::int8});
        SCOPED_TRACE(testing::Message()
                     << kernels << ", " << threads << " threads, steps of " << step_rows);
        ASSERT_EQ(got.main.size(), whole.main.size());
        EXPECT_EQ(std::memcmp(got.main.data(), whole.main.data(), got.main.size() * 4), 0);
        ASSERT_EQ(got.draft.size(), whole.draft.size());
        EXPECT_EQ(std::memcmp(got.draft.data(), whole.draft.data(), got.draft.size() * 4), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(models, BitIdentity,
                         testing::Combine(testing::Values("base", "fp8", "odd", "groups"),
                                          testing::Values(Policy::exact, Policy::nl4, Policy::q8)));

}  // namespace
}  // namespace glmd
