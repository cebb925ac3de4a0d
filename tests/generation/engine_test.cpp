// Requests against a scripted model: every one ends once, none disturbs another, and whoever is
// cancelled is gone within one layer.
#include "generation/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine_rig.h"

namespace glmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// What the request says when it has the engine to itself.
std::string answer_alone(const std::string& tokens, RequestId id, int64_t tokens_max = 8) {
  EngineRig rig;
  rig.submit(id, tokens, tokens_max);
  rig.run();
  return rig[id].answer;
}

TEST(Engine, a_request_is_accepted_speaks_and_is_done) {
  EngineRig rig;
  rig.submit(1, tokens_json(5), 6);
  rig.run();
  ASSERT_TRUE(rig[1].done);
  EXPECT_EQ(rig[1].accepted, 1);
  EXPECT_EQ(rig[1].ends, 1);
  EXPECT_EQ(rig[1].done->reason, "length");
  EXPECT_EQ(rig[1].done->prompt_tokens, 5);
  EXPECT_EQ(rig[1].done->completion_tokens, 6);
  EXPECT_EQ(rig[1].done->seed, 1u);
  EXPECT_EQ(std::count(rig[1].answer.begin(), rig[1].answer.end(), ' '), 6);
  EXPECT_EQ(rig.model.live_sequences(), 0);
}

TEST(Engine, the_same_seed_gives_the_same_text_and_another_one_does_not) {
  EXPECT_EQ(answer_alone("[3,4]", 7, 30), answer_alone("[3,4]", 7, 30));
  EXPECT_NE(answer_alone("[3,4]", 7, 30), answer_alone("[3,4]", 8, 30));
}

TEST(Engine, company_in_the_batch_never_changes_a_text) {
  EngineRig rig({.sessions_max = 3});
  for (RequestId id = 1; id <= 9; ++id) {
    rig.submit(id, tokens_json(static_cast<int64_t>(id) * 13, static_cast<int64_t>(id)), 20);
  }
  rig.run();
  for (RequestId id = 1; id <= 9; ++id) {
    const auto count = static_cast<int64_t>(id);
    EXPECT_EQ(rig[id].answer, answer_alone(tokens_json(count * 13, count), id, 20)) << id;
  }
}

TEST(Engine, running_sessions_share_one_decode_pass) {
  EngineRig rig;
  for (RequestId id = 1; id <= 4; ++id) rig.submit(id, "[1,2]", 5);
  rig.run();
  EXPECT_THAT(rig.model.rows_of_passes, ElementsAre(8, 4, 4, 4, 4));
}

TEST(Engine, a_long_prompt_goes_in_blocks) {
  EngineRig rig;
  rig.submit(1, tokens_json(80), 1);
  rig.run();
  EXPECT_THAT(rig.model.rows_of_passes, ElementsAre(32, 32, 16));
  EXPECT_EQ(rig[1].answer, answer_alone(tokens_json(80), 1, 1));
}

TEST(Engine, decoding_goes_on_between_the_layers_of_a_long_prompt) {
  EngineRig rig;
  rig.submit(1, "[1]", 40);
  rig.step();
  rig.submit(2, tokens_json(32), 1);
  for (int step = 0; step < 4; ++step) {
    const std::string before = rig[1].answer;
    rig.step();
    EXPECT_GT(rig[1].answer.size(), before.size());
  }
  EXPECT_EQ(rig[2].ends, 1);
}

TEST(Engine, those_who_wait_hear_their_position_when_it_changes) {
  EngineRig rig({.sessions_max = 1});
  for (RequestId id = 1; id <= 3; ++id) rig.submit(id, "[1]", 2);
  rig.run();
  EXPECT_THAT(rig[1].positions, ElementsAre());
  EXPECT_THAT(rig[2].positions, ElementsAre(1));
  EXPECT_THAT(rig[3].positions, ElementsAre(2, 1));
  EXPECT_EQ(rig[3].ends, 1);
}

