#include "storage/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "platform/aligned_memory.h"

namespace glmd {
namespace {

constexpr int64_t header_bytes_max = 256 << 20;
constexpr int64_t elements_max = int64_t{1} << 48;

struct TypeName {
  StoredType type;
  std::string_view name;
  int64_t bytes;
};
constexpr TypeName type_names[] = {
    {StoredType::f32, "F32", 4},      {StoredType::f16, "F16", 2},
    {StoredType::bf16, "BF16", 2},    {StoredType::f8_e4m3, "F8_E4M3", 1},
    {StoredType::u8, "U8", 1},        {StoredType::i8, "I8", 1},
    {StoredType::i32, "I32", 4},      {StoredType::i64, "I64", 8},
    {StoredType::boolean, "BOOL", 1},
};

std::optional<StoredType> type_of(const Json* json) {
  if (json == nullptr || !json->is_string()) return std::nullopt;
  for (const TypeName& entry : type_names) {
    if (entry.name == json->as_string()) return entry.type;
  }
  return std::nullopt;
}

bool is_count(const Json& json) {
  return json.is_integer() && !json.is_unsigned_above_int64() && json.as_integer() >= 0;
}

Result<StoredTensor> parse_tensor(const std::string& what, const std::string& name,
                                  const Json& json, int64_t data_offset, int64_t data_bytes) {
  StoredTensor tensor;
  tensor.name = name;
  const std::optional<StoredType> type = type_of(json.find("dtype"));
  if (!type) {
    return error(ErrorKind::bad_input, "{}: dtype: {}", what,
                 json.find("dtype") == nullptr ? "missing"
                                               : "cannot read " + json.find("dtype")->to_string());
  }
  tensor.type = *type;
  const Json* shape = json.find("shape");
  if (shape == nullptr || !shape->is_array() || shape->items().size() > 8) {
    return error(ErrorKind::bad_input, "{}: shape: wanted a list of at most 8 sizes", what);
  }
  int64_t elements = 1;
  for (const Json& size : shape->items()) {
    if (!is_count(size) || size.as_integer() > elements_max ||
        (size.as_integer() > 0 && elements > elements_max / size.as_integer())) {
      return error(ErrorKind::bad_input, "{}: shape: {} is not a size that can be", what,
                   shape->to_string());
    }
    elements *= size.as_integer();
    tensor.shape.push_back(size.as_integer());
  }
  const Json* offsets = json.find("data_offsets");
  if (offsets == nullptr || !offsets->is_array() || offsets->items().size() != 2 ||
      !is_count(offsets->items()[0]) || !is_count(offsets->items()[1])) {
    return error(ErrorKind::bad_input, "{}: data_offsets: wanted two offsets", what);
  }
  const int64_t begin = offsets->items()[0].as_integer(), end = offsets->items()[1].as_integer();
  if (begin > end || end > data_bytes) {
    return error(
        ErrorKind::bad_input,
        "{}: data_offsets [{}, {}]: wanted inside the file's {} data bytes (is it cut short?)",
        what, begin, end, data_bytes);
  }
  tensor.bytes = elements * bytes_of(tensor.type);
  tensor.offset = data_offset + begin;
  if (end - begin != tensor.bytes) {
    return error(ErrorKind::bad_input, "{}: shape {} of {} needs {} bytes, data_offsets give {}",
                 what, shape->to_string(), name_of(tensor.type), tensor.bytes, end - begin);
  }
  return tensor;
}

}  // namespace

int64_t bytes_of(StoredType type) {
  return type_names[static_cast<int>(type)].bytes;
}
std::string_view name_of(StoredType type) {
  return type_names[static_cast<int>(type)].name;
}

Result<std::vector<StoredTensor>> read_safetensors_header(const File& file) {
  const int64_t file_bytes = TRY(file.size_bytes());
  uint64_t header_bytes = 0;
  if (file_bytes < 8) {
    return error(ErrorKind::bad_input, "{}: wanted a safetensors file, got {} bytes", file.path(),
                 file_bytes);
  }
  TRY(file.read_at(0, {reinterpret_cast<uint8_t*>(&header_bytes), sizeof header_bytes}));
  if (header_bytes > static_cast<uint64_t>(std::min(header_bytes_max, file_bytes - 8))) {
    return error(ErrorKind::bad_input, "{}: header of {} bytes: wanted at most {}", file.path(),
                 header_bytes, std::min(header_bytes_max, file_bytes - 8));
  }
  std::string text(header_bytes, '\0');
  TRY(file.read_at(8, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  const Json header = TRY(parse_json(text, file.path() + ": header", 16));
  if (!header.is_object()) {
    return error(ErrorKind::bad_input, "{}: header: wanted a JSON object", file.path());
  }

  const auto data_offset = static_cast<int64_t>(8 + header_bytes);
  std::vector<StoredTensor> tensors;
  std::set<std::string_view> names;
  for (const auto& [name, json] : header.members()) {
    if (name == "__metadata__") continue;
    const std::string what = fmt::format("{}: tensor {}", file.path(), name);
    if (!names.insert(name).second) return error(ErrorKind::bad_input, "{}: stands twice", what);
    tensors.push_back(TRY(parse_tensor(what, name, json, data_offset, file_bytes - data_offset)));
  }
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].offset < tensors[i - 1].offset + tensors[i - 1].bytes) {
      return error(ErrorKind::bad_input, "{}: tensors {} and {} overlap at {}", file.path(),
                   tensors[i - 1].name, tensors[i].name, tensors[i].offset);
    }
  }
  return tensors;
}

std::string make_safetensors_header(std::vector<StoredTensor>& tensors) {
  constexpr int64_t alignment = 4096;
  Json header = Json::object();
  int64_t next = 0;
  for (StoredTensor& tensor : tensors) {
    Json shape = Json::array();
    for (const int64_t size : tensor.shape) shape.items().push_back(Json::integer(size));
    Json entry = Json::object();
    entry.set("dtype", Json::string(std::string(name_of(tensor.type))));
    entry.set("shape", std::move(shape));
    entry.set("data_offsets",
              Json::array({Json::integer(next), Json::integer(next + tensor.bytes)}));
    header.members().emplace_back(tensor.name, std::move(entry));
    tensor.offset = next;
    next += tensor.bytes;
  }
  std::string text = header.to_string();
  const int64_t data_offset = round_up(static_cast<int64_t>(text.size()) + 8, alignment);
  text.resize(static_cast<size_t>(data_offset - 8), ' ');
  const uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  for (StoredTensor& tensor : tensors) tensor.offset += data_offset;
  return bytes + text;
}

}  // namespace glmd
