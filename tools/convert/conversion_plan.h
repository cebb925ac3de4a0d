// What a conversion will write, decided from headers alone: every tensor of the container with its
// format, its sources in the checkpoint, and the file it goes to. Every tensor of the checkpoint is
// used, or it is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/tensor_inventory.h"
#include "tools/convert/checkpoint.h"

namespace glmd {

enum class Policy : uint8_t { nl4, nl5, q8, exact };
const char* policy_name(Policy policy);
std::optional<Policy> policy_from(std::string_view name);

struct Policies {
  Policy experts = Policy::nl4;  // nl4, q8 or exact
  Policy dense = Policy::nl5;
};

// Rows of a checkpoint's tensor: a matrix, or part of one that fuses several.
struct MatrixSource {
  const SourceTensor* tensor = nullptr;
  const SourceTensor* scales = nullptr;  // FP8 only
  int64_t rows = 0, columns = 0;
  int64_t first_row = 0;  // counting rows of the whole tensor
  int64_t first_scale_row =
      0;                      // counting rows of the scales: of the block that has row_in_blocks 0
  int64_t row_in_blocks = 0;  // of our first row, counted from first_scale_row's first row
};

struct PlannedTensor {
  InventoryEntry entry;
  BlockFormat format = BlockFormat::f32;
  std::vector<MatrixSource>
      sources;  // one; gate and up; gate, up and down. k_b and v_b: the whole kv_b
  int64_t bytes = 0;
};

struct PlannedFile {
  std::string name;
  std::vector<PlannedTensor> tensors;
};

struct ConversionPlan {
  CheckpointConfig config;             // draft_layers is 0 where the checkpoint has no draft layer
  bool is_draft_absent = false;        // config.json has one, the weights have not
  int64_t activation_scale_count = 0;  // tensors that say how activations were to be quantised
  std::vector<PlannedFile> files;
};

// The block format that the policies ask for; none where values are kept as they are.
std::optional<BlockFormat> quantised_format(const InventoryEntry& entry, const Policies& policies);

// Puts a tensor where it belongs: experts by layer, the draft layer's rest apart, all others in
// files of a handy size.
void add_tensor(PlannedTensor tensor, std::vector<PlannedFile>& files);

Result<ConversionPlan> plan_conversion(const Checkpoint& checkpoint, const Policies& policies);

}  // namespace glmd
