#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/text/text_fixtures.h"
#include "text/unicode.h"

namespace glmd {
namespace {

using Ids = std::vector<int32_t>;

void expect_golden(const Tokenizer& tokenizer, const Json& cases) {
  for (const Json& item : cases.find("encode")->items()) {
    const std::string& text = item.find("text")->as_string();
    const Ids ids = tokenizer.encode(text);
    EXPECT_EQ(ids, ids_of(*item.find("ids"))) << text;
    EXPECT_EQ(tokenizer.decode(ids), item.find("decoded")->as_string());
  }
  for (const Json& item : cases.find("decode")->items()) {
    const Ids ids = ids_of(*item.find("ids"));
    EXPECT_EQ(tokenizer.decode(ids), item.find("decoded")->as_string());
    EXPECT_EQ(tokenizer.decode(ids, true), item.find("visible")->as_string());
  }
}

TEST(Tokenizer, the_embedded_model_gives_the_recorded_ids_and_texts) {
  expect_golden(mini_tokenizer(), golden("mini-tokenizer-cases.json"));
}

TEST(Tokenizer, glm_4_6_gives_the_recorded_ids_and_texts) {
  if (large_tokenizer() == nullptr) GTEST_SKIP() << no_large_tokenizer;
  expect_golden(*large_tokenizer(), golden("glm-4.6-tokenizer-cases.json"));
}

TEST(Tokenizer, an_added_token_is_found_right_after_punctuation) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const int32_t user = tokenizer.find("<|user|>").value();
  Ids wanted = tokenizer.encode("hi!");
  wanted.push_back(user);
  EXPECT_EQ(tokenizer.encode("hi!<|user|>"), wanted);
}

TEST(Tokenizer, white_space_before_a_word_keeps_its_last_space_for_the_word) {
  if (large_tokenizer() == nullptr) GTEST_SKIP() << no_large_tokenizer;
  EXPECT_EQ(large_tokenizer()->encode("a   b"), (Ids{64, 256, 293}));
  EXPECT_EQ(large_tokenizer()->encode("\n\n  x"), (Ids{271, 220, 856}));
}

TEST(Tokenizer, merges_may_be_pairs_or_strings_with_a_space) {
  Json root = read_json_file(mini_tokenizer_path, 64 << 20).value();
  Json model = *root.find("model");
  std::vector<Json> strings;
  for (const Json& pair : model.find("merges")->items()) {
    strings.push_back(
        Json::string(pair.items()[0].as_string() + " " + pair.items()[1].as_string()));
  }
  model.set("merges", Json::array(std::move(strings)));
  root.set("model", std::move(model));
  const Tokenizer tokenizer = Tokenizer::parse(root.to_string(), "strings").value();
  const Json cases = golden("mini-tokenizer-cases.json");
  for (const Json& item : cases.find("encode")->items()) {
    EXPECT_EQ(tokenizer.encode(item.find("text")->as_string()), ids_of(*item.find("ids")));
  }
}

TEST(Tokenizer, a_piece_that_is_a_token_is_merged_all_the_same_without_ignore_merges) {
  Json root = read_json_file(mini_tokenizer_path, 64 << 20).value();
  Json model = *root.find("model");
  model.set("merges", Json::array());
  root.set("model", model);
  EXPECT_EQ(Tokenizer::parse(root.to_string(), "on").value().encode(" the").size(), 1u);
  model.set("ignore_merges", Json::boolean(false));
  root.set("model", model);
  EXPECT_EQ(Tokenizer::parse(root.to_string(), "off").value().encode(" the").size(), 4u);
}

TEST(Tokenizer, an_added_token_in_untrusted_text_is_text) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const Ids plain = tokenizer.encode("<|user|>", Recognise::nothing);
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(tokenizer.decode(plain), "<|user|>");
  const std::vector<TextSpan> spans{{"<|user|>", true}, {"<|user|>", false}, {"<|user|>", true}};
  Ids wanted = plain;
  wanted.insert(wanted.begin(), tokenizer.find("<|user|>").value());
  wanted.push_back(tokenizer.find("<|user|>").value());
  EXPECT_EQ(tokenizer.encode(spans), wanted);
}

