#include <gtest/gtest.h>

#include "protocol/limits.h"
#include "protocol/line_reader.h"

namespace glmd::protocol {
namespace {

TEST(LineReader, a_line_waits_for_its_end) {
  LineReader reader;
  reader.feed("PI");
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.waiting(), LineReader::Waiting::line_end);
  reader.feed("NG\nST");
  EXPECT_EQ(std::get<Line>(*reader.next()).text, "PING");
  EXPECT_FALSE(reader.next());
}

TEST(LineReader, a_payload_may_hold_anything) {
  LineReader reader;
  const std::string payload("a\n\r\0b", 5);
  reader.feed("X\n" + payload + "\nY\n");
  ASSERT_TRUE(reader.next());
  reader.expect_payload(5);
  EXPECT_EQ(std::get<Payload>(*reader.next()).bytes, payload);
  EXPECT_EQ(std::get<Line>(*reader.next()).text, "Y");
}

TEST(LineReader, a_discarded_payload_takes_no_memory) {
  LineReader reader;
  reader.expect_discard(100);
  reader.feed(std::string(100, 'x') + "\nY\n");
  EXPECT_EQ(std::get<Payload>(*reader.next()).bytes, "");
  EXPECT_EQ(std::get<Line>(*reader.next()).text, "Y");
}

TEST(LineReader, a_payload_without_its_end_is_a_bad_frame) {
  LineReader reader;
  reader.expect_payload(1);
  reader.feed("ab\n");
  EXPECT_EQ(std::get<Fault>(*reader.next()).code, ErrorCode::bad_frame);
  reader.feed("PING\n");
  EXPECT_FALSE(reader.next());
}

TEST(LineReader, the_longest_line_is_4096_bytes_with_its_end) {
  LineReader fits;
  fits.feed(std::string(line_bytes_max - 1, 'A') + "\n");
  EXPECT_TRUE(std::holds_alternative<Line>(*fits.next()));
  LineReader too_long;
  too_long.feed(std::string(line_bytes_max, 'A') + "\n");
  EXPECT_EQ(std::get<Fault>(*too_long.next()).code, ErrorCode::too_long);
}

TEST(LineReader, a_line_is_too_long_before_its_end_comes) {
  LineReader reader;
  reader.feed(std::string(line_bytes_max / 2, 'A'));
  EXPECT_FALSE(reader.next());
  reader.feed(std::string(line_bytes_max / 2, 'A'));
  EXPECT_EQ(std::get<Fault>(*reader.next()).code, ErrorCode::too_long);
}

TEST(LineReader, a_huge_announced_length_reserves_nothing) {
  LineReader reader;
  reader.expect_payload(INT64_MAX);
  reader.feed("abc");
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(reader.waiting(), LineReader::Waiting::payload);
}

}  // namespace
}  // namespace glmd::protocol
