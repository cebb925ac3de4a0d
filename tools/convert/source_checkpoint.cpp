#include "tools/convert/source_checkpoint.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/half.h"

namespace glmd {
namespace {

constexpr int64_t json_bytes_max = 256 << 20;

float e4m3_to_f32(uint8_t byte) {
  const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
  float value = NAN;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-9F;
  } else if (exponent != 15 || mantissa != 7) {
    value = std::ldexp(1.0F + static_cast<float>(mantissa) / 8, exponent - 7);
  }
  return (byte & 128) != 0 ? -value : value;
}

float value_at(StoredType type, const uint8_t* bytes, int64_t i) {
  uint16_t half;
  float value;
  switch (type) {
    case StoredType::f32:
      std::memcpy(&value, bytes + 4 * i, 4);
      return value;
    case StoredType::f16:
      std::memcpy(&half, bytes + 2 * i, 2);
      return f16_to_f32(half);
    case StoredType::bf16:
      std::memcpy(&half, bytes + 2 * i, 2);
      return bf16_to_f32(half);
    default: {
      static const std::vector<float> table = [] {
        std::vector<float> values;
        for (int byte = 0; byte < 256; ++byte)
          values.push_back(e4m3_to_f32(static_cast<uint8_t>(byte)));
        return values;
      }();
      return table[bytes[i]];
    }
  }
}

// Shard names: of the index where there is one, else every *.safetensors.
Result<std::vector<std::string>> shard_names(const std::string& folder,
                                             std::map<std::string, std::string>& weight_map) {
  const std::string index_path = folder + "/model.safetensors.index.json";
  std::set<std::string> names;
  if (path_exists(index_path)) {
    const Json index = TRY(read_json_file(index_path, json_bytes_max));
    const Json* map = index.find("weight_map");
    if (map == nullptr || !map->is_object()) {
      return error(ErrorKind::bad_input, "{}: weight_map: wanted an object", index_path);
    }
    for (const auto& [tensor, shard] : map->members()) {
      if (!shard.is_string() || shard.as_string().find('/') != std::string::npos) {
        return error(ErrorKind::bad_input, "{}: weight_map: {}: {} is no file name", index_path,
                     tensor, shard.to_string());
      }
      weight_map[tensor] = shard.as_string();
      names.insert(shard.as_string());
    }
  } else {
    const std::vector<std::string> files = TRY(list_directory(folder));
    for (const std::string& name : files) {
      if (name.ends_with(".safetensors")) names.insert(name);
    }
  }
  if (names.empty()) {
    return error(ErrorKind::bad_input, "{}: no safetensors files here", folder);
  }
  std::string missing;
  int64_t missing_count = 0;
  for (const std::string& name : names) {
    if (path_exists(folder + "/" + name)) continue;
    missing += (missing_count++ == 0 ? "" : ", ") + name;
  }
  if (missing_count > 0) {
    return error(ErrorKind::bad_input, "{}: {} of {} shards are missing: {}", folder, missing_count,
                 names.size(), missing);
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace

Result<SourceCheckpoint> SourceCheckpoint::open(const std::string& folder) {
  SourceCheckpoint source;
  source.folder_ = folder;
  const std::string config_path = folder + "/config.json";
  const Json config = TRY(read_json_file(config_path, json_bytes_max));
  source.config_ = TRY(CheckpointConfig::parse(config, config_path));

  std::map<std::string, std::string> weight_map;
  const std::vector<std::string> names = TRY(shard_names(folder, weight_map));
  for (const std::string& name : names) {
    File file = TRY(File::open_read_only(folder + "/" + name));
    struct stat status;
    CHECK(::fstat(file.descriptor(), &status) == 0);
    source.shard_stamps_.push_back(fmt::format("{} {} {}.{:09}", name, status.st_size,
                                               status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
    const std::vector<StoredTensor> tensors = TRY(read_safetensors_header(file));
    for (const StoredTensor& tensor : tensors) {
      const auto [place, is_new] =
          source.tensors_.emplace(tensor.name, Place{source.shards_.size(), tensor});
      if (!is_new) {
        return error(ErrorKind::bad_input, "{}: tensor {} stands in {} too", file.path(),
                     tensor.name, source.shards_[place->second.shard].path());
      }
    }
    source.shards_.push_back(std::move(file));
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (source.find(tensor) == nullptr) {
      return error(ErrorKind::bad_input, "{}: tensor {} is missing from {}, where the index has it",
                   folder, tensor, shard);
    }
  }
  return source;
}

const StoredTensor* SourceCheckpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.tensor;
}

std::vector<std::string> SourceCheckpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : tensors_) names.push_back(name);
  return names;
}

Result<void> SourceCheckpoint::read_rows(std::string_view name, std::vector<int64_t> shape,
                                         int64_t begin, int64_t end, float* values) const {
  const auto found = tensors_.find(name);
  CHECK(found != tensors_.end());
  const StoredTensor& tensor = found->second.tensor;
  const File& shard = shards_[found->second.shard];
  if (tensor.shape != shape) {
    return error(ErrorKind::bad_input, "{}: tensor {}: shape: config.json wants [{}], got [{}]",
                 shard.path(), name, fmt::join(shape, ", "), fmt::join(tensor.shape, ", "));
  }
  if (tensor.type != StoredType::f32 && tensor.type != StoredType::f16 &&
      tensor.type != StoredType::bf16 && tensor.type != StoredType::f8_e4m3) {
    return error(ErrorKind::bad_input,
                 "{}: tensor {}: dtype: wanted BF16, F16, F32 or F8_E4M3, got {}", shard.path(),
                 name, name_of(tensor.type));
  }
  const int64_t columns = shape.back();
  const int64_t row_bytes = columns * bytes_of(tensor.type);
  std::vector<uint8_t> stored(static_cast<size_t>((end - begin) * row_bytes));
  TRY(shard.read_at(tensor.offset + begin * row_bytes, stored));
  const int64_t count = (end - begin) * columns;
  for (int64_t i = 0; i < count; ++i) values[i] = value_at(tensor.type, stored.data(), i);
  if (tensor.type == StoredType::f8_e4m3) {
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    TRY(scale_fp8(name, rows, columns, begin, end, values));
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) {
      return error(ErrorKind::bad_input, "{}: tensor {}: value [{}, {}] is not finite",
                   shard.path(), name, begin + i / columns, i % columns);
    }
  }
  return {};
}

Result<void> SourceCheckpoint::scale_fp8(std::string_view name, int64_t rows, int64_t columns,
                                         int64_t begin, int64_t end, float* values) const {
  const std::string scale_name = std::string(name) + "_scale_inv";
  const auto found = tensors_.find(scale_name);
  const int64_t block_rows = config_.fp8_block_rows, block_columns = config_.fp8_block_columns;
  const int64_t scale_rows = (rows + block_rows - 1) / block_rows;
  const int64_t scale_columns = (columns + block_columns - 1) / block_columns;
  if (found == tensors_.end()) {
    return error(ErrorKind::bad_input, "{}: tensor {} is missing: {} is F8_E4M3", folder_,
                 scale_name, name);
  }
  const Place& place = found->second;
  if (place.tensor.type != StoredType::f32 ||
      place.tensor.shape != std::vector<int64_t>{scale_rows, scale_columns}) {
    return error(ErrorKind::bad_input, "{}: tensor {}: wanted F32 [{}, {}], got {} [{}]",
                 shards_[place.shard].path(), scale_name, scale_rows, scale_columns,
                 name_of(place.tensor.type), fmt::join(place.tensor.shape, ", "));
  }
  std::vector<float> scales(static_cast<size_t>(scale_rows * scale_columns));
  TRY(shards_[place.shard].read_at(place.tensor.offset, {reinterpret_cast<uint8_t*>(scales.data()),
                                                         scales.size() * sizeof(float)}));
  for (const float scale : scales) {
    if (!std::isfinite(scale)) {
      return error(ErrorKind::bad_input, "{}: tensor {}: a scale is not finite",
                   shards_[place.shard].path(), scale_name);
    }
  }
  for (int64_t row = begin; row < end; ++row) {
    const float* row_scales = scales.data() + row / block_rows * scale_columns;
    float* row_values = values + (row - begin) * columns;
    for (int64_t column = 0; column < columns; ++column) {
      row_values[column] *= row_scales[column / block_columns];
    }
  }
  return {};
}

}  // namespace glmd