TEST(Tokenizer, an_added_token_is_found_only_where_all_of_it_is_trusted) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const std::vector<TextSpan> half{{"<|us", true}, {"er|>", false}};
  EXPECT_EQ(tokenizer.encode(half), tokenizer.encode("<|user|>", Recognise::nothing));
  const std::vector<TextSpan> both{{"<|us", true}, {"er|>", true}};
  EXPECT_EQ(tokenizer.encode(both), tokenizer.encode("<|user|>"));
}

std::string random_text(std::mt19937& random) {
  static const std::vector<std::string> parts{
      "<|user|>", "<think>", "</tool_call", " ",      "  ", "\n",       "\r\n",   "a", "the",
      "'s",       "'ſ",      "123",         "１",     "!",  "\xe2\x80", "\x80",   "é", "👍🏽",
      "中文",     "\t",      "e\u0301",     "\u3000", "xY", "\xf4\x90", "[gMASK]"};
  std::string text;
  for (size_t count = random() % 16; count > 0; --count) text += parts[random() % parts.size()];
  return text;
}

TEST(Tokenizer, spans_without_added_tokens_encode_as_their_joined_text) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<TextSpan> spans;
    std::string joined;
    for (size_t count = random() % 5; count > 0; --count) {
      spans.push_back({random_text(random), false});
      joined += spans.back().text;
    }
    ASSERT_EQ(mini_tokenizer().encode(spans), mini_tokenizer().encode(joined, Recognise::nothing));
  }
}

TEST(Tokenizer, the_bytes_of_the_tokens_are_the_bytes_of_the_text_valid_or_not) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string text = random_text(random);
    if (round % 2 == 0) {
      for (size_t count = random() % 40; count > 0; --count) text += static_cast<char>(random());
    }
    const Ids ids = mini_tokenizer().encode(text);
    std::string bytes;
    for (const int32_t id : ids) bytes += mini_tokenizer().token_bytes(id);
    ASSERT_EQ(bytes, text);
    ASSERT_EQ(mini_tokenizer().decode(ids), replace_invalid_utf8(text));
  }
}

TEST(Tokenizer, a_megabyte_without_a_cut_is_one_piece_and_comes_back) {
  for (const std::string_view unit : {"a", "é", "中", " ", "!", "\n", "ab "}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    EXPECT_EQ(mini_tokenizer().decode(mini_tokenizer().encode(text)), text);
  }
}

TEST(Tokenizer, ids_without_a_token_are_nothing) {
  const Tokenizer& tokenizer = mini_tokenizer();
  const int32_t size = tokenizer.vocabulary_size();
  for (const int32_t id : {-1, size, size + 1, INT32_MIN, INT32_MAX}) {
    EXPECT_FALSE(tokenizer.has_token(id));
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_EQ(tokenizer.decode(Ids{id}), "");
  }
  EXPECT_TRUE(tokenizer.has_token(size - 1));
}

TEST(Tokenizer, special_is_what_the_file_marks_so) {
  const Tokenizer& tokenizer = mini_tokenizer();
  EXPECT_TRUE(tokenizer.is_special(tokenizer.find("<|user|>").value()));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.find("<think>").value()));
  EXPECT_FALSE(tokenizer.find("the").has_value());
}

TEST(Tokenizer, outlives_being_moved) {
  Tokenizer first = Tokenizer::open(mini_tokenizer_path).value();
  const Tokenizer second = std::move(first);
  EXPECT_EQ(second.encode("Hello"), mini_tokenizer().encode("Hello"));
}

// The embedded model's tokeniser with further added tokens: from the id 5000 on, as written here.
Tokenizer mini_with(std::string_view added_tokens) {
  Json root = read_json_file(mini_tokenizer_path, 64 << 20).value();
  Json added = *root.find("added_tokens");
  int64_t id = 5000;
  Json further = parse_json(added_tokens, "test").value();
  for (Json& token : further.items()) {
    token.set("id", Json::integer(id++));
    added.items().push_back(std::move(token));
  }
  root.set("added_tokens", std::move(added));
  return Tokenizer::parse(root.to_string(), "test").value();
}

// Their text, those of `mini_with` by their numbers.
std::string text_of(const Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (const int32_t id : ids) {
    out += id >= 5000 ? fmt::format("[{}]", id - 5000) : std::string(tokenizer.token_bytes(id));
  }
  return out;
}

