#include "text/chat_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/chat_template.h"

namespace glmd {
namespace {

using testing::HasSubstr;

// The prompt of messages as clients send them, or why there is none.
std::string render(const std::string& messages) {
  Result<Json> chat = parse_json("{\"messages\":" + messages + "}", "prompt");
  if (!chat.ok()) return chat.error().message;
  const Result<void> normalised = normalise_chat(chat.value());
  if (!normalised.ok()) return normalised.error().message;
  const Result<std::vector<TextSpan>> spans = render_chat(chat.value());
  return spans.ok() ? join(spans.value()) : spans.error().message;
}

constexpr const char* opening = "[gMASK]<sop><|system|>Reasoning Effort: Max";
std::string opened(const std::string& rest) {
  return opening + rest;
}

TEST(ChatInput, a_content_that_is_null_or_absent_is_nothing) {
  const std::string wanted = opened(
      "<|user|><|assistant|><think></think><tool_call>w</tool_call><|observation|>"
      "<tool_response></tool_response>");
  EXPECT_EQ(render(R"([{"role":"user","content":null},
                       {"role":"assistant","content":null,"tool_calls":[{"name":"w"}]},
                       {"role":"tool","content":null}])"),
            wanted);
  EXPECT_EQ(render(R"([{"role":"user"},
                       {"role":"assistant","tool_calls":[{"name":"w"}]},{"role":"tool"}])"),
            wanted);
}

TEST(ChatInput, arguments_as_json_text_are_the_object_they_hold) {
  const std::string with_object = render(
      R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"w","arguments":{"c":"P","n":100000000000000000000}}}]}])");
  EXPECT_THAT(with_object, HasSubstr("<arg_key>c</arg_key><arg_value>P</arg_value>"));
  EXPECT_EQ(
      render(
          R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"w","arguments":"{\"c\": \"P\", \"n\": 100000000000000000000}"}}]}])"),
      with_object);
}

TEST(ChatInput, no_arguments_are_an_empty_object_however_they_are_sent) {
  for (const std::string arguments : {R"("null")", R"("")", R"(" ")", "null", "{}", R"("{}")"}) {
    EXPECT_EQ(render(R"([{"role":"assistant","tool_calls":[{"function":{"name":"w","arguments":)" +
                     arguments + "}}]}]"),
              opened("<|assistant|><think></think><tool_call>w</tool_call>"))
        << arguments;
  }
}

TEST(ChatInput, arguments_that_are_no_object_are_refused_by_name) {
  for (const std::string arguments : {R"("[1]")", "[1]", "5", R"("5")"}) {
    EXPECT_THAT(
        render(
            R"([{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"function":{"name":"w","arguments":)" +
            arguments + "}}]}]"),
        HasSubstr("messages[1].tool_calls[0].function.arguments: wanted an object"))
        << arguments;
  }
  EXPECT_THAT(
      render(R"([{"role":"assistant","tool_calls":[{"name":"w","arguments":"{\"c\": "}]}])"),
      HasSubstr("prompt: messages[0].tool_calls[0].arguments: not valid JSON"));
}

TEST(ChatInput, a_developer_is_the_system_and_a_function_a_tool) {
  EXPECT_EQ(render(R"([{"role":"developer","content":"Answer in French."},
                       {"role":"user","content":"hi"},{"role":"function","name":"f","content":"1"}])"),
            opened("<|system|>Answer in French.<|user|>hi<|observation|><tool_response>1"
                   "</tool_response>"));
}

TEST(ChatInput, an_older_function_call_is_a_tool_call) {
  EXPECT_EQ(render(R"([{"role":"assistant","content":null,
                        "function_call":{"name":"w","arguments":"{\"c\":\"P\"}"}}])"),
            opened("<|assistant|><think></think><tool_call>w<arg_key>c</arg_key><arg_value>P"
                   "</arg_value></tool_call>"));
}

