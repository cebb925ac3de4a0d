#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "platform/unix_socket.h"
#include "tests/support/scripted_engine.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;
};

// What a shell would see: the stdout and exit code of `command`, where $G is glmctl.
Outcome run(const std::string& command) {
  // $I is glmctl for the background: shells start what runs there with SIGINT ignored.
  const std::string line = "G=" GLMCTL "; I=\"env --default-signal=INT $G\"; " + command;
  FILE* pipe = ::popen(line.c_str(), "r");
  CHECK(pipe != nullptr);
  Outcome result;
  char bytes[4096];
  for (size_t count; (count = fread(bytes, 1, sizeof(bytes), pipe)) > 0;)
    result.output.append(bytes, count);
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

class Glmctl : public testing::Test {
 protected:
  Glmctl() { ::setenv("GLMD_SOCKET", test_.path().c_str(), 1); }
  ~Glmctl() override { ::unsetenv("GLMD_SOCKET"); }
  ServerUnderTest test_;
};

TEST_F(Glmctl, stdout_holds_the_answer_and_one_newline_only) {
  const Outcome result = run("$G ask echo hi </dev/null 2>/dev/null");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, "hi\n");
}

TEST_F(Glmctl, thoughts_go_to_stderr) {
  const Outcome result = run("$G ask --think echo hi </dev/null 2>&1 >/dev/null");
  EXPECT_EQ(result.output, "hm\n");
}

TEST_F(Glmctl, json_is_one_object) {
  const Outcome result = run("$G ask --json --seed 18446744073709551615 echo hi </dev/null");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output,
              HasSubstr("{\"answer\":\"hi\",\"thought\":\"hm\",\"reason\":\"stop\","));
  EXPECT_THAT(result.output, HasSubstr("\"seed\":18446744073709551615}\n"));
}

TEST_F(Glmctl, stdin_is_appended_when_piped) {
  EXPECT_EQ(run("printf 'echo piped' | $G ask 2>/dev/null").output, "piped\n");
  EXPECT_EQ(run("printf 'b' | $G ask echo a 2>/dev/null").output,
            "a\\n\\nb\n");  // as in the chat's JSON
}

TEST_F(Glmctl, exit_codes_tell_what_went_wrong) {
  const struct {
    const char* command;
    int code;
  } cases[] = {
      {"$G ping", 0},
      {"$G status", 0},
      {"$G status --json", 0},
      {"$G wait-ready --timeout 10", 0},
      {"$G wait-ready --timeout 0", 0},
      {"$G plan --json", 0},
      {"$G --help", 0},
      {"$G ask --max 10 --temperature 0.5 --top-p 0.9 --stop a --stop b -s sys --effort high echo "
       "hi",
       0},
      {"$G", 64},
      {"$G nonsense", 64},
      {"$G ask", 64},
      {"$G ask --max x hi", 64},
      {"$G ask --max 0 hi", 64},
      {"$G ask --effort low hi", 64},
      {"$G ask --max 99999999999999999999 hi", 64},
      {"$G ask --seed -1 hi", 64},
      {"$G ask --seed 18446744073709551616 hi", 64},
      {"$G ask --temperature nan hi", 64},
      {"$G ask --temperature 0.5x hi", 64},
      {"$G ask --top-p 0 hi", 64},
      {"$G ask --timeout 1e300 hi", 64},
      {"$G ask --timeout inf hi", 64},
      {"$G ask --timeout 0 hi", 64},
      {"$G ask --stop '' hi", 64},
      {"$G ask --stop $(printf '%05000d' 0) hi", 64},
      {"$G ask $(for i in 1 2 3 4 5 6 7 8; do printf -- '--stop %0600d ' $i; done) hi", 64},
      {"$G ask $(for i in 1 2 3 4 5 6 7 8 9 a b c d e f g h; do echo --stop $i; done) hi", 64},
      {"$G wait-ready --timeout nan", 64},
      {"$G wait-ready --timeout -1", 64},
      {"$G ask --no-such-option hi", 64},
      {"$G ask fail", 65},
      {"$G ask \"$(printf 'a\\377')\"", 65},
      {"$G ask -f '' hi", 64},
      {"$G --socket '' ask hi", 64},
      {"$G ask -f /nonexistent hi", 66},
      {"$G ask -f / hi", 74},
      {"$G --socket /nonexistent/s ask hi", 69},
      {"$G ping --socket /nonexistent/s", 69},
      {"$G ping --socket /$(printf '%0107d' 0)", 64},
      {"$G ping --socket @glmd", 64},
      {"GLMD_SOCKET=@glmd $G ping", 64},
      {"$G wait-ready --timeout 0.2 --socket @glmd", 64},
      {"$G plan --socket @glmd", 64},
      {"$G ask echo hi > /dev/full", 74},
      {"$G status > /dev/full", 74},
      {"$G --help > /dev/full", 74},
      {"$G --version > /dev/full", 74},
      {"$G ask echo hi >&-", 74},
      {"$G ask echo hi <&- >&- 2>&-", 74},
      {"$G ask --timeout 0.2 wait", 124},
      {"$G wait-ready --timeout 0.2 --socket /nonexistent/s", 124},
      {"$G wait-ready --timeout 0 --socket /nonexistent/s", 124},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(run(std::string("{ ") + c.command + "; } </dev/null 2>/dev/null").code, c.code)
        << c.command;
  }
}