TEST(Tokenizer, a_single_word_is_not_found_where_a_word_goes_on_beside_it) {
  const Tokenizer tokenizer = mini_with(R"([{"content":"qz","single_word":true}])");
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"qz", "[0]"},
      {" qz!", " [0]!"},
      {"-qz\xff", "-[0]\xff"},
      {"xqz", "xqz"},
      {"qz_", "qz_"},
      {"qzqz", "qzqz"},
      {"中qz", "中qz"},
      {"qz\u0301", "qz\u0301"},
      {"Ⓐqz qz", "Ⓐqz [0]"},
      {"²qz", "²[0]"},
      {"qz<|user|>qz", "[0]<|user|>[0]"},
  };
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(text_of(tokenizer, tokenizer.encode(text)), wanted) << text;
  }
}

TEST(Tokenizer, white_space_is_stripped_up_to_the_token_before) {
  const Tokenizer tokenizer = mini_with(
      R"([{"content":"<l>","lstrip":true},{"content":"<r>","rstrip":true},{"content":"<o>"}])");
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"a \n<l> b", "a[0] b"}, {"a <r>\u3000\u0085 b", "a [1]b"}, {" <l><r> ", "[0][1]"},
      {"<r>  <l>", "[1][0]"},  {"<o> <l> <o>", "[2][0] [2]"},     {"\xa0<l>", "\xa0[0]"},
      {"\x1c<l>", "\x1c[0]"},  {"\u200b <l>", "\u200b[0]"},
  };
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(text_of(tokenizer, tokenizer.encode(text)), wanted) << text;
  }
}

TEST(Tokenizer, stripped_white_space_can_be_a_token_once_more_as_in_the_reference) {
  const Tokenizer tokenizer =
      mini_with(R"([{"content":"<r>","rstrip":true},{"content":"\n"},{"content":" @"}])");
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode("<r>\n  b")), "[0][1]  b");
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode("<r>  @ b")), "[0][2] b");
}

TEST(Tokenizer, normalized_tokens_are_found_in_what_the_others_leave) {
  const Tokenizer tokenizer = mini_with(
      R"([{"content":"qz","normalized":true,"single_word":true},{"content":"zk"},{"content":"@@"}])");
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode("qzk qz")), "q[1] [0]");
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode("@@qz@@ yqz")), "[2][0][2] yqz");
}

TEST(Tokenizer, the_longest_token_at_a_place_counts_even_where_it_is_dropped) {
  const Tokenizer tokenizer =
      mini_with(R"([{"content":"qz"},{"content":"qzk","single_word":true}])");
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode("qzkd qzk qzd")), "qzkd [1] [0]d");
}

TEST(Tokenizer, white_space_is_stripped_where_it_is_trusted) {
  const Tokenizer tokenizer =
      mini_with(R"([{"content":"<b>","lstrip":true,"rstrip":true,"normalized":true}])");
  const std::vector<TextSpan> spans{{"a ", false}, {" ", true},   {"<b>", true},
                                    {" ", true},   {" b", false}, {"<b>", false}};
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode(spans)), "a [0] b<b>");
}

TEST(Tokenizer, a_word_beside_a_single_word_counts_whoever_wrote_it) {
  const Tokenizer tokenizer = mini_with(R"([{"content":"qz","single_word":true}])");
  const std::vector<TextSpan> apart{{"x ", false}, {"qz", true}, {"!", false}};
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode(apart)), "x [0]!");
  const std::vector<TextSpan> beside{{"x", false}, {"qz", true}, {" qz", false}};
  EXPECT_EQ(text_of(tokenizer, tokenizer.encode(beside)), "xqz qz");
}

TEST(Tokenizer, a_megabyte_of_white_space_is_stripped_by_every_token_in_it) {
  const Tokenizer tokenizer =
      mini_with(R"([{"content":" ","lstrip":true,"rstrip":true},{"content":"\n","rstrip":true}])");
  const std::string spaces(1 << 20, ' ');
  EXPECT_EQ(tokenizer.encode(spaces).size(), spaces.size());
  EXPECT_EQ(tokenizer.encode("\n" + spaces).size(), spaces.size() + 1);
}