TEST(Engine, a_full_pool_makes_the_next_one_wait) {
  EngineRig rig({.sessions_max = 4}, {.tokens_in_pool = 25});
  rig.submit(1, "[1,2]", 8);
  rig.submit(2, "[1,3]", 8);
  rig.submit(3, "[1,4]", 8);
  rig.run();
  EXPECT_THAT(rig[3].positions, ElementsAre(1));
  for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(rig[id].done->completion_tokens, 8) << id;
}

TEST(Engine, what_cannot_be_served_is_refused_by_name) {
  EngineRig rig({.sessions_max = 1, .context_tokens = 10});
  rig.submit(1, "[]");
  rig.submit(2, tokens_json(10));
  rig.submit(3, "[1,64]");
  rig.submit(4, "[1,-1]");
  rig.submit(5, "{}");
  rig.submit(6, "[1", 4);
  rig.submit(7, "[1]", 0);
  rig.submit({.id = 8, .format = PromptFormat::tokens, .prompt = "[1]", .temperature = -1});
  rig.submit({.id = 9, .format = PromptFormat::tokens, .prompt = "[1]", .top_p = 1.5});
  rig.submit({.id = 10, .format = PromptFormat::raw, .prompt = "text"});
  rig.submit({.id = 11, .format = PromptFormat::chat, .prompt = "{}"});
  rig.submit(12, "[1,100000000000000000000]");
  rig.submit(13, "[1e400]");
  rig.run();
  EXPECT_EQ(rig[1].failed->code, "EMPTY_PROMPT");
  EXPECT_EQ(rig[2].failed->code, "CONTEXT_EXCEEDED");
  EXPECT_THAT(rig[2].failed->message, HasSubstr("10"));
  for (RequestId id = 3; id <= 13; ++id) {
    EXPECT_EQ(rig[id].failed->code, "BAD_VALUE") << id;
    EXPECT_EQ(rig[id].ends, 1) << id;
  }
}

TEST(Engine, new_tokens_end_at_the_context) {
  EngineRig rig({.sessions_max = 1, .context_tokens = 10});
  rig.submit(1, tokens_json(7), 100);
  rig.run();
  EXPECT_EQ(rig[1].done->reason, "length");
  EXPECT_EQ(rig[1].done->completion_tokens, 3);
}

TEST(Engine, a_live_id_is_not_taken_twice) {
  EngineRig rig({.sessions_max = 1});
  rig.submit(1, "[1]", 50);
  rig.submit(1, "[2]", 50);
  rig.step();
  EXPECT_EQ(rig[1].failed->code, "DUPLICATE_ID");
}

TEST(Engine, a_stop_id_ends_the_text_and_is_not_part_of_it) {
  EngineRig rig({.sessions_max = 1, .stop_ids = {9, 8}});
  rig.model.next_token = [](const auto& history) { return history.size() < 5 ? 3 : 8; };
  rig.submit(1, "[1,2]", 50);
  rig.run();
  EXPECT_EQ(rig[1].done->reason, "stop");
  EXPECT_EQ(rig[1].answer, "3 3 3 ");
  EXPECT_EQ(rig[1].done->completion_tokens, 3);
}

TEST(Engine, a_stop_string_is_found_across_tokens) {
  EngineRig rig({.sessions_max = 1});
  rig.model.next_token = [](const auto& history) { return static_cast<int32_t>(history.size()); };
  rig.submit({.id = 1,
              .format = PromptFormat::tokens,
              .prompt = "[1]",
              .tokens_max = 50,
              .stops = {"3 4"}});
  rig.run();
  EXPECT_EQ(rig[1].done->reason, "stop");
  EXPECT_EQ(rig[1].answer, "1 2 ");
}

TEST(Engine, a_held_session_makes_no_tokens_and_others_do) {
  EngineRig rig;
  rig.submit(1, "[1]", 20);
  rig.submit(2, "[2]", 20);
  rig.step();
  rig.channel.send(Command(Hold{1, true}));
  rig.run();
  EXPECT_EQ(rig[1].ends, 0);
  EXPECT_EQ(rig[2].ends, 1);
  EXPECT_EQ(std::count(rig[1].answer.begin(), rig[1].answer.end(), ' '), 1);
  rig.channel.send(Command(Hold{1, false}));
  rig.run();
  EXPECT_EQ(rig[1].answer, answer_alone("[1]", 1, 20));
}

