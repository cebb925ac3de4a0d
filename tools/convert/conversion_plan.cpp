#include "tools/convert/conversion_plan.h"

#include <algorithm>
#include <set>

#include "tools/convert/source_names.h"

namespace glmd {
namespace {

constexpr int64_t dense_file_bytes = int64_t{4} << 30;

bool is_part_of_kv_b(const InventoryEntry& entry) {
  return entry.name.ends_with("attention.k_b") || entry.name.ends_with("attention.v_b");
}

bool is_weight_dtype(const std::string& dtype) {
  return dtype == "BF16" || dtype == "F16" || dtype == "F32" || dtype == "F8_E4M3";
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const Policies& policies)
      : checkpoint_(checkpoint), policies_(policies) {}

  Result<ConversionPlan> plan();

 private:
  Result<void> add_sources(PlannedTensor& tensor);
  Result<void> add_matrix(PlannedTensor& tensor, const std::string& name, int64_t rows,
                          int64_t columns);
  Result<void> add_fused(PlannedTensor& tensor, const std::string& name, int64_t matrix_rows,
                         int64_t first_row, int64_t rows, int64_t columns);
  Result<const SourceTensor*> find_shaped(const std::string& name,
                                          const std::vector<int64_t>& shape);
  Result<void> add_scales(MatrixSource& source, const std::vector<int64_t>& shape);
  // Two tensors may be made of one.
  void note_missing(const std::string& name) {
    if (missing_.empty() || missing_.back() != name) missing_.push_back(name);
  }
  Error wrong_shape(const SourceTensor& tensor, const std::vector<int64_t>& wanted) const;
  BlockFormat choose_format(const PlannedTensor& tensor) const;
  Result<void> check_all_used();

