#include <gtest/gtest.h>

#include "protocol/reply.h"

namespace glmd::protocol {
namespace {

std::vector<ReplyReader::Item> read_text(const std::string& text, size_t piece_bytes) {
  ReplyReader reader;
  std::vector<ReplyReader::Item> items;
  for (size_t begin = 0; begin < text.size(); begin += piece_bytes) {
    reader.feed(std::string_view(text).substr(begin, piece_bytes));
    while (auto item = reader.next()) items.push_back(std::move(*item));
  }
  return items;
}

const Reply replies[] = {
    HelloOk{1, "ready", "glmd/0.1", 4096, 8388608},
    Accept{7, 2, 5, 3},
    Queued{7, 1},
    Prefill{7, 3, 5},
    Data{7, false, " there\n"},
    Data{7, true, "hm"},
    Data{7, false, ""},
    Done{7, "stop", 5, 0, 1, UINT64_MAX, 812.5, 4.1},
    Done{7, "length", 5, 0, 1, std::nullopt, 0, 0},
    Failed{std::nullopt, ErrorCode::bad_line, 0, "a \"quoted\" word\nand more"},
    Failed{9, ErrorCode::queue_full, 1500, ""},
    Info{"status", "{\"a\":1}"},
};

TEST(Reply, what_a_server_writes_is_what_a_client_reads) {
  std::string stream;
  for (const Reply& reply : replies) stream += format_reply(reply);
  for (const size_t piece_bytes : {size_t{1}, size_t{7}, stream.size()}) {
    const auto items = read_text(stream, piece_bytes);
    ASSERT_EQ(items.size(), std::size(replies));
    for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(std::get<Reply>(items[i]), replies[i]) << i;
  }
}

TEST(Reply, frames_and_keys_of_a_later_version_are_skipped) {
  const auto items = read_text(
      "NOTE reloaded changed=x\nTOOL 7 0 5 name=f\n{\"a\"}\nLOGPROB 7 2\n{}\nFUTURE 1 2 3 a=b\n"
      "OK OTHER\nDONE 7 reason=stop prompt=1 cached=0 completion=2 later=1\n",
      1000);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(std::get<Done>(std::get<Reply>(items[0])).completion_tokens, 2);
}

TEST(Reply, an_error_code_of_a_later_version_is_unknown) {
  const auto items = read_text("ERROR 7 BRAND_NEW msg=\"x\"\n", 100);
  EXPECT_EQ(std::get<Failed>(std::get<Reply>(items[0])).code, ErrorCode::unknown);
}

TEST(Reply, malformed_frames_end_the_reading) {
  for (const char* text :
       {"DONE 7\n", "DATA x 1\n", "DATA 1\n", "PREFILL 1 3\n", "ACCEPT 1 slot=1\n", "ERROR x Y\n",
        "lower\n", "DATA 1 99999999999\n", "DATA 1 1\nab\n"}) {
    const auto items = read_text(std::string(text) + "QUEUED 1 pos=1\n", 1000);
    ASSERT_EQ(items.size(), 1u) << text;
    EXPECT_TRUE(std::holds_alternative<Fault>(items[0])) << text;
  }
}

TEST(Reply, a_long_message_is_cut_to_fit_its_line) {
  std::string message(899, '\x01');
  message += "é and more";
  const std::string line = format_reply(Failed{1, ErrorCode::engine, 0, message});
  EXPECT_LE(line.size(), 4096u);
  const auto items = read_text(line, 4096);
  EXPECT_EQ(std::get<Failed>(std::get<Reply>(items[0])).message, std::string(899, '\x01'));
}

TEST(Reply, every_code_has_a_name) {
  for (int code = 0; code < static_cast<int>(ErrorCode::unknown); ++code) {
    EXPECT_EQ(error_code_from(to_string(static_cast<ErrorCode>(code))),
              static_cast<ErrorCode>(code));
  }
}

}  // namespace
}  // namespace glmd::protocol
