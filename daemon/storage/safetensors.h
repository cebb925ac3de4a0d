// The safetensors container format: 8 bytes of header length, a JSON header, data. Untrusted:
// sizes, offsets, overlaps and duplicates are checked before anything is read. Spec:
// github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/file.h"
#include "platform/json.h"
#include "platform/result.h"

namespace glmd {

enum class StoredType : uint8_t { f32, f16, bf16, f8_e4m3, u8, i8, i32, i64, boolean };
int64_t bytes_of(StoredType type);
std::string_view name_of(StoredType type);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::u8;
  std::vector<int64_t> shape;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
};

// The tensors of one file, in order of offset.
Result<std::vector<StoredTensor>> read_safetensors_header(const File& file);

// A header for tensors laid one after the other in this order, padded so that the data begins at a
// multiple of 4096. Fills in the offsets.
std::string make_safetensors_header(std::vector<StoredTensor>& tensors);

}  // namespace glmd