TEST_F(Glmctl, an_error_is_one_line) {
  const Outcome result = run("$G ask fail </dev/null 2>&1");
  EXPECT_EQ(result.output, "glmctl: CONTEXT_EXCEEDED: too long\n");
}

TEST_F(Glmctl, a_usage_error_names_what_was_wanted_and_what_came) {
  const struct {
    const char* arguments;
    const char* message;
  } cases[] = {
      {"nonsense", "nonsense"},
      {"", "wanted a command, got none"},
      {"ask --max 0 hi", "--max: wanted a number from 1 to 1099511627776, got \"0\""},
      {"ask --timeout abc hi", "--timeout: wanted a number from 0.001 to 1000000000, got \"abc\""},
      {"ask --stop '' hi", "--stop: wanted a text"},
      {"ask --color some hi", "some not in {auto,always,never}"},
      {"ask -f '' hi", "--file: wanted a path, got an empty one"},
      {"--socket '' ask hi", "--socket: wanted a path, got an empty one"},
      {"--socket @glmd ask hi",
       "@glmd: wanted the path of a socket, got the notation of an abstract"},
  };
  for (const auto& c : cases) {
    const std::string output = run("$G " + std::string(c.arguments) + " 2>&1").output;
    EXPECT_THAT(output, testing::StartsWith("glmctl: ")) << c.arguments;
    EXPECT_THAT(output, HasSubstr(c.message)) << c.arguments;
  }
}

TEST_F(Glmctl, thinking_is_left_to_the_model_unless_asked_for) {
  const auto prompt_of = [](const std::string& flags) {
    return run("$G ask " + flags + " prompt </dev/null 2>/dev/null").output;
  };
  EXPECT_THAT(prompt_of(""), testing::Not(HasSubstr("enable_thinking")));
  EXPECT_THAT(prompt_of("--effort max"), testing::Not(HasSubstr("enable_thinking")));
  EXPECT_THAT(prompt_of("--think"), HasSubstr("\"enable_thinking\":true"));
  EXPECT_THAT(prompt_of("--no-think"), HasSubstr("\"enable_thinking\":false"));
}

TEST_F(Glmctl, a_file_is_read_to_its_end_be_it_a_pipe) {
  EXPECT_EQ(run("printf b | $G ask echo a -f /dev/fd/3 3<&0 </dev/null 2>/dev/null").output,
            "a\\n\\nb\n");
  EXPECT_THAT(run("$G ask echo a -f /proc/self/status </dev/null 2>/dev/null").output,
              HasSubstr("Name:"));
}