TEST(Tokenizer, truncation_and_padding_are_ignored_and_named) {
  EXPECT_EQ(mini_tokenizer().ignored_settings(), "");
  Json root = read_json_file(mini_tokenizer_path, 64 << 20).value();
  root.set("padding", parse_json(R"({"strategy":{"Fixed":9},"pad_id":1})", "test").value());
  EXPECT_EQ(Tokenizer::parse(root.to_string(), "test").value().ignored_settings(), "padding");
  root.set("truncation", parse_json(R"({"max_length":1})", "test").value());
  const Tokenizer tokenizer = Tokenizer::parse(root.to_string(), "test").value();
  EXPECT_EQ(tokenizer.ignored_settings(), "truncation and padding");
  EXPECT_EQ(tokenizer.encode("Hello world"), mini_tokenizer().encode("Hello world"));
}

// Malformed files: each is the embedded one with one thing wrong.

using Damage = std::function<void(Json& root, Json& model)>;

struct MalformedCase {
  std::string name;
  std::string message_part;
  Damage damage;
};

Json parsed(std::string_view text) {
  return parse_json(text, "test").value();
}

void change_added(Json& root, std::string_view member, Json value) {
  Json added = *root.find("added_tokens");
  added.items()[0].set(std::string(member), std::move(value));
  root.set("added_tokens", std::move(added));
}

void change_vocab(Json& model, std::string token, Json value) {
  Json vocab = *model.find("vocab");
  vocab.members().emplace_back(std::move(token), std::move(value));
  model.set("vocab", std::move(vocab));
}

std::vector<MalformedCase> malformed_cases() {
  const auto model_is = [](std::string name, std::string_view value) {
    return [name, json = parsed(value)](Json&, Json& model) { model.set(name, json); };
  };
  const auto root_is = [](std::string name, std::string_view value) {
    return [name, json = parsed(value)](Json& root, Json&) { root.set(name, json); };
  };
  const auto added_is = [](std::string name, std::string_view value) {
    return [name, json = parsed(value)](Json& root, Json&) { change_added(root, name, json); };
  };
  const auto vocab_has = [](std::string token, std::string_view value) {
    return [token, json = parsed(value)](Json&, Json& model) { change_vocab(model, token, json); };
  };
  const auto split_is = [](std::string_view pattern, std::string_view rest) {
    const Json json = parsed(fmt::format(
        R"({{"type":"Sequence","pretokenizers":[{{"type":"Split","pattern":{},"invert":false{}}},)"
        R"({{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}}]}})",
        pattern, rest));
    return [json](Json& root, Json&) { root.set("pre_tokenizer", json); };
  };
  return {
      {"type", "model: the type", model_is("type", R"("WordPiece")")},
      {"no type", "model: the type", model_is("type", "null")},
      {"unknown token", "unk_token", model_is("unk_token", R"("<unk>")")},
      {"byte fallback", "byte_fallback", model_is("byte_fallback", "true")},
      {"dropout", "dropout", model_is("dropout", "0.1")},
      {"ignore_merges", "ignore_merges", model_is("ignore_merges", "1")},
      {"vocab list", "vocab is not", model_is("vocab", "[]")},
      {"vocab empty", "merge 0", model_is("vocab", "{}")},
      {"id negative", "not an integer", vocab_has("zzz", "-1")},
      {"id huge", "not an integer", vocab_has("zzz", "2147483647")},
      {"id beyond 64 bits", "not an integer", vocab_has("zzz", "18446744073709551615")},
      {"id beyond all", "not an integer", vocab_has("zzz", "100000000000000000000")},
      {"id fraction", "not an integer", vocab_has("zzz", "1.5")},
      {"id text", "not an integer", vocab_has("zzz", R"("1")")},
      {"id taken", "id 5 is taken", vocab_has("zzz", "5")},
      {"token twice", "stands twice", vocab_has("a", "4095")},
      {"token empty", "empty token", vocab_has("", "4097")},
      {"merges object", "merges is not", model_is("merges", "{}")},
      {"merge number", "merge 0 is neither", model_is("merges", "[1]")},
      {"merge of one", "merge 0 is neither", model_is("merges", R"(["ab"])")},
      {"merge of three", "merge 0 is neither", model_is("merges", R"(["a b c"])")},
      {"merge list of one", "merge 0 is neither", model_is("merges", R"([["a"]])")},
      {"merge list of numbers", "merge 0 is neither", model_is("merges", "[[1,2]]")},
      {"merge of unknown", "not in the vocabulary", model_is("merges", R"([["a","\u4e2d"]])")},
      {"merge into unknown", "not in the vocabulary", model_is("merges", R"([["@","@Q"]])")},
      {"normalizer", "normalizer", root_is("normalizer", R"({"type":"NFC"})")},
      {"no pre_tokenizer", "pre_tokenizer", root_is("pre_tokenizer", "null")},
      {"pre_tokenizer kind", "pre_tokenizer", root_is("pre_tokenizer", R"({"type":"Whitespace"})")},
      {"pre_tokenizer number", "pre_tokenizer", root_is("pre_tokenizer", "3")},
      {"pattern", "is not GLM's", split_is(R"({"Regex":"\\s+"})", R"(,"behavior":"Isolated")")},
      {"pattern missing", "no pattern.Regex", split_is("null", R"(,"behavior":"Isolated")")},
      {"behaviour", "behavior",
       [](Json& root, Json&) {
         Json pretokenizer = *root.find("pre_tokenizer");
         Json steps = *pretokenizer.find("pretokenizers");
         steps.items()[0].set("behavior", Json::string("Removed"));
         pretokenizer.set("pretokenizers", std::move(steps));
         root.set("pre_tokenizer", std::move(pretokenizer));
       }},
      {"post_processor", "post_processor",
       root_is("post_processor", R"({"type":"TemplateProcessing"})")},
      {"decoder", "decoder", root_is("decoder", R"({"type":"WordPiece"})")},
      {"added object", "added_tokens: it is not an array", root_is("added_tokens", "{}")},
      {"added number", "has no content", root_is("added_tokens", "[1]")},
      {"added empty", "has no content", added_is("content", R"("")")},
      {"added id", "not an integer", added_is("id", "-5")},
      {"added id null", "not an integer", added_is("id", "null")},
      {"added id taken", "is taken", added_is("id", "5")},
      {"added twice", "stands twice", added_is("content", R"("<|user|>")")},
      {"added otherwise", "in the vocabulary", added_is("content", R"("a")")},
      {"added strips", "lstrip", added_is("lstrip", "1")},
      {"added normalized", "normalized", added_is("normalized", "[]")},
      {"added special", "special", added_is("special", "3")},
      {"model number", "no model",
       [](Json& root, Json& model) {
         root = Json::object();
         model = Json();
       }},
  };
}

