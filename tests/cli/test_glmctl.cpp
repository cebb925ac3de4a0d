#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

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
  const std::string line = "G=" GLMCTL "; " + command;
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
      {"$G ask --no-such-option hi", 64},
      {"$G ask fail", 65},
      {"$G ask \"$(printf 'a\\377')\"", 65},
      {"$G ask -f /nonexistent hi", 66},
      {"$G --socket /nonexistent/s ask hi", 69},
      {"$G ping --socket /nonexistent/s", 69},
      {"$G ask echo hi > /dev/full", 74},
      {"$G status > /dev/full", 74},
      {"$G ask --timeout 0.2 wait", 124},
      {"$G wait-ready --timeout 0.2 --socket /nonexistent/s", 124},
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

TEST_F(Glmctl, an_interrupt_prints_what_came_and_cancels) {
  const Outcome result =
      run("f=$(mktemp); $G ask wait </dev/null >$f 2>/dev/null & p=$!; "
          "until grep -q begun $f; do sleep 0.05; done; kill -INT $p; wait $p; c=$?; cat $f; rm "
          "$f; exit $c");
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(result.output, "begun\n");
  EXPECT_EQ(test_.engine().cancel_count(), 1);
}

TEST_F(Glmctl, an_interrupted_json_is_one_object_with_what_came) {
  const Outcome result =
      run("$G ask --json wait </dev/null 2>/dev/null & p=$!; "
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
  EXPECT_EQ(run("$G plan" + socket).output, "memory.arena_bytes           7\n");
}

// A socket on which nobody answers: connections wait in its backlog.
class SilentDaemon {
 public:
  SilentDaemon() {
    address_.sun_family = AF_UNIX;
    (folder_ / "s").copy(address_.sun_path, sizeof(address_.sun_path) - 1);
    CHECK(::bind(descriptor_, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) == 0);
    CHECK(::listen(descriptor_, 1) == 0);
  }
  ~SilentDaemon() { ::close(descriptor_); }
  std::string path() const { return folder_ / "s"; }

 private:
  TemporaryFolder folder_;
  sockaddr_un address_{};
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
