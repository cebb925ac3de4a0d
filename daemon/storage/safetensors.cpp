#include "storage/safetensors.h"

#include <algorithm>
#include <set>

#include "platform/aligned_memory.h"
#include "platform/json.h"

namespace glmd {
namespace {

constexpr int64_t header_bytes_max = int64_t{64} << 20;
constexpr int64_t data_alignment = 4096;
constexpr size_t rank_max = 8;

bool is_size(const Json& value) {
  return value.is_integer() && value.as_integer() >= 0;
}

// The bytes of a shape, or an error where the product does not fit.
Result<int64_t> shape_bytes(const std::vector<int64_t>& shape, int64_t element_bits,
                            const std::string& where) {
  int64_t bits = element_bits;
  for (const int64_t dimension : shape) {
    if (__builtin_mul_overflow(bits, dimension, &bits)) {
      return error(ErrorKind::bad_input, "{}: shape: wanted fewer than 2^63 bits, got {}", where,
                   shape_text(shape));
    }
  }
  if (bits % 8 != 0) {
    return error(ErrorKind::bad_input, "{}: shape: wanted whole bytes, got {} bits", where, bits);
  }
  return bits / 8;
}

Result<StoredTensor> read_entry(const std::string& name, const Json& entry, int64_t data_bytes,
                                const std::string& path) {
  const std::string where = path + ": tensor " + name;
  if (!entry.is_object()) {
    return error(ErrorKind::bad_input, "{}: wanted an object, got {}", where, shown(&entry));
  }
  const Json* dtype = entry.find("dtype");
  const Json* shape = entry.find("shape");
  const Json* offsets = entry.find("data_offsets");
  if (dtype == nullptr || !dtype->is_string() || dtype_bits(dtype->as_string()) == 0) {
    return wrong_value(where, "dtype", "a safetensors dtype", dtype);
  }
  if (shape == nullptr || !shape->is_array() || shape->items().size() > rank_max ||
      !std::all_of(shape->items().begin(), shape->items().end(), is_size)) {
    return wrong_value(where, "shape", fmt::format("at most {} sizes", rank_max), shape);
  }
  if (offsets == nullptr || !offsets->is_array() || offsets->items().size() != 2 ||
      !std::all_of(offsets->items().begin(), offsets->items().end(), is_size)) {
    return wrong_value(where, "data_offsets", "two sizes", offsets);
  }
  StoredTensor tensor{.name = name, .dtype = dtype->as_string(), .shape = {}};
  for (const Json& dimension : shape->items()) tensor.shape.push_back(dimension.as_integer());
  const int64_t begin = offsets->items()[0].as_integer();
  const int64_t end = offsets->items()[1].as_integer();
  if (begin > end || end > data_bytes) {
    return error(ErrorKind::bad_input,
                 "{}: data_offsets: wanted a range within the {} bytes of data, got [{}, {}]",
                 where, data_bytes, begin, end);
  }
  tensor.offset = begin;
  tensor.bytes = end - begin;
  const int64_t wanted = TRY(shape_bytes(tensor.shape, dtype_bits(tensor.dtype), where));
  if (wanted != tensor.bytes) {
    return error(ErrorKind::bad_input, "{}: {} {}: wanted {} bytes, got {}", where, tensor.dtype,
                 shape_text(tensor.shape), wanted, tensor.bytes);
  }
  return tensor;
}

// Sorted by offset, each tensor must begin where the last one ended, and the last end where the
// file does.
Result<void> check_no_holes(const SafetensorsHeader& header, int64_t data_bytes,
                            const std::string& path) {
  int64_t end = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.offset != end) {
      return error(ErrorKind::bad_input,
                   "{}: tensor {}: data_offsets: wanted to begin at {}, got {} ({})", path,
                   tensor.name, end, tensor.offset,
                   tensor.offset < end ? "overlaps the tensor before it" : "leaves a hole");
    }
    end = tensor.offset + tensor.bytes;
  }
  if (end != data_bytes) {
    return error(ErrorKind::bad_input,
                 "{}: wanted {} bytes of data, got {} (after the last tensor)", path, end,
                 data_bytes);
  }
  return {};
}

