#include "text/chat_doubts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_folder.h"
#include "text_fixtures.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int32_t end_of_text = 4096;  // of the embedded model

class ChatDoubts : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }
  std::vector<std::string> doubts(std::vector<int32_t> stops) {
    return chat_doubts(folder_ / "", stops, tokenizer_).value();
  }
  const TemporaryFolder folder_;
  const Tokenizer& tokenizer_ = mini_tokenizer();
  std::vector<int32_t> good_stops() {
    return {end_of_text, *tokenizer_.find("<|user|>"), *tokenizer_.find("<|observation|>")};
  }
};

TEST_F(ChatDoubts, a_model_without_a_template_and_with_all_stop_ids_has_none) {
  EXPECT_THAT(doubts(good_stops()), IsEmpty());
  EXPECT_EQ(template_origin(folder_ / "").value(), TemplateOrigin::none);
}

TEST_F(ChatDoubts, the_official_template_is_known_wherever_it_stands) {
  const std::string official =
      read_file(GLMD_SOURCE_DIR "/models/mini/chat_template.jinja", 1 << 20).value();
  write("tokenizer_config.json",
        Json::object({{"chat_template", Json::string(official)}}).to_string());
  EXPECT_EQ(template_origin(folder_ / "").value(), TemplateOrigin::built_in);
  write("chat_template.jinja", official + "\n\n");
  EXPECT_EQ(template_origin(folder_ / "").value(), TemplateOrigin::built_in);
  EXPECT_THAT(doubts(good_stops()), IsEmpty());
}

TEST_F(ChatDoubts, another_template_is_named_in_its_file_and_in_the_config) {
  const std::string other =
      "{% for m in messages %}<|user|>CUSTOM {{ m.content }}{% endfor %}<|assistant|>";
  write("tokenizer_config.json",
        Json::object({{"chat_template", Json::string(other)}}).to_string());
  EXPECT_THAT(doubts(good_stops()),
              ElementsAre(HasSubstr("tokenizer_config.json: not the chat template of GLM-5.2")));
  const Json named =
      Json::object({{"name", Json::string("default")}, {"template", Json::string(other)}});
  write("tokenizer_config.json",
        Json::object({{"chat_template", Json::array({named})}}).to_string());
  EXPECT_THAT(doubts(good_stops()), ElementsAre(HasSubstr("tokenizer_config.json: not")));
  write("chat_template.jinja", other);
  EXPECT_THAT(doubts(good_stops()), ElementsAre(HasSubstr("chat_template.jinja: not")));
}

TEST_F(ChatDoubts, stop_ids_without_the_markers_of_a_turn_are_named) {
  EXPECT_THAT(doubts({end_of_text}),
              ElementsAre(testing::AllOf(HasSubstr("eos_token_id: [4096] lacks <|user|>"),
                                         HasSubstr("<|observation|>"))));
}

TEST_F(ChatDoubts, stop_ids_of_text_or_of_no_token_are_named) {
  std::vector<int32_t> stops = good_stops();
  stops.push_back(65);
  stops.push_back(4159);
  EXPECT_THAT(doubts(stops), ElementsAre(HasSubstr("eos_token_id: 65 is the text"),
                                         HasSubstr("no token has the id 4159")));
}

TEST_F(ChatDoubts, a_stop_id_of_half_a_character_is_named_in_whole_ones) {
  std::vector<int32_t> stops = good_stops();
  stops.push_back(tokenizer_.encode("\xff")[0]);
  EXPECT_THAT(doubts(stops), ElementsAre(HasSubstr("is the text \"\ufffd\"")));
}

}  // namespace
}  // namespace glmd
