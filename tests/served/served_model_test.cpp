#include "served/served_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/convert/tiny_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string embedded_model = GLMD_BINARY_DIR "/share/glmd/models/mini";

// Containers name their files relatively: a folder of links and one changed file is another one,
// which does not say what the files beside the tensors were.
std::string embedded_model_with(const TemporaryFolder& folder, const std::string& name,
                                const std::string& content) {
  for (const auto& entry : std::filesystem::directory_iterator(embedded_model)) {
    const std::string file = entry.path().filename().string();
    if (file == "glmd.json") {
      std::filesystem::copy_file(entry.path(), folder / file);
    } else if (file != name) {
      std::filesystem::create_symlink(entry.path(), folder / file);
    }
  }
  test::forget_accompanying(folder / "");
  if (!content.empty()) std::ofstream(folder / name) << content;
  return folder / "";
}

TEST(ServedModel, check_names_everything_it_opened) {
  const Container container = Container::open(embedded_model).value();
  const Result<CheckedModel> checked = check_model(container);
  ASSERT_TRUE(checked.ok()) << checked.error().message;
  EXPECT_THAT(checked.value().found, HasSubstr("config: 6 layers, 24 experts a layer"));
  EXPECT_THAT(checked.value().found, HasSubstr("generation config: temperature 0"));
  EXPECT_THAT(checked.value().found, HasSubstr("all markers of a conversation"));
  EXPECT_THAT(checked.value().found,
              HasSubstr("chat template: that of GLM-5.2, which glmd renders\n"));
}

TEST(ServedModel, check_refuses_a_tokeniser_that_is_none) {
  const TemporaryFolder folder;
  const std::string path = embedded_model_with(folder, "tokenizer.json", "{}");
  const Result<CheckedModel> checked = check_model(Container::open(path).value());
  ASSERT_FALSE(checked.ok());
  EXPECT_THAT(checked.error().message, HasSubstr("tokenizer.json"));
}

TEST(ServedModel, check_refuses_a_token_beyond_the_embedding) {
  std::string tokens = test::read_text(embedded_model + "/tokenizer.json");
  const std::string last_id = "4131";  // of <|video|>
  tokens.replace(tokens.find(last_id), last_id.size(), "4165");
  const TemporaryFolder folder;
  const std::string path = embedded_model_with(folder, "tokenizer.json", tokens);
  const Result<CheckedModel> text = check_model(Container::open(path).value());
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().kind, ErrorKind::bad_input);
  EXPECT_THAT(text.error().message,
              HasSubstr("tokenizer.json: token \"<|video|>\": wanted an id below 4160, the "
                        "vocab_size of config.json, got 4165"));
}

TEST(ServedModel, check_refuses_a_git_lfs_pointer_in_the_place_of_a_text) {
  for (const char* name : {"tokenizer.json", "generation_config.json"}) {
    const TemporaryFolder folder;
    const std::string path = embedded_model_with(
        folder, name, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
    const Result<Container> container = Container::open(path);
    const Result<CheckedModel> text =
        container.ok() ? check_model(container.value()) : Result<CheckedModel>(container.error());
    ASSERT_FALSE(text.ok());
    EXPECT_THAT(text.error().message, HasSubstr(std::string(name) + ": a Git LFS pointer of"));
  }
}

TEST(ServedModel, check_refuses_a_generation_config_out_of_range) {
  const TemporaryFolder folder;
  const std::string path =
      embedded_model_with(folder, "generation_config.json", R"({"temperature": -1})");
  const Result<CheckedModel> checked = check_model(Container::open(path).value());
  ASSERT_FALSE(checked.ok());
  EXPECT_THAT(checked.error().message, HasSubstr("temperature: wanted a number from 0"));
}

TEST(ServedModel, check_says_where_the_chat_template_is_not_the_one_that_is_rendered) {
  const TemporaryFolder folder;
  const std::string path = embedded_model_with(folder, "chat_template.jinja", "{{ other }}");
  const CheckedModel checked = check_model(Container::open(path).value()).value();
  EXPECT_THAT(checked.found, HasSubstr("another than that of GLM-5.2"));
  EXPECT_THAT(checked.doubts, ElementsAre(HasSubstr("chat_template.jinja: not the chat template")));
}

TEST(ServedModel, check_names_what_it_ignores_of_the_tokeniser) {
  const TemporaryFolder folder;
  Json tokenizer = read_json_file(embedded_model + "/tokenizer.json", 64 << 20).value();
  tokenizer.set("truncation", Json::object({{"max_length", Json::integer(5)}}));
  const std::string path = embedded_model_with(folder, "tokenizer.json", tokenizer.to_string());
  EXPECT_THAT(check_model(Container::open(path).value()).value().found,
              HasSubstr("truncation ignored"));
}

TEST(ServedModel, check_serves_ids_where_there_is_no_tokeniser) {
  const TemporaryFolder folder;
  const std::string path = embedded_model_with(folder, "tokenizer.json", "");
  EXPECT_THAT(check_model(Container::open(path).value()).value().found,
              HasSubstr("only fmt=tokens"));
}

}  // namespace
}  // namespace glmd