TEST_F(Glmctl, time_that_is_up_says_what_was_waited_for) {
  const Outcome asked = run("$G ask --timeout 0.2 wait </dev/null 2>&1 >/dev/null");
  EXPECT_EQ(asked.code, 124);
  EXPECT_EQ(asked.output, "glmctl: no complete answer within 0.2 s from " + test_.path() + "\n");
  const Outcome waited = run("$G wait-ready --timeout 0.2 --socket /nonexistent/s 2>&1");
  EXPECT_EQ(waited.code, 124);
  EXPECT_EQ(waited.output,
            "glmctl: not ready within 0.2 s: connect to /nonexistent/s: No such file or "
            "directory\n");
}

TEST_F(Glmctl, the_limit_holds_while_the_question_is_read) {
  const auto seconds_of = [](const std::string& command, const std::string& message) {
    const auto begin = std::chrono::steady_clock::now();
    const Outcome result = run(command);
    EXPECT_EQ(result.code, 124) << command;
    EXPECT_EQ(result.output, message);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // The writers keep their ends open for far longer.
  EXPECT_LT(seconds_of("p=$(mktemp -u); mkfifo $p; exec 3<>$p; rm $p; "
                       "$G ask --timeout 0.2 echo hi <&3 2>&1",
                       "glmctl: standard input: time is up before its end\n"),
            20);
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  EXPECT_LT(seconds_of(
                "mkfifo " + pipe + "; $G ask --timeout 0.2 -f " + pipe + " echo hi </dev/null 2>&1",
                "glmctl: " + pipe + ": time is up before its end\n"),
            20);
  const Outcome json =
      run("$G ask --json --timeout 0.2 -f " + pipe + " echo hi </dev/null 2>/dev/null");
  EXPECT_THAT(json.output, HasSubstr("\"reason\":\"timeout\""));
}

TEST_F(Glmctl, a_named_pipe_is_read_when_its_writer_comes) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  EXPECT_EQ(run("mkfifo " + pipe + "; (sleep 0.3; printf b; sleep 0.3; printf c) >" + pipe +
                " & $G ask echo a -f " + pipe + " </dev/null 2>/dev/null")
                .output,
            "a\\n\\nbc\n");
}

TEST_F(Glmctl, waiting_without_end_says_once_what_for) {
  const Outcome result =
      run("f=$(mktemp); $I wait-ready --socket /nonexistent/s 2>$f & p=$!; "
          "until grep -q waiting $f; do sleep 0.05; done; sleep 0.5; kill -INT $p; wait $p; c=$?; "
          "cat $f; rm $f; exit $c");
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(result.output,
            "glmctl: waiting: connect to /nonexistent/s: No such file or directory\n");
}

TEST_F(Glmctl, an_interrupt_prints_what_came_and_cancels) {
  const Outcome result =
      run("f=$(mktemp); $I ask wait </dev/null >$f 2>/dev/null & p=$!; "
          "until grep -q begun $f; do sleep 0.05; done; kill -INT $p; wait $p; c=$?; cat $f; rm "
          "$f; exit $c");
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(result.output, "begun\n");
  EXPECT_EQ(test_.engine().cancel_count(), 1);
}

TEST_F(Glmctl, an_interrupted_json_is_one_object_with_what_came) {
  const Outcome result =
      run("$I ask --json wait </dev/null 2>/dev/null & p=$!; "
          "until $G status --json | grep -q '\"live\":1'; do sleep 0.05; done; "
          "kill -INT $p; wait $p");
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(result.output,
            "{\"answer\":\"begun\",\"thought\":\"\",\"reason\":\"interrupted\",\"usage\":null,"
            "\"seed\":null}\n");
}

TEST_F(Glmctl, a_json_that_ran_out_of_time_says_so) {
  const Outcome result = run("$G ask --json --timeout 0.3 wait </dev/null 2>/dev/null");
  EXPECT_EQ(result.code, 124);
  EXPECT_THAT(result.output, HasSubstr("{\"answer\":\"begun\""));
  EXPECT_THAT(result.output, HasSubstr("\"reason\":\"timeout\""));
}

