// Text through the embedded model's tokeniser: thoughts, stop strings, special tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/file.h"
#include "tests/support/engine_rig.h"

namespace glmd {
namespace {

using testing::HasSubstr;

class EngineText : public testing::Test {
 protected:
  EngineText()
      : tokenizer_(Tokenizer::open(GLMD_SOURCE_DIR "/models/mini/tokenizer.json").value()) {}

  // Answers `submit` with the tokens of `script`, then with the stop id <|user|>.
  Received answer(Submit submit, const std::string& script) {
    EngineOptions options;
    options.stop_ids = {tokenizer_.find("<|user|>").value()};
    EngineRig rig(options, {.vocabulary = 4160}, &tokenizer_);
    const std::vector<int32_t> tokens = tokenizer_.encode(script);
    int64_t prompt_tokens = -1;
    rig.model.next_token = [&](const std::vector<int32_t>& history) {
      if (prompt_tokens < 0) prompt_tokens = std::ssize(history);
      const auto index = static_cast<size_t>(std::ssize(history) - prompt_tokens);
      return index < tokens.size() ? tokens[index] : options.stop_ids[0];
    };
    submit.id = 1;
    rig.submit(std::move(submit));
    rig.run();
    return rig[1];
  }

  Submit chat(const std::string& options) const {
    return {.format = PromptFormat::chat,
            .prompt = R"({"messages":[{"role":"user","content":"Hi"}],"options":)" + options + "}"};
  }

  Tokenizer tokenizer_;
};

TEST_F(EngineText, a_conversation_starts_in_thought_until_its_end_marker) {
  const Received received =
      answer(chat(R"({"add_generation_prompt":true})"), "Let me see.</think>Héllo 🐦!");
  EXPECT_EQ(received.thought, "Let me see.");
  EXPECT_EQ(received.answer, "Héllo 🐦!");
  EXPECT_EQ(received.done->reason, "stop");
}

TEST_F(EngineText, the_end_of_a_thought_that_nobody_asked_for_is_a_line_end) {
  const Received received = answer(
      chat(R"({"add_generation_prompt":true,"enable_thinking":false})"), "So 5.</think>It is 5.");
  EXPECT_EQ(received.answer, "So 5.\nIt is 5.");
}

TEST_F(EngineText, without_thinking_all_is_answer) {
  const Received received =
      answer(chat(R"({"add_generation_prompt":true,"enable_thinking":false})"), "Hello");
  EXPECT_EQ(received.thought, "");
  EXPECT_EQ(received.answer, "Hello");
}

// A fine-tune's config may name <|endoftext|> alone; the model ends turns as it was taught.
TEST_F(EngineText, a_chat_ends_at_every_marker_of_a_turn_whatever_the_stop_ids_are) {
  for (const std::string marker : {"<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"}) {
    const Received received =
        answer(chat(R"({"add_generation_prompt":true,"enable_thinking":false})"),
               "They hover." + marker + "What is my favourite colour?");
    EXPECT_EQ(received.answer, "They hover.") << marker;
    EXPECT_EQ(received.done->reason, "stop");
  }
}

TEST_F(EngineText, raw_text_goes_on_after_a_marker_that_is_no_stop_id) {
  const Received received = answer({.prompt = "Hi"}, "They hover.<|assistant|>More");
  EXPECT_EQ(received.answer, "They hover.More");
}

TEST_F(EngineText, a_message_as_clients_send_it_is_what_the_template_takes) {
  const Received received = answer(
      {.format = PromptFormat::chat, .prompt = R"({"messages":[{"role":"critic","content":"x"}]})"},
      "");
  ASSERT_TRUE(received.failed);
  EXPECT_EQ(received.failed->code, "BAD_VALUE");
  EXPECT_THAT(received.failed->message, HasSubstr("messages[0].role: wanted one of system"));
}

// Short as JSON, long as text: it must not be made on the thread on which all others are answered.
TEST_F(EngineText, a_short_conversation_with_a_long_text_is_made_elsewhere) {
  EngineRig rig({.context_tokens = 1'000'000}, {.vocabulary = 4160, .context_max = 1'000'000},
                &tokenizer_);
  std::string references = R"({"type":"tool_reference","name":"f"})";
  for (int i = 1; i < 100; ++i) references += R"(,{"name":"f"})";
  rig.submit({.id = 1,
              .format = PromptFormat::chat,
              .prompt = R"({"tools":[{"name":"f","description":")" + std::string(2000, 'x') +
                        R"("}],"messages":[{"role":"tool","content":[)" + references + "]}]}",
              .tokens_max = 1});
  rig.step();
  EXPECT_EQ(rig[1].accepted, 0);
  rig.engine.handle(rig.channel.wait_for_commands());
  rig.run();
  EXPECT_TRUE(rig[1].done);
}

