// Long prompts: made into tokens elsewhere, while everything else goes on.
#include "generation/prompt_thread.h"

#include <gtest/gtest.h>

#include "tests/support/engine_rig.h"

namespace glmd {
namespace {

constexpr int64_t long_tokens = 40'000;  // two bytes each and more: beyond prompt_bytes_min

EngineOptions long_context() {
  return {.sessions_max = 4, .context_tokens = 2 * long_tokens};
}

ScriptedModel::Options long_model() {
  return {.context_max = 2 * long_tokens};
}

// What the thread sends next.
std::vector<Command> next_commands(EngineRig& rig) {
  return rig.channel.wait_for_commands();
}

TEST(PromptThread, a_long_prompt_is_answered_like_a_short_one) {
  EngineRig rig(long_context(), long_model());
  ASSERT_GE(std::ssize(tokens_json(long_tokens)), PromptThread::prompt_bytes_min);
  rig.submit(1, tokens_json(long_tokens), 3);
  rig.step();
  EXPECT_EQ(rig[1].accepted, 0);
  rig.engine.handle(next_commands(rig));
  rig.run();
  ASSERT_TRUE(rig[1].done);
  EXPECT_EQ(rig[1].done->prompt_tokens, long_tokens);
  EXPECT_EQ(rig[1].done->completion_tokens, 3);
}

TEST(PromptThread, a_long_prompt_that_is_wrong_is_refused) {
  EngineRig rig(long_context(), long_model());
  rig.submit(1, tokens_json(long_tokens) + "]");
  rig.step();
  rig.engine.handle(next_commands(rig));
  rig.run();
  ASSERT_TRUE(rig[1].failed);
  EXPECT_EQ(rig[1].failed->code, "BAD_VALUE");
}

TEST(PromptThread, others_are_answered_before_a_long_prompt_is_ready) {
  EngineRig rig(long_context(), long_model());
  rig.submit(1, tokens_json(long_tokens), 1);
  rig.submit(2, "[1]", 2);
  std::vector<Command> commands = rig.channel.take_commands();
  rig.engine.handle(std::move(commands));
  std::vector<Command> ready = next_commands(rig);  // kept back
  rig.run();
  EXPECT_TRUE(rig[2].done);
  EXPECT_EQ(rig[1].ends, 0);
  rig.engine.handle(std::move(ready));
  rig.run();
  EXPECT_TRUE(rig[1].done);
}

TEST(PromptThread, a_cancelled_one_ends_at_once_and_once) {
  EngineRig rig(long_context(), long_model());
  rig.submit(1, tokens_json(long_tokens));
  rig.submit(2, tokens_json(long_tokens), 1);
  rig.step();
  rig.engine.handle({Cancel{1}});
  rig.read_events();
  ASSERT_TRUE(rig[1].failed);
  EXPECT_EQ(rig[1].failed->code, "CANCELLED");
  while (!rig[2].done) {  // whether the first was in work or not, the second follows
    rig.engine.handle(next_commands(rig));
    rig.run();
  }
  EXPECT_EQ(rig[1].ends, 1);
}

TEST(PromptThread, a_stop_that_came_early_ends_it_when_it_is_ready) {
  EngineRig rig(long_context(), long_model());
  rig.submit(1, tokens_json(long_tokens));
  rig.step();
  std::vector<Command> ready = next_commands(rig);
  rig.engine.handle({Stop{1}});
  rig.engine.handle(std::move(ready));
  rig.run();
  ASSERT_TRUE(rig[1].done);
  EXPECT_EQ(rig[1].done->reason, "stop");
  EXPECT_EQ(rig[1].done->completion_tokens, 0);
}

TEST(PromptThread, a_hold_that_came_early_holds_it) {
  EngineRig rig(long_context(), long_model());
  rig.submit(1, tokens_json(long_tokens), 2);
  rig.step();
  std::vector<Command> ready = next_commands(rig);
  rig.engine.handle({Hold{1, true}});
  rig.engine.handle(std::move(ready));
  rig.run();
  EXPECT_FALSE(rig[1].done);
  rig.engine.handle({Hold{1, false}});
  rig.run();
  EXPECT_TRUE(rig[1].done);
}

TEST(PromptThread, quit_ends_what_is_in_work) {
  EngineRig rig(long_context(), long_model());
  rig.submit(1, tokens_json(long_tokens));
  rig.step();
  rig.engine.handle({Quit{}});
  rig.read_events();
  ASSERT_TRUE(rig[1].failed);
  EXPECT_EQ(rig[1].failed->code, "DRAINING");
}

}  // namespace
}  // namespace glmd
