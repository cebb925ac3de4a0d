// The safetensors format: 8 bytes of header length, a JSON header, then the tensors' bytes without
// holes. Reading trusts nothing; writing pads the header with spaces so that the data starts at a
// multiple of 4096.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/file.h"
#include "platform/result.h"

namespace glmd {

struct StoredTensor {
  std::string name;
  std::string dtype;           // as in the header: BF16, F8_E4M3, ...
  std::vector<int64_t> shape;  // no element negative, product times element size is `bytes`
  int64_t offset = 0;          // in the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  // In the order of their bytes, which follow each other without holes.
  std::vector<StoredTensor> tensors;
  int64_t data_offset = 0;
};

// Bits of an element, or 0 for a dtype we do not know.
int64_t dtype_bits(std::string_view dtype);

// Names go into messages: 1 to 512 bytes, no control characters.
bool is_tensor_name(std::string_view name);

// Checks lengths, names, dtypes, shapes, offsets, overlaps, holes and the size of the file.
Result<SafetensorsHeader> read_safetensors_header(const File& file);

// "[16, 48]"
std::string shape_text(const std::vector<int64_t>& shape);

// Writes one file: the header at once, then each tensor's bytes wherever write_at() is told.
class SafetensorsWriter {
 public:
  // Sets the offsets in `tensors` (name, dtype, shape and bytes are given).
  static Result<SafetensorsWriter> create(const std::string& path,
                                          std::vector<StoredTensor>& tensors);
  Result<void> write_at(int64_t offset, std::span<const uint8_t> bytes);
  void start_sync(int64_t offset, int64_t bytes) { file_.start_sync(offset, bytes); }
  Result<void> sync() { return file_.sync(); }

  // The size of the file that create() starts.
  static int64_t file_bytes(std::vector<StoredTensor> tensors);

 private:
  explicit SafetensorsWriter(File file) : file_(std::move(file)) {}
  File file_;
};

}  // namespace glmd