TEST(ChatInput, parts_of_any_text_type_are_text) {
  EXPECT_EQ(render(R"([{"role":"user","content":[{"type":"text","text":"a"},
                       {"type":"input_text","text":"b"},"c"]},
                       {"role":"assistant","content":[{"type":"output_text","text":"d"},
                       {"type":"refusal","refusal":"e"}]}])"),
            opened("<|user|>abc<|assistant|><think></think>de"));
}

TEST(ChatInput, images_keep_the_reminder_of_the_template) {
  for (const std::string type : {"image", "image_url", "input_image"}) {
    EXPECT_THAT(render(R"([{"role":"user","content":[{"type":")" + type + R"("}]}])"),
                HasSubstr("You are unable to process this image"))
        << type;
  }
}

TEST(ChatInput, what_is_unknown_is_refused_by_name) {
  const std::pair<std::string, std::string> cases[] = {
      {R"([])", "prompt: messages: wanted an array of objects, got []"},
      {R"([5])", "messages[0]: wanted an object, got 5"},
      {R"([{"content":"x"}])", "messages[0].role: wanted a string, got nothing"},
      {R"([{"role":"user","content":"x"},{"role":"critic","content":"x"}])",
       R"(messages[1].role: wanted one of system, developer, user, assistant, tool, got "critic")"},
      {R"([{"role":"user","content":["a",{"type":"file","file":{}}]}])",
       R"(messages[0].content[1].type: wanted text, or an image, a video or audio, got "file")"},
      {R"([{"role":"user","content":[{"text":"a"}]}])", "messages[0].content[0].type: wanted text"},
      {R"([{"role":"user","content":[{"type":"text","text":null}]}])",
       "messages[0].content[0].text: wanted a string, got null"},
      {R"([{"role":"user","content":[7]}])",
       "messages[0].content[0]: wanted a string or an object"},
      {R"([{"role":"user","content":{"a":null}}])",
       "messages[0].content: wanted a string, an array of parts or null"},
      {R"([{"role":"user","content":[{"output":"o"},{"type":"file"},"tail"]}])",
       "messages[0].content[0].type: wanted text"},
      {R"([{"role":"tool","content":[{"type":"tool_reference","name":"f"},"tail"]}])",
       R"(messages[0].content[1].name: wanted a string)"},
      {R"([{"role":"tool","content":[{"output":"1"},{"output":2}]}])",
       "messages[0].content[1].output: wanted a string, got 2"},
      {R"([{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls: wanted an array"},
      {R"([{"role":"assistant","tool_calls":["w"]}])",
       "messages[0].tool_calls[0]: wanted an object"},
      {R"([{"role":"assistant","tool_calls":[{"function":"w"}]}])",
       "messages[0].tool_calls[0].function: wanted an object"},
  };
  for (const auto& [messages, wanted] : cases)
    EXPECT_THAT(render(messages), HasSubstr(wanted)) << messages;
}

TEST(ChatInput, of_a_name_that_stands_twice_the_last_counts) {
  EXPECT_EQ(render(R"([{"role":"user","role":"developer","content":"x","content":null}])"),
            opened("<|system|>"));
}

TEST(ChatInput, nothing_that_stands_beside_an_empty_member_is_lost) {
  EXPECT_EQ(render(R"([{"role":"assistant","content":null,"refusal":"No."}])"),
            opened("<|assistant|><think></think>No."));
  EXPECT_EQ(render(R"([{"role":"assistant","content":null,"tool_calls":[],
                        "function_call":{"name":"w","arguments":"{}"}}])"),
            opened("<|assistant|><think></think><tool_call>w</tool_call>"));
}

TEST(ChatInput, what_the_template_takes_otherwise_stays_as_it_is) {
  const std::string references =
      R"([{"role":"tool","content":[{"type":"tool_reference","name":"f"},{"name":"g"}]},
          {"role":"tool","content":[{"output":"1"},{"output":"2"}]}])";
  Json chat = parse_json("{\"messages\":" + references + "}", "prompt").value();
  const std::string before = chat.to_string();
  ASSERT_TRUE(normalise_chat(chat).ok());
  EXPECT_EQ(chat.to_string(), before);
}

}  // namespace
}  // namespace glmd