TEST_F(Glmctl, a_json_of_a_failed_request_names_the_error) {
  const Outcome result = run("$G ask --json fail </dev/null 2>/dev/null");
  EXPECT_EQ(result.code, 65);
  EXPECT_THAT(result.output,
              HasSubstr("\"reason\":\"error\",\"error\":\"CONTEXT_EXCEEDED: too long\""));
}

TEST_F(Glmctl, whatever_a_json_fails_for_it_is_one_object) {
  const Outcome absent = run("$G ask --json --socket /nonexistent/s hi </dev/null 2>/dev/null");
  EXPECT_EQ(absent.code, 69);
  EXPECT_EQ(absent.output,
            "{\"answer\":\"\",\"thought\":\"\",\"reason\":\"error\",\"error\":\"connect to "
            "/nonexistent/s: No such file or directory\",\"usage\":null,\"seed\":null}\n");
  const Outcome unread = run("$G ask --json -f /nonexistent hi </dev/null 2>/dev/null");
  EXPECT_EQ(unread.code, 66);
  EXPECT_THAT(unread.output, HasSubstr("\"error\":\"/nonexistent: open: No such file"));
  EXPECT_EQ(run("$G ask --json </dev/null 2>/dev/null").output, "");  // wrong usage
}

TEST_F(Glmctl, an_interrupt_that_was_ignored_stays_ignored) {
  const Outcome result =
      run("f=$(mktemp); trap '' INT; $G ask --timeout 2 wait </dev/null >$f 2>/dev/null & p=$!; "
          "until grep -q begun $f; do sleep 0.05; done; kill -INT $p; wait $p; c=$?; rm $f; "
          "exit $c");
  EXPECT_EQ(result.code, 124);
}

TEST_F(Glmctl, thoughts_are_quiet_and_coloured_as_asked) {
  EXPECT_EQ(run("$G ask -q --think echo hi </dev/null 2>&1 >/dev/null").output, "");
  EXPECT_EQ(run("$G ask --color always --think echo hi </dev/null 2>&1 >/dev/null").output,
            "\x1b[2mhm\x1b[0m\x1b[2m\n\x1b[0m");
  EXPECT_EQ(run("CLICOLOR_FORCE=1 $G ask --color never --think echo hi </dev/null 2>&1 >/dev/null")
                .output,
            "hm\n");
  EXPECT_EQ(run("$G ask --color some hi </dev/null 2>/dev/null").code, 64);
}

TEST(GlmctlDoctor, findings_of_the_running_daemon_are_printed_with_their_exit_code) {
  ServerOptions options;
  options.plan_json = R"({"memory":{"arena_bytes":7}})";
  options.doctor_json =
      R"({"exit_code":77,"findings":[{"severity":"error","what":"a","remedy":"b"},)"
      R"({"severity":"note","what":"c","remedy":""}]})";
  const ServerUnderTest test(options);
  const std::string socket = " --socket " + test.path();
  const Outcome doctor = run("$G doctor" + socket);
  EXPECT_EQ(doctor.code, 77);
  EXPECT_EQ(doctor.output, "error: a\n  remedy: b\nnote: c\n");
  EXPECT_EQ(run("$G doctor --json" + socket).output, options.doctor_json + "\n");
}

// As a daemon answers: the plan knows no speed, the status does.
TEST(GlmctlPlan, the_table_of_glmd_is_printed_with_what_the_run_has_measured) {
  ServerOptions options;
  options.plan_json = R"({"model":{"path":"/srv/m"},"memory":{"floor_bytes":7},)"
                      R"("token":{"hit_rate":1,"disk_bytes":0,"memory_bytes":27}})";
  const ServerUnderTest test(options);
  const std::string socket = " --socket " + test.path();
  const std::string text = run("$G plan" + socket).output;
  EXPECT_THAT(text, HasSubstr("model            /srv/m\n"));
  EXPECT_THAT(text, HasSubstr("floor "));
  EXPECT_THAT(text, HasSubstr("from disk not measured yet, memory not measured yet\n"));
  EXPECT_EQ(run("$G plan --json" + socket).output, options.plan_json + "\n");
}

