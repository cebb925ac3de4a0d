// A step of the engine around a step of the model: beside what clients are sent, it takes nothing
// from the heap either.
#include <gtest/gtest.h>

#include "generation/engine.h"
#include "platform/log.h"
#include "tests/support/heap_count.h"
#include "tests/support/reference_model.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

// Without a tokeniser the text of a token is its id, which a string holds by itself, and a few
// events have room in their queue. Status, which comes five times a second, is not due.
TEST(EngineMemory, a_warm_decode_step_takes_nothing_from_the_heap_but_for_text) {
  constexpr int64_t tokens_max = 150, warm_steps = 4;
  const TemporaryFolder folder;
  const Container container =
      convert_and_open(oracle_folder("groups"), folder / "container", Policy::q8, Policy::q8,
                       read_reference("groups").latent_norm_eps);
  const std::unique_ptr<Model> model =
      open_for(container, {.threads = 2, .is_warm = true}, 4 * tokens_max);
  ManualClock clock;
  Channel channel;
  Engine engine(*model, nullptr, {.sessions_max = 2}, channel, clock);
  set_log_level(LogLevel::warning);  // a line of the log is text as well
  for (const RequestId id : {RequestId{1}, RequestId{2}}) {
    channel.send(Command(Submit{.id = id,
                                .format = PromptFormat::tokens,
                                .prompt = fmt::format("[{},7,8,9]", id),
                                .tokens_max = tokens_max,
                                .temperature = 1.0,
                                .top_p = 0.9,
                                .seed = id}));
  }
  std::string taken;
  int64_t ends = 0, texts = 0;
  for (int64_t step = 0; ends < 2; ++step) {
    const int64_t before = heap_count().allocations;
    engine.step();
    const int64_t count = heap_count().allocations - before;
    int64_t texts_now = 0;
    for (const Event& event : channel.take_events()) {
      texts_now += std::holds_alternative<Text>(event);
      ends += std::holds_alternative<Done>(event);
    }
    texts += texts_now;
    if (step >= warm_steps && ends == 0 && count > 0) {
      taken += fmt::format("step {}: {} allocations, {} texts\n", step, count, texts_now);
    }
  }
  set_log_level(LogLevel::info);
  EXPECT_EQ(texts, 2 * tokens_max);
  if (!counts_heap) GTEST_SKIP() << "ran, but a sanitizer has a heap of its own";
  EXPECT_EQ(taken, "");
}

}  // namespace
}  // namespace glmd