  const Checkpoint& checkpoint_;
  const Policies policies_;
  ConversionPlan plan_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> missing_;
};

Result<ConversionPlan> Planner::plan() {
  plan_.config = checkpoint_.config();
  CheckpointConfig& config = plan_.config;
  if (config.draft_layers > 0) {
    const std::string prefix = layer_prefix(config.layers);
    const auto first = checkpoint_.tensors().lower_bound(prefix);
    if (first == checkpoint_.tensors().end() || !first->first.starts_with(prefix)) {
      plan_.is_draft_absent = true;
      config.draft_layers = 0;
      config.is_sparse.resize(static_cast<size_t>(config.layers));
      config.indexer_full.resize(static_cast<size_t>(config.layers));
    }
  }
  for (InventoryEntry& entry : list_tensors(config)) {
    if (entry.is_optional && checkpoint_.find(source_names(entry)[0]) == nullptr) continue;
    PlannedTensor tensor{.entry = std::move(entry), .sources = {}};
    TRY(add_sources(tensor));
    if (!missing_.empty()) continue;
    tensor.format = choose_format(tensor);
    tensor.bytes =
        stored_bytes(tensor.entry.layout, tensor.format, tensor.entry.rows, tensor.entry.columns);
    add_tensor(std::move(tensor), plan_.files);
  }
  if (!missing_.empty()) {
    return error(ErrorKind::bad_input, "{}: missing tensor {}{}", checkpoint_.folder(), missing_[0],
                 missing_.size() > 1 ? fmt::format(" and {} more", missing_.size() - 1) : "");
  }
  TRY(check_all_used());
  return std::move(plan_);
}

Result<void> Planner::add_sources(PlannedTensor& tensor) {
  const InventoryEntry& entry = tensor.entry;
  const CheckpointConfig& config = plan_.config;
  const std::vector<std::string> names = source_names(entry);
  if (entry.layout == TensorLayout::vector) {
    MatrixSource source{.rows = 1, .columns = entry.columns};
    source.tensor = TRY(find_shaped(names[0], {entry.columns}));
    if (source.tensor != nullptr && source.tensor->stored.dtype == "F8_E4M3") {
      return error(ErrorKind::bad_input,
                   "{}: tensor {}: dtype: wanted BF16, F16 or F32, got F8_E4M3",
                   checkpoint_.path(*source.tensor), source.tensor->stored.name);
    }
    tensor.sources.push_back(source);
    return {};
  }
  if (is_part_of_kv_b(entry)) {
    return add_matrix(tensor, names[0],
                      config.heads * (config.qk_nope_head_dim + config.v_head_dim),
                      config.kv_lora_rank);
  }
  if (entry.layout == TensorLayout::expert) {
    const FusedNames fused = fused_names(entry.layer);
    if (checkpoint_.find(fused.gate_up) != nullptr || checkpoint_.find(fused.down) != nullptr) {
      TRY(add_fused(tensor, fused.gate_up, 2 * entry.rows, 0, entry.rows, entry.columns));
      TRY(add_fused(tensor, fused.gate_up, 2 * entry.rows, entry.rows, entry.rows, entry.columns));
      return add_fused(tensor, fused.down, entry.columns, 0, entry.columns, entry.rows);
    }
  }
  TRY(add_matrix(tensor, names[0], entry.rows, entry.columns));
  if (names.size() > 1) TRY(add_matrix(tensor, names[1], entry.rows, entry.columns));
  if (names.size() > 2) TRY(add_matrix(tensor, names[2], entry.columns, entry.rows));
  return {};
}

Result<void> Planner::add_matrix(PlannedTensor& tensor, const std::string& name, int64_t rows,
                                 int64_t columns) {
  MatrixSource source{.rows = rows, .columns = columns};
  source.tensor = TRY(find_shaped(name, {rows, columns}));
  TRY(add_scales(source, {plan_.config.scale_rows(rows), plan_.config.scale_columns(columns)}));
  tensor.sources.push_back(source);
  return {};
}

// One expert's rows of a tensor [experts, matrix_rows, columns].
Result<void> Planner::add_fused(PlannedTensor& tensor, const std::string& name, int64_t matrix_rows,
                                int64_t first_row, int64_t rows, int64_t columns) {
  const CheckpointConfig& config = plan_.config;
  const int64_t experts = config.n_routed_experts;
  const int64_t scale_rows = config.scale_rows(matrix_rows);
  MatrixSource source{.rows = rows, .columns = columns};
  source.tensor = TRY(find_shaped(name, {experts, matrix_rows, columns}));
  source.first_row = tensor.entry.expert * matrix_rows + first_row;
  source.first_scale_row = tensor.entry.expert * scale_rows;
  source.row_in_blocks = first_row;
  TRY(add_scales(source, {experts, scale_rows, config.scale_columns(columns)}));
  tensor.sources.push_back(source);
  return {};
}

// The tensor of that name, which must have that shape; nullptr, noted, where it is missing.
Result<const SourceTensor*> Planner::find_shaped(const std::string& name,
                                                 const std::vector<int64_t>& shape) {
  const SourceTensor* tensor = checkpoint_.find(name);
  if (tensor == nullptr) {
    note_missing(name);
    return tensor;
  }
  used_.insert(name);
  if (tensor->stored.shape != shape) return wrong_shape(*tensor, shape);
  if (!is_weight_dtype(tensor->stored.dtype)) {
    return error(ErrorKind::bad_input,
                 "{}: tensor {}: dtype: wanted BF16, F16, F32 or F8_E4M3, got {}",
                 checkpoint_.path(*tensor), name, tensor->stored.dtype);
  }
  return tensor;
}

Error Planner::wrong_shape(const SourceTensor& tensor, const std::vector<int64_t>& wanted) const {
  return error(ErrorKind::bad_input, "{}: tensor {}: shape: wanted {} (from config.json), got {}",
               checkpoint_.path(tensor), tensor.stored.name, shape_text(wanted),
               shape_text(tensor.stored.shape));
}

// Sides of 1 do not change how values lie: [rows, 1] is [rows], and [1, 1] a single value.
std::vector<int64_t> longer_sides(std::vector<int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

// Whether a tensor is FP8 says its dtype, never a list in config.json.
Result<void> Planner::add_scales(MatrixSource& source, const std::vector<int64_t>& shape) {
  if (source.tensor == nullptr || source.tensor->stored.dtype != "F8_E4M3") return {};
  for (const std::string_view suffix : scale_suffixes) {
    const std::string name = source.tensor->stored.name + std::string(suffix);
    const SourceTensor* scales = checkpoint_.find(name);
    if (scales == nullptr) continue;
    used_.insert(name);
    const StoredTensor& stored = scales->stored;
    if (longer_sides(stored.shape) != longer_sides(shape)) return wrong_shape(*scales, shape);
    if (!is_weight_dtype(stored.dtype) || stored.dtype == "F8_E4M3") {
      return error(ErrorKind::bad_input, "{}: tensor {}: dtype: wanted F32, BF16 or F16, got {}",
                   checkpoint_.path(*scales), name, stored.dtype);
    }
    source.scales = scales;
    return {};
  }
  note_missing(source.tensor->stored.name + std::string(scale_suffixes[0]));
  return {};
}

// The format that keeps the stored values exactly.
BlockFormat exact_format(const PlannedTensor& tensor) {
  std::optional<BlockFormat> format;
  for (const MatrixSource& source : tensor.sources) {
    const std::string& dtype = source.tensor->stored.dtype;
    const BlockFormat own = dtype == "BF16"  ? BlockFormat::bf16
                            : dtype == "F16" ? BlockFormat::f16
                                             : BlockFormat::f32;
    if (format && *format != own) return BlockFormat::f32;
    format = own;
  }
  return *format;
}

BlockFormat Planner::choose_format(const PlannedTensor& tensor) const {
  const std::optional<BlockFormat> format = quantised_format(tensor.entry, policies_);
  if (format) return *format;
  return tensor.entry.kind == TensorKind::vector ? BlockFormat::f32 : exact_format(tensor);
}

Result<void> Planner::check_all_used() {
  std::vector<std::string_view> unknown;
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (used_.contains(name)) continue;
    if (is_activation_scale(name)) {
      ++plan_.activation_scale_count;
    } else {
      unknown.push_back(name);
    }
  }
  if (unknown.empty()) return {};
  const SourceTensor& first = *checkpoint_.find(unknown[0]);
  return error(
      ErrorKind::bad_input,
      "{}: unknown tensor {}{}: config.json has no use for it (--ignore PATTERN leaves it out)",
      checkpoint_.path(first), unknown[0],
      unknown.size() > 1 ? fmt::format(" and {} more", unknown.size() - 1) : "");
}

}  // namespace