TEST_F(EngineText, a_text_that_no_context_holds_is_refused_before_it_becomes_tokens) {
  const int64_t longest = tokenizer_.longest_token_bytes();
  EngineRig rig({.context_tokens = 20'000}, {.vocabulary = 4160, .context_max = 20'000},
                &tokenizer_);
  rig.submit({.id = 1, .prompt = std::string(static_cast<size_t>(20'000 * longest + 1), 'x')});
  rig.submit({.id = 2,
              .format = PromptFormat::chat,
              .prompt = R"({"messages":[{"role":"user","content":")" +
                        std::string(static_cast<size_t>(20'000 * longest + 1), ' ') + "\"}]}"});
  while (!rig[1].failed || !rig[2].failed) {
    rig.engine.handle(rig.channel.wait_for_commands());
    rig.run();
  }
  for (const RequestId id : {1, 2}) {
    EXPECT_EQ(rig[id].failed->code, "CONTEXT_EXCEEDED");
    EXPECT_THAT(rig[id].failed->message, HasSubstr("20000 tokens of context"));
  }
}

TEST_F(EngineText, stop_strings_are_looked_for_in_the_answer_only) {
  Submit submit = chat(R"({"add_generation_prompt":true})");
  submit.stops = {"END"};
  const Received received = answer(submit, "The END?</think>Now the END of it");
  EXPECT_EQ(received.thought, "The END?");
  EXPECT_EQ(received.answer, "Now the ");
  EXPECT_EQ(received.done->reason, "stop");
}

TEST_F(EngineText, raw_text_has_no_thoughts_and_special_tokens_are_not_printed) {
  const Received received =
      answer({.format = PromptFormat::raw, .prompt = "Once"}, " upon<|system|> a</think>time");
  EXPECT_EQ(received.answer, " upon a</think>time");
}

TEST_F(EngineText, half_a_character_at_the_end_is_replaced) {
  Submit submit = {.format = PromptFormat::raw, .prompt = "Once"};
  submit.tokens_max = 1;
  ASSERT_GT(tokenizer_.encode("\u4f60").size(), 1u);
  const Received received = answer(submit, "\u4f60");
  EXPECT_EQ(received.answer, "\ufffd");
  EXPECT_EQ(received.done->reason, "length");
}

TEST_F(EngineText, what_is_no_message_is_refused_with_its_place) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({})", "prompt: messages: wanted an array of objects, got nothing"},
      {R"({"messages":"abc"})", "prompt: messages: wanted an array of objects, got \"abc\""},
      {R"({"messages":{"role":"user"}})",
       "prompt: messages: wanted an array of objects, got {\"role\":\"user\"}"},
      {R"({"messages":[]})", "prompt: messages: wanted an array of objects, got []"},
      {R"({"messages":["hi"]})", "prompt: messages[0]: wanted an object, got \"hi\""},
      {R"({"messages":[{"role":"user","content":"a"},{"content":"b"}]})",
       "prompt: messages[1].role: wanted a string, got nothing"},
      {R"({"messages":[{"role":null}]})", "prompt: messages[0].role: wanted a string, got null"}};
  for (const auto& [prompt, message] : cases) {
    const Received received = answer({.format = PromptFormat::chat, .prompt = prompt}, "x");
    ASSERT_TRUE(received.failed) << prompt;
    EXPECT_EQ(received.failed->code, "BAD_VALUE") << prompt;
    EXPECT_EQ(received.failed->message, message);
  }
}

TEST_F(EngineText, messages_that_the_template_knows_nothing_of_are_served) {
  for (const std::string prompt :
       {R"({"messages":[{"role":"developer","content":"d"},{"role":"user","content":"Hi"}]})",
        R"({"messages":[{"role":"user"}]})",
        R"({"messages":[{"role":"assistant","content":null}]})"}) {
    const Received received = answer({.format = PromptFormat::chat, .prompt = prompt}, "x");
    EXPECT_TRUE(received.done) << prompt;
  }
}

TEST_F(EngineText, malformed_conversations_are_the_clients_mistake) {
  for (const std::string prompt : {"", "[]", "{", R"({"messages":5})"}) {
    const Received received = answer({.format = PromptFormat::chat, .prompt = prompt}, "x");
    ASSERT_TRUE(received.failed) << prompt;
    EXPECT_EQ(received.failed->code, "BAD_VALUE") << prompt;
  }
}

}  // namespace
}  // namespace glmd