TEST(Engine, stop_ends_a_request_as_done) {
  EngineRig rig;
  rig.submit(1, "[1]", 2000);
  rig.step();
  rig.channel.send(Command(Stop{1}));
  rig.step();
  EXPECT_EQ(rig[1].done->reason, "stop");
  EXPECT_EQ(rig[1].done->completion_tokens, 1);
}

// Cancels request 2 of three when layer `layer` of the pass of that many rows ends, and expects it
// to be gone before another layer runs.
void cancel_at(int64_t layer, int64_t rows, std::vector<std::string> prompts) {
  EngineRig rig;
  bool is_sent = false;
  bool is_checked = false;
  rig.model.on_layer = [&](int64_t layers_done, int64_t pass_rows) {
    if (is_sent && !is_checked) {
      rig.read_events();
      EXPECT_EQ(rig[2].failed ? rig[2].failed->code : "live", "CANCELLED");
      EXPECT_EQ(rig.model.live_sequences(), 2);
      is_checked = true;
    }
    if (!is_sent && layers_done == layer && pass_rows == rows) {
      rig.channel.send(Command(Cancel{2}));
      is_sent = true;
    }
  };
  for (RequestId id = 1; id <= 3; ++id) rig.submit(id, prompts[id - 1], 30);
  rig.run();
  EXPECT_TRUE(is_checked);
  EXPECT_EQ(rig[2].ends, 1);
  EXPECT_EQ(rig.model.live_sequences(), 0);
  for (const RequestId id : {1, 3}) {
    EXPECT_EQ(rig[id].done->completion_tokens, 30);
    EXPECT_EQ(rig[id].answer, answer_alone(prompts[id - 1], id, 30)) << id;
  }
}

TEST(Engine, a_cancel_in_prefill_frees_within_one_layer) {
  for (int64_t layer = 1; layer <= 4; ++layer) {
    cancel_at(layer, 32, {"[1]", tokens_json(60), "[3]"});
    cancel_at(layer, 32, {tokens_json(20), tokens_json(60), tokens_json(40)});
  }
}

TEST(Engine, a_cancel_in_decode_frees_within_one_layer) {
  for (int64_t layer = 1; layer <= 4; ++layer) cancel_at(layer, 3, {"[1]", "[2,5]", "[3]"});
}

TEST(Engine, a_cancel_in_the_queue_takes_no_row) {
  EngineRig rig({.sessions_max = 1});
  for (RequestId id = 1; id <= 3; ++id) rig.submit(id, "[1]", 5);
  rig.step();
  rig.channel.send(Command(Cancel{2}));
  rig.step();
  EXPECT_EQ(rig[2].failed->code, "CANCELLED");
  EXPECT_EQ(rig[2].accepted, 0);
  rig.run();
  EXPECT_EQ(rig[3].ends, 1);
  EXPECT_EQ(rig.model.rows_of_passes.size(), 10u);
}

TEST(Engine, a_failed_pass_fails_only_the_session_that_fails_again) {
  EngineRig rig;
  rig.model.poison = 63;
  rig.submit({.id = 1,
              .format = PromptFormat::tokens,
              .prompt = "[1]",
              .tokens_max = 9,
              .temperature = 0});
  rig.submit(2, "[2,63]", 9);
  rig.submit({.id = 3,
              .format = PromptFormat::tokens,
              .prompt = "[3]",
              .tokens_max = 9,
              .temperature = 0});
  rig.model.next_token = [](const auto& history) { return history.front(); };
  rig.run();
  EXPECT_EQ(rig[1].answer, "1 1 1 1 1 1 1 1 1 ");
  EXPECT_EQ(rig[3].answer, "3 3 3 3 3 3 3 3 3 ");
  EXPECT_EQ(rig[2].failed->code, "ENGINE");
  EXPECT_THAT(rig[2].failed->message, HasSubstr("expert 7: poison"));
  EXPECT_EQ(rig[2].ends, 1);
}

