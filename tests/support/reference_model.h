// The reference models of tests/golden/oracle: checkpoint, prompts, and the logits that the
// reference computes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "model/families/families.h"
#include "platform/file.h"
#include "storage/container.h"
#include "tools/convert/converter.h"
#include "tools/eval/evaluation.h"

namespace glmd {

inline std::string oracle_folder(const std::string& name) {
  return std::string(GLMD_TESTS_DIR) + "/golden/oracle/" + name;
}

struct ReferenceCase {
  std::vector<int32_t> ids, greedy, near_ties;
  std::vector<float> logits,
      draft_logits;  // [positions][vocabulary]; draft: one row fewer, or none
};

struct ReferenceModel {
  double latent_norm_eps = 1e-5;
  std::vector<ReferenceCase> cases;
};

inline std::vector<int32_t> integers(const Json& json) {
  std::vector<int32_t> values;
  for (const Json& item : json.items()) values.push_back(static_cast<int32_t>(item.as_integer()));
  return values;
}

inline std::vector<float> read_floats(const std::string& path) {
  const std::string bytes = read_file(path, 1 << 30).value();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(values.data()));
  return values;
}

inline ReferenceModel read_reference(const std::string& name) {
  const std::string folder = oracle_folder(name);
  const Json json = read_json_file(folder + "/oracle.json", 1 << 26).value();
  ReferenceModel reference;
  reference.latent_norm_eps = json.find("latent_norm_eps")->as_real();
  for (const Json& item : json.find("cases")->items()) {
    ReferenceCase one{.ids = integers(*item.find("ids")),
                      .greedy = integers(*item.find("greedy")),
                      .near_ties = integers(*item.find("near_ties")),
                      .logits = read_floats(folder + "/" + item.find("logits")->as_string()),
                      .draft_logits = {}};
    if (const Json* draft = item.find("draft_logits")) {
      one.draft_logits = read_floats(folder + "/" + draft->as_string());
    }
    reference.cases.push_back(std::move(one));
  }
  return reference;
}

inline Container convert_and_open(const std::string& source, const std::string& target,
                                  Policy experts, Policy dense, double latent_norm_eps) {
  const Result<void> converted = convert({.source = source,
                                          .target = target,
                                          .policies = {.experts = experts, .dense = dense},
                                          .latent_norm_eps = latent_norm_eps,
                                          .ignored = {},
                                          .threads = 2},
                                         [](const ConvertProgress&) { return true; });
  EXPECT_TRUE(converted.ok()) << (converted.ok() ? "" : converted.error().message);
  Result<Container> container = Container::open(target);
  EXPECT_TRUE(container.ok()) << (container.ok() ? "" : container.error().message);
  return std::move(container).value();
}

struct RunOptions {
  int threads = 1;
  const char* kernels = "auto";
  double arena_share = 1;  // of the experts; 0: the floor
  LookAhead look_ahead = LookAhead::automatic;
  int64_t step_rows = 1 << 12;
  KvFormat kv_format = KvFormat::f16;
  bool is_warm = false;  // all experts that fit are in memory already
  std::vector<RoutingObserver*> observers = {};
  std::vector<std::string> mirrors = {};
};

inline std::unique_ptr<Model> open_for(const Container& container, const RunOptions& options,
                                       int64_t tokens) {
  const ModelSizes sizes = model_sizes(container, true, options.kv_format).value();
  const CheckpointConfig& shape = container.checkpoint();
  std::unique_ptr<Model> model =
      open_model(
          container,
          {.threads = options.threads,
           .kernels = find_kernels(options.kernels),
           .arena_bytes = std::max(sizes.arena_bytes_min,
                                   static_cast<int64_t>(options.arena_share *
                                                        static_cast<double>(sizes.experts_bytes))),
           .kv_pool_bytes = (tokens + 2 * cache_block_tokens) * sizes.kv_bytes_per_token,
           .kv_format = options.kv_format,
           .rows_max = options.step_rows,
           .with_draft = true,
           .look_ahead = options.look_ahead,
           .observers = options.observers,
           .usage_prior = std::vector<float>(
               options.is_warm ? (shape.layers + 1) * shape.n_routed_experts : 0, 1.0F),
           .mirrors = options.mirrors})
          .value();
  while (model->warm_up()) {
  }
  return model;
}

struct Logits {
  std::vector<float> main, draft;
};

inline Logits logits_of(const Container& container, std::span<const int32_t> ids,
                        const RunOptions& options) {
  const std::unique_ptr<Model> model =
      open_for(container, options, static_cast<int64_t>(ids.size()));
  Logits out;
  const RowSink main = [&](std::span<const float> row) -> Result<void> {
    out.main.insert(out.main.end(), row.begin(), row.end());
    return {};
  };
  const RowSink draft = [&](std::span<const float> row) -> Result<void> {
    out.draft.insert(out.draft.end(), row.begin(), row.end());
    return {};
  };
  const bool has_draft = container.checkpoint().draft_layers == 1;
  const Result<void> result =
      forced_logits(*model, ids, options.step_rows, main, has_draft ? &draft : nullptr);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return out;
}

}  // namespace glmd
