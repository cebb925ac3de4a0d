#include <gtest/gtest.h>

#include <random>

#include "protocol/request.h"

namespace glmd::protocol {
namespace {

using Items = std::vector<RequestReader::Item>;

Items read_all(RequestReader& reader) {
  Items items;
  while (auto item = reader.next()) items.push_back(std::move(*item));
  return items;
}

Items read_text(const std::string& text, const Limits& limits = {}) {
  RequestReader reader(limits);
  reader.feed(text);
  return read_all(reader);
}

// The code of the first fault in `text`, or nothing where all is well.
std::optional<ErrorCode> fault_in(const std::string& text) {
  for (const auto& item : read_text(text)) {
    if (const auto* fault = std::get_if<Fault>(&item)) return fault->code;
  }
  return std::nullopt;
}

TEST(Request, the_grammar_is_kept_to_the_letter) {
  struct Case {
    std::string text;
    std::optional<ErrorCode> fault;
  };
  const std::string tail = "\nabc\n";
  const Case cases[] = {
      {"PING\n", {}},
      {"PING later=1\n", {}},
      {"PING a\n", ErrorCode::bad_value},
      {"STATUS a later=1\n", ErrorCode::bad_value},
      {"PLAN 1\n", ErrorCode::bad_value},
      {"DOCTOR 1\n", ErrorCode::bad_value},
      {"STATUS\n", {}},
      {"PLAN\n", {}},
      {"DOCTOR\n", {}},
      {"HELLO GLMD/1\n", {}},
      {"HELLO GLMD/1 client=\"a b\" note=1\n", {}},
      {"HELLO GLMD/2\n", ErrorCode::version},
      {"HELLO\n", ErrorCode::bad_value},
      {"HELLO HTTP/1\n", ErrorCode::bad_value},
      {"CANCEL 1\n", {}},
      {"CANCEL *\n", {}},
      {"CANCEL 0\n", ErrorCode::bad_value},
      {"CANCEL\n", ErrorCode::bad_value},
      {"STOP 7\n", {}},
      {"STOP *\n", ErrorCode::bad_value},
      {"SLOTS\n", ErrorCode::unknown_verb},
      {"ATTACH 1 job=x\n", ErrorCode::unknown_verb},
      {"\n", ErrorCode::bad_line},
      {" PING\n", ErrorCode::bad_line},
      {"PING \n", ErrorCode::bad_line},
      {"PING  a\n", ErrorCode::bad_line},
      {"ping\n", ErrorCode::bad_line},
      {"PING\r\n", ErrorCode::bad_line},
      {"PI\tNG\n", ErrorCode::bad_line},
      {std::string("PING\0\n", 6), ErrorCode::bad_line},
      {"PING \xff\n", ErrorCode::bad_line},
      {"ABCDEFGHIJKLMNOPQ\n", ErrorCode::bad_line},
      {"PING a=\n", ErrorCode::bad_line},
      {"PING =a\n", ErrorCode::bad_line},
      {"PING A=a\n", ErrorCode::bad_line},
      {"PING a=b=c\n", ErrorCode::bad_line},
      {"PING a=\"b\n", ErrorCode::bad_line},
      {"PING a=\"b\\q\"\n", ErrorCode::bad_line},
      {"SUBMIT 1 - 3 64 0 1" + tail, {}},
      {"SUBMIT 1 - 3 - - -" + tail, {}},
      {"SUBMIT 1 - 3 64 0.7 0.95 seed=42 stop=\"a b\" stop=c fmt=chat" + tail, {}},
      {"SUBMIT 1 - 3 64 0 1 fmt=tokens markup=1 nowait=0" + tail, {}},
      {"SUBMIT 1 name:x 3 64 0 1" + tail, {}},
      {"SUBMIT 1 - 3 64 0" + tail, ErrorCode::bad_frame},
      {"SUBMIT 1 - 3 64 0 1 7" + tail, ErrorCode::bad_frame},
      {"SUBMIT 1 - x 64 0 1" + tail, ErrorCode::bad_frame},
      {"SUBMIT 1 - 99999999999 64 0 1" + tail, ErrorCode::bad_frame},
      {"SUBMIT 1 - 2 64 0 1" + tail, ErrorCode::bad_frame},
      {"SUBMIT 0 - 3 64 0 1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 0 0 1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 -1 0 1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 -1 1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 1e1 1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 nan 1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 0" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1.1" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1 seed=x" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1 stop=\"\"" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1 stop=\"\\xff\"" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1 fmt=xml" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1 top_k=5" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 3 64 0 1 unheard_of=5" + tail, ErrorCode::bad_value},
      {"SUBMIT 1 - 1 64 0 1\n\xff\n", ErrorCode::bad_value},
  };
  for (const Case& c : cases) EXPECT_EQ(fault_in(c.text), c.fault) << c.text;
}

TEST(Request, what_follows_a_skipped_frame_is_understood) {
  const Items items = read_text(
      "SUBMIT 1 - 5 64 0 1 grammar=2\nPING\n\nab\n"
      "NONSENSE\nSUBMIT 2 - 3 x 0 1\nabc\nPING\n");
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(std::get<Fault>(items[0]).code, ErrorCode::bad_value);
  EXPECT_EQ(std::get<Fault>(items[0]).id, 1u);
  EXPECT_EQ(std::get<Fault>(items[1]).code, ErrorCode::unknown_verb);
  EXPECT_EQ(std::get<Fault>(items[2]).id, 2u);
  EXPECT_EQ(std::get<Request>(items[3]), Request(Ping{}));
}

TEST(Request, a_payload_too_large_is_skipped) {
  Limits limits;
  limits.payload_bytes_max = 10;
  const Items items = read_text("SUBMIT 3 - 11 64 0 1\n01234567890\nPING\n", limits);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(std::get<Fault>(items[0]).code, ErrorCode::too_large);
  EXPECT_EQ(std::get<Fault>(items[0]).id, 3u);
}

TEST(Request, a_payload_that_is_coming_can_be_dropped) {
  RequestReader reader;
  reader.feed("SUBMIT 7 - 5 1 0 1\nab");
  EXPECT_FALSE(reader.next());
  ASSERT_NE(reader.coming(), nullptr);
  EXPECT_EQ(reader.coming()->id, 7U);
  EXPECT_EQ(reader.coming_bytes(), 5);
  reader.drop_coming();
  EXPECT_EQ(reader.coming(), nullptr);
  EXPECT_EQ(reader.coming_bytes(), 0);
  reader.feed("cde\nPING\n");
  EXPECT_EQ(read_all(reader), (Items{Request(Ping{})}));
}

TEST(Request, a_cut_off_input_is_told) {
  RequestReader line, payload, whole;
  line.feed("PING");
  payload.feed("SUBMIT 4 - 5 - - -\nhello");
  whole.feed("PING\n");
  for (RequestReader* reader : {&line, &payload, &whole}) read_all(*reader);
  EXPECT_EQ(line.finish()->code, ErrorCode::bad_line);
  EXPECT_EQ(payload.finish()->code, ErrorCode::bad_frame);
  EXPECT_EQ(payload.finish()->id, 4u);
  EXPECT_FALSE(whole.finish());
}

TEST(Request, foreign_protocols_are_known_by_their_first_bytes) {
  for (const char* text : {"GET / HTTP/1.1", "POST /", "PUT /x", "HEAD ", "\x16\x03\x01"}) {
    EXPECT_EQ(judge_opening(text), Opening::foreign) << text;
  }
  for (const char* text : {"PING\n", "HELLO GLMD/1", "GETX", "STATUS"}) {
    EXPECT_EQ(judge_opening(text), Opening::ours) << text;
  }
  for (const char* text : {"", "P", "GET", "HEA"}) {
    EXPECT_EQ(judge_opening(text), Opening::undecided) << text;
  }
}

std::string random_bytes(std::mt19937& random, size_t count) {
  constexpr std::string_view alphabet = "abAB019 \n\"\\=-\xc3\xa9";
  std::string text;
  while (text.size() < count) text += alphabet[random() % alphabet.size()];
  return text;
}

std::string random_text(std::mt19937& random) {
  std::string text;
  for (size_t count = random() % 12; count > 0; --count) {
    constexpr std::string_view pieces[] = {"a", " ", "\n", "\"", "\\", "é", "😀", "=", "\t"};
    text += pieces[random() % std::size(pieces)];
  }
  return text;
}

Request random_request(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
      return Hello{1, random_text(random)};
    case 1:
      return Cancel{random() % 2 ? std::optional<uint64_t>(random() + 1) : std::nullopt};
    case 2:
      return Stop{random() + uint64_t{1}};
    case 3:
      return Ping{};
    case 4:
      return Status{};
    case 5:
      return Plan{};
    case 6:
      return Doctor{};
    default:
      break;
  }
  Submit submit;
  submit.id = random() + uint64_t{1};
  if (random() % 2) submit.tokens_max = random() % 1000 + 1;
  if (random() % 2) submit.temperature = static_cast<double>(random() % 100) / 50;
  if (random() % 2) submit.top_p = static_cast<double>(random() % 100 + 1) / 100;
  if (random() % 2) submit.seed = uint64_t{random()} << 32 | random();
  for (size_t count = random() % 3; count > 0; --count)
    submit.stops.push_back("x" + random_text(random));
  submit.format = static_cast<Format>(random() % 3);
  submit.is_markup_trusted = random() % 2;
  submit.is_waiting_refused = random() % 2;
  submit.payload = random_text(random);
  return submit;
}

TEST(Request, what_a_client_writes_is_what_a_server_reads) {
  const uint32_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const Request request = random_request(random);
    const Items items = read_text(format_request(request));
    ASSERT_EQ(items.size(), 1u) << format_request(request);
    ASSERT_TRUE(std::holds_alternative<Request>(items[0])) << std::get<Fault>(items[0]).message;
    EXPECT_EQ(std::get<Request>(items[0]), request) << format_request(request);
  }
}

// Good frames with a little noise, so that faults of all kinds occur.
std::string random_stream(std::mt19937& random) {
  std::string stream;
  for (int frame = 0; frame < 6; ++frame) stream += format_request(random_request(random));
  if (random() % 2) stream.insert(random() % stream.size(), random_bytes(random, random() % 3));
  if (random() % 8 == 0) stream.insert(random() % stream.size(), std::string(5000, 'A'));
  return stream;
}

TEST(Request, the_items_do_not_depend_on_how_the_bytes_were_cut) {
  const uint32_t seed = 11;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const std::string stream = random_stream(random);
    const Items whole = read_text(stream);
    RequestReader reader;
    Items pieces;
    for (size_t begin = 0; begin < stream.size();) {
      const size_t count = random() % 3 == 0 ? 1 : random() % 100;
      reader.feed(std::string_view(stream).substr(begin, count));
      begin += count;
      if (random() % 2) continue;  // several pieces before one look
      for (auto& item : read_all(reader)) pieces.push_back(std::move(item));
    }
    for (auto& item : read_all(reader)) pieces.push_back(std::move(item));
    ASSERT_EQ(pieces, whole) << "round " << round;
  }
}

}  // namespace
}  // namespace glmd::protocol