TEST(Engine, a_poisoned_long_prompt_does_not_harm_the_one_beside_it) {
  EngineRig rig;
  rig.model.poison = 63;
  rig.submit(1, tokens_json(20), 4);
  rig.submit(2, tokens_json(20, 63), 4);
  rig.run();
  EXPECT_EQ(rig[1].answer, answer_alone(tokens_json(20), 1, 4));
  EXPECT_EQ(rig[2].failed->code, "ENGINE");
}

TEST(Engine, a_failure_that_passes_is_not_seen) {
  EngineRig rig;
  rig.model.failures_left = 1;
  rig.submit(1, tokens_json(40), 4);
  rig.run();
  EXPECT_EQ(rig[1].answer, answer_alone(tokens_json(40), 1, 4));
}

TEST(Engine, a_long_silent_prompt_reports_its_progress_every_second) {
  EngineRig rig;
  rig.model.on_layer = [&](int64_t, int64_t) { rig.clock.advance_ms(600); };
  rig.submit(1, tokens_json(64), 1);
  rig.run();
  EXPECT_THAT(rig[1].progress, ElementsAre(8, 16, 24, 32, 40, 48, 56, 64));
}

TEST(Engine, draining_refuses_the_new_and_finishes_the_old) {
  EngineRig rig({.sessions_max = 1});
  rig.submit(1, "[1]", 9);
  rig.submit(2, "[1]", 9);
  rig.step();
  rig.channel.send(Command(Drain{}));
  rig.submit(3, "[1]", 9);
  rig.run();
  EXPECT_EQ(rig[1].done->completion_tokens, 9);
  EXPECT_EQ(rig[2].done->completion_tokens, 9);
  EXPECT_EQ(rig[3].failed->code, "DRAINING");
}

TEST(Engine, quit_ends_everyone_and_the_engine) {
  EngineRig rig({.sessions_max = 2});
  for (RequestId id = 1; id <= 3; ++id) rig.submit(id, tokens_json(20), 9);
  rig.step();
  rig.channel.send(Command(Quit{}));
  rig.step();
  EXPECT_TRUE(rig.engine.has_quit());
  EXPECT_EQ(rig.model.live_sequences(), 0);
  for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(rig[id].failed->code, "DRAINING");
}

TEST(Engine, the_status_is_valid_json_and_sent_on_change_only) {
  EngineRig rig;
  rig.submit(1, "[1]", 50);
  rig.run();
  EXPECT_EQ(rig.statuses.size(), 1u);  // the clock stands still
  rig.engine.report_status(true);
  rig.engine.report_status(true);
  rig.read_events();
  ASSERT_EQ(rig.statuses.size(), 2u);
  const Json status = parse_json(rig.statuses.back(), "status").value();
  EXPECT_EQ(status.find("state")->as_string(), "ready");
  EXPECT_EQ(status.find("active")->as_integer(), 0);
  EXPECT_EQ(status.find("totals")->find("completion_tokens")->as_integer(), 50);
}

// A layer of the pass that waits for `seconds` for a disk; `each_second` acts meanwhile.
void wait_for_a_disk(EngineRig& rig, int64_t seconds, const std::function<void()>& each_second) {
  rig.model.pending_read =
      PendingRead{"/srv/experts-003.safetensors", 4096, 2097152, rig.clock.now_ns()};
  for (int64_t second = 0; second < seconds; ++second) {
    rig.clock.advance_ms(1000);
    rig.model.while_waiting();
    each_second();
  }
  rig.model.pending_read.reset();
  rig.model.while_waiting();
}