TEST(Tokenizer, a_malformed_file_is_refused_by_name_and_reason) {
  const Json sound = read_json_file(mini_tokenizer_path, 64 << 20).value();
  for (const MalformedCase& item : malformed_cases()) {
    SCOPED_TRACE(item.name);
    Json root = sound;
    Json model = *root.find("model");
    item.damage(root, model);
    root.set("model", std::move(model));
    const Result<Tokenizer> tokenizer = Tokenizer::parse(root.to_string(), "the file");
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.error().kind, ErrorKind::bad_input);
    EXPECT_TRUE(tokenizer.error().message.starts_with("the file: ")) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(item.message_part), std::string::npos)
        << tokenizer.error().message;
  }
  for (const std::string_view text : {"", "[]", "{", "{}", "null", "\xff"}) {
    EXPECT_FALSE(Tokenizer::parse(text, "the file").ok()) << text;
  }
}

TEST(Tokenizer, a_vocabulary_that_lacks_a_byte_is_refused) {
  Json root = read_json_file(mini_tokenizer_path, 64 << 20).value();
  Json model = *root.find("model");
  model.set("merges", Json::array());
  Json vocab = *model.find("vocab");
  std::erase_if(vocab.members(), [](const Json::Member& member) { return member.first == "a"; });
  model.set("vocab", std::move(vocab));
  root.set("model", std::move(model));
  const Result<Tokenizer> tokenizer = Tokenizer::parse(root.to_string(), "the file");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.error().message.find("0x61"), std::string::npos);
}

TEST(Tokenizer, a_cut_off_file_is_refused_wherever_it_is_cut) {
  const std::string text = read_file(mini_tokenizer_path, 64 << 20).value();
  for (size_t bytes = 0; bytes + 2 < text.size(); bytes += 9973) {
    EXPECT_FALSE(Tokenizer::parse(std::string_view(text).substr(0, bytes), "the file").ok());
  }
}

TEST(Tokenizer, a_missing_file_is_an_error_with_its_path) {
  const Result<Tokenizer> tokenizer = Tokenizer::open("/nowhere/tokenizer.json");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.error().message.find("/nowhere/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace glmd