const char* policy_name(Policy policy) {
  switch (policy) {
    case Policy::nl4:
      return "nl4";
    case Policy::nl5:
      return "nl5";
    case Policy::q8:
      return "q8";
    case Policy::exact:
      return "exact";
  }
  return "?";
}

std::optional<Policy> policy_from(std::string_view name) {
  for (const Policy policy : {Policy::nl4, Policy::nl5, Policy::q8, Policy::exact}) {
    if (name == policy_name(policy)) return policy;
  }
  return std::nullopt;
}

std::optional<BlockFormat> quantised_format(const InventoryEntry& entry, const Policies& policies) {
  const TensorKind kind = entry.kind;
  if (kind == TensorKind::vector || kind == TensorKind::router) return std::nullopt;
  const Policy policy = kind == TensorKind::routed_expert ? policies.experts : policies.dense;
  if (policy == Policy::exact) return std::nullopt;
  const bool is_8_bit = kind == TensorKind::embedding || kind == TensorKind::indexer ||
                        entry.is_draft || policy == Policy::q8;
  if (is_8_bit) return BlockFormat::q8;
  return policy == Policy::nl4 ? BlockFormat::nl4 : BlockFormat::nl5;
}

void add_tensor(PlannedTensor tensor, std::vector<PlannedFile>& files) {
  std::string name;
  if (tensor.entry.kind == TensorKind::routed_expert) {
    name = fmt::format("experts-{:03}.safetensors", tensor.entry.layer);
  } else if (tensor.entry.is_draft) {
    name = "mtp-00000.safetensors";
  } else {
    int count = 0;
    int64_t bytes = 0;  // in the last dense file
    for (const PlannedFile& file : files) {
      if (!file.name.starts_with("dense-")) continue;
      ++count;
      bytes = 0;
      for (const PlannedTensor& other : file.tensors) bytes += other.bytes;
    }
    if (count == 0 || bytes + tensor.bytes > dense_file_bytes) ++count;
    name = fmt::format("dense-{:05}.safetensors", count - 1);
  }
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const PlannedFile& each) { return each.name == name; });
  PlannedFile& target = file != files.end() ? *file : files.emplace_back(PlannedFile{name, {}});
  target.tensors.push_back(std::move(tensor));
}

Result<ConversionPlan> plan_conversion(const Checkpoint& checkpoint, const Policies& policies) {
  return Planner(checkpoint, policies).plan();
}

}  // namespace glmd