TEST(Engine, while_a_disk_hangs_the_status_names_the_read_and_the_heart_beats) {
  EngineRig rig;
  std::vector<Json> statuses;
  uint64_t beats = 0;
  rig.model.on_layer = [&](int64_t, int64_t) {
    if (!statuses.empty()) return;
    wait_for_a_disk(rig, 7, [&] {
      EXPECT_GT(rig.channel.heartbeat(), beats);
      beats = rig.channel.heartbeat();
      rig.read_events();
      statuses.push_back(parse_json(rig.statuses.back(), "status").value());
    });
  };
  rig.submit(1, "[1]", 2);
  rig.run();
  ASSERT_EQ(statuses.size(), 7U);
  EXPECT_EQ(statuses[3].find("hanging_read"), nullptr);
  EXPECT_EQ(statuses[3].find("status")->as_string(), "ready, 1 active, 0 queued");
  const Json* read = statuses[6].find("hanging_read");
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->find("file")->as_string(), "/srv/experts-003.safetensors");
  EXPECT_EQ(read->find("offset")->as_integer(), 4096);
  EXPECT_EQ(read->find("bytes")->as_integer(), 2097152);
  EXPECT_EQ(read->find("seconds")->as_integer(), 7);
  EXPECT_EQ(statuses[6].find("status")->as_string(),
            "ready, 1 active, 0 queued, no answer from a disk for 7 s");
  rig.engine.report_status(true);
  rig.read_events();
  EXPECT_EQ(parse_json(rig.statuses.back(), "status").value().find("hanging_read"), nullptr);
  EXPECT_EQ(rig[1].done->completion_tokens, 2);
}

TEST(Engine, the_heart_does_not_beat_for_a_wait_without_a_read) {
  EngineRig rig;
  const uint64_t before = rig.channel.heartbeat();
  rig.model.while_waiting();
  EXPECT_EQ(rig.channel.heartbeat(), before);
}

TEST(Engine, who_is_cancelled_while_a_disk_hangs_is_gone_when_it_answers) {
  EngineRig rig({.sessions_max = 2});
  int64_t layers = 0;
  rig.model.on_layer = [&](int64_t, int64_t) {
    if (++layers == 2) {
      rig.read_events();
      for (const RequestId id : {2, 3}) {
        EXPECT_EQ(rig[id].failed ? rig[id].failed->code : "live", "CANCELLED") << id;
      }
      EXPECT_EQ(rig.model.live_sequences(), 1);
    }
    if (layers > 1) return;
    for (const RequestId id : {2, 3}) rig.channel.send(Command(Cancel{id}));  // 3 is in the queue
    wait_for_a_disk(rig, 7, [&] { EXPECT_EQ(rig.model.live_sequences(), 2) << "the pass runs"; });
  };
  for (const RequestId id : {1, 2, 3}) rig.submit(id, "[1]", 3);
  rig.run();
  EXPECT_GE(layers, 2);
  EXPECT_EQ(rig[1].answer, answer_alone("[1]", 1, 3));
}

// So many misses of 1 MB that were all read in so long a time.
void read(ScriptedModel& model, int64_t count, double busy_seconds) {
  model.expert_stats_now.misses += count;
  model.expert_stats_now.read_bytes += count * 1'000'000;
  model.expert_stats_now.read_seconds += busy_seconds;
}