std::string header_text(std::vector<StoredTensor>& tensors) {
  std::string text = "{\"__metadata__\":{\"format\":\"glmd\"}";
  int64_t offset = 0;
  for (StoredTensor& tensor : tensors) {
    text += ',';
    append_json_string(text, tensor.name);
    text += ":{\"dtype\":";
    append_json_string(text, tensor.dtype);
    text += ",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      text += fmt::format("{}{}", i == 0 ? "" : ",", tensor.shape[i]);
    }
    text += fmt::format("],\"data_offsets\":[{},{}]}}", offset, offset + tensor.bytes);
    tensor.offset = offset;
    offset += tensor.bytes;
  }
  text += '}';
  const int64_t data_offset = round_up(static_cast<int64_t>(text.size()) + 8, data_alignment);
  text.resize(static_cast<size_t>(data_offset) - 8, ' ');
  for (StoredTensor& tensor : tensors) tensor.offset += data_offset;
  return text;
}

}  // namespace

int64_t dtype_bits(std::string_view dtype) {
  if (dtype == "BOOL" || dtype == "U8" || dtype == "I8") return 8;
  if (dtype == "F8_E4M3" || dtype == "F8_E5M2" || dtype == "F8_E8M0") return 8;
  if (dtype == "BF16" || dtype == "F16" || dtype == "I16" || dtype == "U16") return 16;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 32;
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 64;
  if (dtype == "F4") return 4;
  return 0;
}

bool is_tensor_name(std::string_view name) {
  return !name.empty() && name.size() <= 512 && std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<SafetensorsHeader> read_safetensors_header(const File& file) {
  const std::string& path = file.path();
  TRY(check_is_downloaded(file));
  const int64_t file_bytes = TRY(file.size_bytes());
  if (file_bytes < 8) {
    return error(ErrorKind::bad_input, "{}: not safetensors: wanted at least 8 bytes, got {}", path,
                 file_bytes);
  }
  uint8_t length_bytes[8];
  TRY(file.read_at(0, length_bytes));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  const uint64_t length_max = static_cast<uint64_t>(std::min(header_bytes_max, file_bytes - 8));
  if (length < 2 || length > length_max) {
    return error(ErrorKind::bad_input, "{}: safetensors header: wanted from 2 to {} bytes, got {}",
                 path, length_max, length);
  }
  std::string text(length, '\0');
  TRY(file.read_at(8, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  const Json json = TRY(parse_json(text, path + ": safetensors header", 16));
  if (!json.is_object()) {
    return wrong_value(path, "safetensors header", "an object", &json);
  }

  SafetensorsHeader header;
  header.data_offset = 8 + static_cast<int64_t>(length);
  const int64_t data_bytes = file_bytes - header.data_offset;
  std::set<std::string_view> names;
  for (const auto& [name, entry] : json.members()) {
    if (!is_tensor_name(name)) {
      const Json got = Json::string(name);
      return wrong_value(path, "tensor name", "1 to 512 printable bytes", &got);
    }
    if (!names.insert(name).second) {
      return error(ErrorKind::bad_input, "{}: tensor {}: stands twice in the header", path, name);
    }
    if (name == "__metadata__") continue;
    header.tensors.push_back(TRY(read_entry(name, entry, data_bytes, path)));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
            });
  TRY(check_no_holes(header, data_bytes, path));
  for (StoredTensor& tensor : header.tensors) tensor.offset += header.data_offset;
  return header;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path,
                                                    std::vector<StoredTensor>& tensors) {
  const std::string text = header_text(tensors);
  SafetensorsWriter writer(TRY(File::create(path)));
  uint8_t length_bytes[8];
  for (int i = 0; i < 8; ++i) length_bytes[i] = static_cast<uint8_t>(text.size() >> (8 * i));
  TRY(writer.write_at(0, length_bytes));
  TRY(writer.write_at(8, {reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
  return writer;
}

Result<void> SafetensorsWriter::write_at(int64_t offset, std::span<const uint8_t> bytes) {
  return file_.write_at(offset, bytes);
}

int64_t SafetensorsWriter::file_bytes(std::vector<StoredTensor> tensors) {
  int64_t total = 8 + static_cast<int64_t>(header_text(tensors).size());
  for (const StoredTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

}  // namespace glmd
