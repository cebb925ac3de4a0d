// Every tensor a container of a given checkpoint has, with its layout and logical shape: what the
// converter writes and what Container::open() insists on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storage/checkpoint_config.h"
#include "storage/container.h"

namespace glmd {

// What a policy decides the block format by.
enum class TensorKind : uint8_t {
  routed_expert,
  projection,  // attention, shared experts, dense MLP
  embedding,   // embeddings and output head
  indexer,
  router,
  vector,  // norms and biases
};

struct InventoryEntry {
  std::string name;
  TensorLayout layout = TensorLayout::matrix;
  TensorKind kind = TensorKind::vector;
  int64_t rows = 0, columns = 0;  // a vector: 1 row
  int64_t layer = -1;             // -1: of no layer
  int64_t expert = -1;
  bool is_draft = false;
  bool is_optional = false;  // the draft layer's own embedding and head
};

// In the order in which files are written: by layer, dense before experts.
std::vector<InventoryEntry> list_tensors(const CheckpointConfig& config);

// Stored bytes, whatever the layout. Only for formats the layout allows.
int64_t stored_bytes(TensorLayout layout, BlockFormat format, int64_t rows, int64_t columns);
bool layout_allows(TensorLayout layout, TensorKind kind, BlockFormat format);

const char* layout_name(TensorLayout layout);
const char* format_name(BlockFormat format);

}  // namespace glmd