TEST(GlmctlDoctor, text_of_the_daemon_moves_no_cursor) {
  ServerOptions options;
  options.plan_json = R"({"model":{"path":"x\ny"}})";
  options.doctor_json =
      "{\"exit_code\":0,\"findings\":[{\"severity\":\"note\",\"what\":\"\\u001b[2J\\u009bm\","
      "\"remedy\":\"\"}]}";
  const ServerUnderTest test(options);
  const std::string socket = " --socket " + test.path();
  EXPECT_EQ(run("$G plan" + socket).output, "model            x\\ny\n");
  EXPECT_EQ(run("$G doctor" + socket).output, "note: \\x1b[2J\\x9bm\n");
}

// glmd is not there for these, or is: either way its socket is named first.
TEST(GlmctlDoctor, a_plan_without_a_daemon_says_whose_it_is) {
  for (const std::string action : {"plan", "doctor"}) {
    const Outcome result = run("$G " + action + " --socket /nonexistent/s 2>&1 >/dev/null");
    EXPECT_THAT(result.output,
                testing::StartsWith("glmctl: no daemon at /nonexistent/s: this is what `glmd --" +
                                    action + "` says\n"));
  }
}

// A socket on which nobody answers: connections wait in its backlog.
class SilentDaemon {
 public:
  SilentDaemon() {
    const sockaddr_un address = unix_address(path(), ErrorKind::usage).value();
    CHECK(::bind(descriptor_, base_of(address), sizeof(address)) == 0);
    CHECK(::listen(descriptor_, 1) == 0);
  }
  ~SilentDaemon() { ::close(descriptor_); }
  std::string path() const { return folder_ / "s"; }

 private:
  TemporaryFolder folder_;
  int descriptor_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

TEST(GlmctlSilence, waiting_for_a_silent_daemon_ends_in_time) {
  const SilentDaemon daemon;
  const auto begin = std::chrono::steady_clock::now();
  // The first connection waits in the backlog, later ones find it full.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run("$G wait-ready --timeout 0.3 --socket " + daemon.path()).code, 124);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9));
}

// Sends to nobody who reads: more than a socket's buffer.
TEST(GlmctlSilence, a_large_prompt_on_its_way_can_be_interrupted_and_runs_out_of_time) {
  const SilentDaemon daemon;
  const std::string prompt =
      "head -c 4000000 /dev/zero | tr '\\0' a | $G ask --socket " + daemon.path();
  EXPECT_EQ(run(prompt + " --timeout 0.3 2>/dev/null").code, 124);
  EXPECT_EQ(run("f=$(mktemp); head -c 4000000 /dev/zero | tr '\\0' a >$f; $I ask --socket " +
                daemon.path() +
                " <$f >/dev/null 2>&1 & p=$!; "
                "for i in $(seq 200); do kill -INT $p 2>/dev/null || break; sleep 0.05; done; "
                "kill -KILL $p 2>/dev/null; wait $p; c=$?; rm $f; exit $c")
                .code,
            130);
}

// Answers the first request with `words`, then is gone.
class DyingDaemon {
 public:
  explicit DyingDaemon(const std::string& words) {
    const sockaddr_un address = unix_address(path(), ErrorKind::usage).value();
    CHECK(::bind(descriptor_, base_of(address), sizeof(address)) == 0);
    CHECK(::listen(descriptor_, 1) == 0);
    thread_ = std::thread([this, words] {
      const int connection = ::accept(descriptor_, nullptr, nullptr);
      char bytes[4096];
      CHECK(::recv(connection, bytes, sizeof(bytes), 0) > 0);
      CHECK(::send(connection, words.data(), words.size(), 0) == std::ssize(words));
      ::close(connection);
    });
  }
  ~DyingDaemon() {
    thread_.join();
    ::close(descriptor_);
  }
  std::string path() const { return folder_ / "s"; }

