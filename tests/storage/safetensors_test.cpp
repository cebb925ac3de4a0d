// Headers of safetensors files: what is written is read back, what is broken is refused in one
// line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/safetensors.h"
#include "tests/convert/tiny_checkpoint.h"

namespace glmd {
namespace {

using testing::HasSubstr;

std::string length_bytes(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

std::string with_length(const std::string& header) {
  return length_bytes(header.size()) + header;
}

TEST(Safetensors, what_is_written_is_read_back_and_data_is_aligned) {
  const test::TemporaryFolder folder;
  std::vector<StoredTensor> tensors = {
      {.name = "a", .dtype = "U8", .shape = {5}, .bytes = 5},
      {.name = "b", .dtype = "F32", .shape = {2, 1}, .bytes = 8},
      {.name = "empty", .dtype = "BF16", .shape = {0}, .bytes = 0}};
  const int64_t bytes = SafetensorsWriter::file_bytes(tensors);
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(folder / "file", tensors);
    ASSERT_TRUE(writer.ok());
    const std::vector<uint8_t> data(13, 7);
    ASSERT_TRUE(writer.value().write_at(tensors[0].offset, data).ok());
  }
  const File file = File::open_read_only(folder / "file").value();
  EXPECT_EQ(file.size_bytes().value(), bytes);
  const Result<SafetensorsHeader> header = read_safetensors_header(file);
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header.value().data_offset % 4096, 0);
  ASSERT_EQ(header.value().tensors.size(), 3U);
  EXPECT_EQ(header.value().tensors[1].name, "b");
  EXPECT_EQ(header.value().tensors[1].offset, header.value().data_offset + 5);
  EXPECT_EQ(header.value().tensors[1].shape, (std::vector<int64_t>{2, 1}));
}

struct BrokenFile {
  const char* what;
  std::string content;
  const char* message;
};

TEST(Safetensors, a_broken_file_ends_in_one_clear_line) {
  const std::string four(4, 'x');
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return with_length("{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape +
                       ",\"data_offsets\":" + offsets + "}}");
  };
  const std::vector<BrokenFile> table = {
      {"zero length", "", "wanted at least 8 bytes, got 0"},
      {"seven bytes", "1234567", "wanted at least 8 bytes, got 7"},
      {"header length zero", length_bytes(0) + "{}", "header: wanted from 2"},
      {"header longer than the file", length_bytes(100) + "{}", "got 100"},
      {"header length 2^63", length_bytes(uint64_t{1} << 63) + "{}", "got 9223372036854775808"},
      {"header length 2^64 - 1", length_bytes(~uint64_t{0}) + "{}", "got 18446744073709551615"},
      {"bare key", with_length("{a:1}"), "not valid JSON"},
      {"unterminated string", with_length("{\"a"), "not valid JSON"},
      {"unterminated object", with_length("{\"a\":{"), "not valid JSON"},
      {"not UTF-8", with_length("{\"\xff\xfe\":1}"), "not valid JSON"},
      {"spaces", with_length("     "), "not valid JSON"},
      {"deep", with_length(std::string(5000, '[') + std::string(5000, ']')), "nested deeper"},
      {"a list", with_length("[1,2]"), "wanted an object, got [1,2]"},
      {"a tensor that is a number", with_length("{\"t\":1}"), "tensor t: wanted an object, got 1"},
      {"empty name", with_length("{\"\":{}}"), "tensor name"},
      {"line break in a name", with_length("{\"a\\nb\":{}}"), "tensor name"},
      {"endless name", with_length("{\"" + std::string(600, 'n') + "\":{}}"), "tensor name"},
      {"no dtype", with_length("{\"t\":{\"shape\":[4],\"data_offsets\":[0,4]}}") + four,
       "dtype: wanted a safetensors dtype, got nothing"},
      {"unknown dtype", tensor("\"F7\"", "[4]", "[0,4]") + four, "got \"F7\""},
      {"dtype a number", tensor("8", "[4]", "[0,4]") + four,
       "dtype: wanted a safetensors dtype, got 8"},
      {"no shape", with_length("{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}") + four,
       "shape: wanted"},
      {"negative dimension", tensor("\"U8\"", "[-4]", "[0,4]") + four, "shape: wanted"},
      {"fractional dimension", tensor("\"U8\"", "[4.0]", "[0,4]") + four, "shape: wanted"},
      {"dimension 2^63", tensor("\"U8\"", "[9223372036854775808]", "[0,4]") + four,
       "shape: wanted"},
      {"dimension beyond 64 bits", tensor("\"U8\"", "[100000000000000000000]", "[0,4]") + four,
       "shape: wanted"},
      {"product over 2^63", tensor("\"U8\"", "[4294967296,4294967296]", "[0,4]") + four,
       "shape: wanted fewer than 2^63 bits"},
      {"product wraps to zero", tensor("\"U8\"", "[4611686018427387904,4]", "[0,0]"),
       "shape: wanted fewer than 2^63 bits"},
      {"rank 9", tensor("\"U8\"", "[1,1,1,1,1,1,1,1,4]", "[0,4]") + four, "at most 8 sizes"},
      {"half a byte", tensor("\"F4\"", "[3]", "[0,2]") + "xx", "whole bytes"},
      {"no offsets", with_length("{\"t\":{\"dtype\":\"U8\",\"shape\":[4]}}") + four,
       "data_offsets: wanted two sizes, got nothing"},
      {"one offset", tensor("\"U8\"", "[4]", "[0]") + four, "data_offsets: wanted two sizes"},
      {"negative offset", tensor("\"U8\"", "[4]", "[-4,0]") + four,
       "data_offsets: wanted two sizes"},
      {"offset 2^63", tensor("\"U8\"", "[4]", "[9223372036854775808,9223372036854775812]") + four,
       "data_offsets: wanted two sizes"},
      {"backwards", tensor("\"U8\"", "[4]", "[4,0]") + four, "data_offsets: wanted a range"},
      {"past the end", tensor("\"U8\"", "[8]", "[0,8]") + four,
       "wanted a range within the 4 bytes of data, got [0, 8]"},
      {"fewer bytes than the shape", tensor("\"F32\"", "[2]", "[0,4]") + four,
       "F32 [2]: wanted 8 bytes, got 4"},
      {"more bytes than the shape", tensor("\"U8\"", "[3]", "[0,4]") + four,
       "U8 [3]: wanted 3 bytes, got 4"},
      {"hole in front", tensor("\"U8\"", "[2]", "[2,4]") + four, "leaves a hole"},
      {"bytes after the last", tensor("\"U8\"", "[4]", "[0,4]") + four + four,
       "wanted 4 bytes of data, got 8"},
      {"overlap",
       with_length(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})") +
           four,
       "tensor b: data_offsets: wanted to begin at 3, got 2 (overlaps"},
      {"the same bytes twice",
       with_length(
           R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})") +
           four,
       "overlaps"},
      {"a name twice",
       with_length(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})") +
           four,
       "tensor a: stands twice"},
  };
  const test::TemporaryFolder folder;
  for (const BrokenFile& broken : table) {
    SCOPED_TRACE(broken.what);
    test::write_text(folder / "file", broken.content);
    const File file = File::open_read_only(folder / "file").value();
    const Result<SafetensorsHeader> header = read_safetensors_header(file);
    ASSERT_FALSE(header.ok());
    EXPECT_THAT(header.error().message, HasSubstr(broken.message));
    EXPECT_THAT(header.error().message, HasSubstr(folder / "file"));
    EXPECT_EQ(header.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(exit_code(header.error().kind), 65);
  }
}

// Every truncation and every single changed byte of a good file is read or refused, never a crash.
TEST(Safetensors, damage_anywhere_is_survived) {
  const std::string good =
      with_length(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})") + "abc";
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& content) {
    test::write_text(folder / "file", content);
    return read_safetensors_header(File::open_read_only(folder / "file").value()).ok();
  };
  EXPECT_TRUE(read(good));
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(read(good.substr(0, length)));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 32, 128}) {
      std::string damaged = good;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      read(damaged);
    }
  }
}

}  // namespace
}  // namespace glmd