TEST(Engine, the_status_compares_the_time_of_passes_with_what_bounds_it) {
  EngineRig rig;
  rig.model.on_layer = [&](int64_t, int64_t) {  // 10 ms a layer, 8 of them reading, 4 waiting
    rig.clock.advance_ms(10);
    read(rig.model, 8, 0.008);
    rig.model.expert_stats_now.wait_seconds += 0.004;
  };
  rig.submit(1, "[1]", 50);
  rig.run();
  rig.clock.advance_ms(60'000);  // nobody asks
  rig.engine.report_status(true);
  rig.read_events();
  const Json status = parse_json(rig.statuses.back(), "status").value();
  const Json* speed = status.find("speed");
  ASSERT_NE(speed, nullptr);
  EXPECT_NEAR(speed->find("achieved_of_bound")->as_real(), 0.8, 1e-9);
  EXPECT_NEAR(speed->find("arithmetic_seconds")->as_real(),
              0.6 * speed->find("pass_seconds")->as_real(), 1e-9);
}

TEST(Engine, the_status_knows_that_reads_do_not_hide_behind_the_output_head) {
  EngineRig rig;
  rig.model.on_layer = [&](int64_t layers_done, int64_t) {  // 4 layers of 10 ms, half of it reading
    rig.clock.advance_ms(10);
    read(rig.model, 8, 0.005);
    rig.model.expert_stats_now.wait_seconds += 0.005;
    if (layers_done < 4) return;
    rig.clock.advance_ms(10);
    rig.model.head_seconds_now += 0.010;
  };
  rig.submit(1, "[1]", 50);
  rig.run();
  rig.clock.advance_ms(1000);
  rig.engine.report_status(true);
  rig.read_events();
  const Json status = parse_json(rig.statuses.back(), "status").value();
  // Of 50 ms: 20 of reads, 30 of arithmetic, 10 of which are the head.
  EXPECT_NEAR(status.find("speed")->find("achieved_of_bound")->as_real(), 0.6, 1e-9);
}

TEST(Engine, the_log_and_the_status_say_whether_experts_are_read_ahead) {
  EngineRig rig;
  const auto said_in_step = [&](std::string_view state) {
    rig.model.look_ahead_now = state;
    testing::internal::CaptureStderr();
    rig.step();
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said_in_step("trying"), "");
  EXPECT_EQ(said_in_step("on"), "glmd: look-ahead: on\n");
  EXPECT_EQ(said_in_step("off"), "") << "within a minute";
  rig.clock.advance_ms(60'000);
  EXPECT_EQ(said_in_step("trying"), "");
  EXPECT_EQ(said_in_step("off"), "glmd: look-ahead: off\n");
  EXPECT_EQ(said_in_step("off"), "");
  rig.engine.report_status(true);
  rig.read_events();
  const Json status = parse_json(rig.statuses.back(), "status").value();
  EXPECT_EQ(status.find("experts")->find("look_ahead")->as_string(), "off");
}

// Anything at any time: submits, cancels, stops, holds and failures at random layers.
void soak(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  SplitMix random(seed);
  EngineRig rig({.sessions_max = 3, .context_tokens = 120, .stop_ids = {0}},
                {.tokens_in_pool = 300});
  RequestId submitted = 0;
  const auto act = [&] {
    const auto id =
        submitted == 0 ? 1 : submitted - static_cast<uint64_t>(random.below(6)) % submitted;
    switch (random.below(8)) {
      case 0:
      case 1:
      case 2:
        rig.submit(++submitted, tokens_json(random.below(130) + 1), random.below(40) + 1);
        break;
      case 3:
        rig.channel.send(Command(Cancel{id}));
        break;
      case 4:
        rig.channel.send(Command(Stop{id}));
        break;
      case 5:
        rig.channel.send(Command(Hold{id, true}));
        break;
      case 6:
        rig.channel.send(Command(Hold{id, false}));
        break;
      case 7:
        rig.model.failures_left += random.below(4) == 0 ? 1 : 0;
        break;
    }
  };
  int64_t acts = 0;
  rig.model.on_layer = [&](int64_t, int64_t) {
    if (acts < 2000 && random.below(3) == 0) ++acts, act();
  };
  while (acts < 2000) {
    ++acts;
    act();
    rig.step();
  }
  for (RequestId id = 1; id <= submitted; ++id) rig.channel.send(Command(Hold{id, false}));
  rig.run();
  EXPECT_EQ(rig.model.live_sequences(), 0);
  for (RequestId id = 1; id <= submitted; ++id) {
    EXPECT_EQ(rig[id].ends, 1) << id;
    EXPECT_LE(rig[id].accepted, 1) << id;
  }
}

TEST(Engine, every_request_ends_exactly_once_whatever_happens) {
  for (uint64_t seed = 1; seed <= 8; ++seed) soak(seed);
}

TEST(Engine, experts_are_resized_between_layers_until_reads_let_go) {
  EngineRig rig;
  rig.submit(1, tokens_json(100));
  rig.step();  // the first layer of a long pass
  rig.channel.send(Command(ResizeExperts{1000}));
  rig.model.arena_bytes_in_use = 50;
  rig.step();
  rig.step();
  EXPECT_EQ(rig.model.resizes, (std::vector<int64_t>{1000, 1000}));
  rig.model.arena_bytes_in_use = 0;
  rig.run();
  EXPECT_EQ(rig.model.resizes, (std::vector<int64_t>{1000, 1000, 1000}));
  EXPECT_TRUE(rig[1].done);
  rig.engine.report_status(true);
  rig.read_events();
  EXPECT_THAT(rig.statuses.back(), HasSubstr("\"arena_bytes\":1000"));
}

}  // namespace
}  // namespace glmd