 private:
  TemporaryFolder folder_;
  int descriptor_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::thread thread_;
};

TEST(GlmctlDeath, the_last_line_is_ended_when_the_daemon_dies) {
  const DyingDaemon daemon("DATA 1 2\nhi\n");
  const Outcome result = run("$G ask --socket " + daemon.path() + " x </dev/null 2>/dev/null");
  EXPECT_EQ(result.code, 69);
  EXPECT_EQ(result.output, "hi\n");
}

TEST(GlmctlDeath, being_cancelled_by_others_is_told) {
  const DyingDaemon daemon("ERROR 1 CANCELLED msg=gone\n");
  const Outcome result = run("$G ask --socket " + daemon.path() + " x </dev/null 2>&1");
  EXPECT_EQ(result.code, 70);
  EXPECT_EQ(result.output, "glmctl: CANCELLED: gone\n");
}

TEST(GlmctlDeath, an_answer_that_is_no_json_breaks_the_protocol) {
  for (const std::string command :
       {"status", "plan", "plan --json", "doctor", "ping", "wait-ready"}) {
    const DyingDaemon daemon("INFO ping 1\n{\n");
    const Outcome result = run("$G " + command + " --socket " + daemon.path() + " 2>&1");
    EXPECT_EQ(result.code, 76) << command;
    EXPECT_THAT(result.output, testing::StartsWith("glmctl: glmd's answer: not valid JSON: "));
  }
}

TEST(GlmctlStatus, a_disk_is_a_line) {
  const std::string json =
      R"({"disks":[{"folder":"/srv/a\nb","state":"in use","failures":0},)"
      R"({"folder":"/srv/c","state":"left out","failures":3}],"empty":[],"numbers":[1,2]})";
  const DyingDaemon daemon(fmt::format("INFO status {}\n{}\n", json.size(), json));
  const Outcome result = run("$G status --socket " + daemon.path() + " 2>&1");
  EXPECT_EQ(result.output,
            "disks                        /srv/a\\nb, in use, failures 0\n"
            "disks                        /srv/c, left out, failures 3\n"
            "empty                        []\n"
            "numbers                      [1,2]\n");
}

TEST(GlmctlDeath, an_error_of_the_daemon_is_one_line_that_moves_no_cursor) {
  const DyingDaemon daemon("ERROR 1 ENGINE msg=\"a\\nb\\x1b[2J\\tc\"\n");
  const Outcome result = run("$G ask --socket " + daemon.path() + " x </dev/null 2>&1");
  EXPECT_EQ(result.output, "glmctl: ENGINE: a\\nb\\x1b[2J\\tc\n");
}

TEST(GlmctlDeath, a_json_tells_what_came_before_the_daemon_died) {
  const DyingDaemon daemon("DATA 1 2\nhi\n");
  const Outcome result =
      run("$G ask --json --socket " + daemon.path() + " x </dev/null 2>/dev/null");
  EXPECT_EQ(result.code, 69);
  EXPECT_THAT(result.output, HasSubstr("{\"answer\":\"hi\""));
  EXPECT_THAT(result.output, HasSubstr("\"error\":\"glmd closed the connection\""));
}

TEST_F(Glmctl, a_reader_that_leaves_ends_it_quietly) {
  const Outcome result = run("$G ask flood </dev/null 2>/dev/null | head -c 10");
  EXPECT_EQ(result.output, "xxxxxxxxxx");
}

TEST(GlmctlDrain, a_draining_daemon_is_busy) {
  ServerUnderTest test;
  ::setenv("GLMD_SOCKET", test.path().c_str(), 1);
  const Outcome result =
      run("$G ask wait </dev/null >/dev/null 2>&1 & "
          "until $G status --json | grep -q '\"live\":1'; do sleep 0.05; done");
  EXPECT_EQ(result.code, 0);
  test.server().request_drain();
  EXPECT_EQ(
      run("until $G ping | grep -q draining; do sleep 0.05; done; $G ask x </dev/null 2>/dev/null")
          .code,
      75);
  ::unsetenv("GLMD_SOCKET");
}

}  // namespace
}  // namespace glmd
