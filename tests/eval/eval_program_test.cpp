// The tools as programs: mistakes end in one line that names them, and lost output is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "platform/file.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::HasSubstr;

struct Outcome {
  int code = 0;
  std::string output;  // both streams
};

class ToolPrograms : public testing::Test {
 protected:
  Outcome run(const std::string& command, const std::string& redirection = "") const {
    const std::string output = folder_ / "output";
    const std::string line =
        GLMD_BINARY_DIR "/bin/" + command + " >" + output + " 2>&1 " + redirection;
    const int status = std::system(line.c_str());
    return {WEXITSTATUS(status), read_file(output, 1 << 20).value()};
  }
  std::string file(const std::string& name, const std::string& content) const {
    EXPECT_TRUE(write_file_atomically(folder_ / name, content).ok());
    return folder_ / name;
  }
  const TemporaryFolder folder_;
  const std::string model_ = GLMD_BINARY_DIR "/share/glmd/models/mini";
  const std::string eval_ = "glmd-eval --model " + model_ + " ";
};

TEST_F(ToolPrograms, a_run_longer_than_the_models_context_is_refused) {
  const std::string ids = file("ids.json", "[1, 2, 3]");
  const Outcome outcome = run(eval_ + "--ids " + ids + " --greedy 16777216");
  EXPECT_EQ(outcome.code, 64);
  EXPECT_THAT(outcome.output, HasSubstr("tokens, got 16777219"));
}

TEST_F(ToolPrograms, logits_that_cannot_be_written_are_no_missing_input) {
  const std::string ids = file("ids.json", "[1, 2, 3]");
  const Outcome outcome = run(eval_ + "--ids " + ids + " --logits /nonexistent/logits");
  EXPECT_EQ(outcome.code, 74);
  EXPECT_THAT(outcome.output, HasSubstr("/nonexistent/logits: open: No such file"));
}

TEST_F(ToolPrograms, what_is_no_text_is_not_scored) {
  const Outcome outcome = run(eval_ + "--ppl " + file("binary", "abc\xff\xfe"));
  EXPECT_EQ(outcome.code, 65);
  EXPECT_THAT(outcome.output, HasSubstr("binary: at byte 3: not UTF-8 text"));
}

TEST_F(ToolPrograms, wrong_options_are_named_with_what_is_possible) {
  const std::string wanted = eval_ + "--ppl x ";
  EXPECT_THAT(run(wanted + "--kernels foo").output, HasSubstr("avx2"));
  EXPECT_EQ(run(wanted + "--kernels foo").code, 64);
  EXPECT_EQ(run(wanted + "--arena -5").code, 64);
  EXPECT_THAT(run("glmd-convert --experts foo a b").output,
              testing::AllOf(HasSubstr("glmd-convert: "), HasSubstr("nl4"), HasSubstr("foo")));
  EXPECT_THAT(run("glmd-convert --help").output, testing::Not(HasSubstr("\x03")));
  EXPECT_THAT(run("glmd-inspect foo").output, HasSubstr("foo"));
  EXPECT_EQ(run("glmd-inspect").code, 64);
  EXPECT_THAT(run("glmd-replay").output, HasSubstr("glmd-replay: nothing to replay"));
}

TEST_F(ToolPrograms, an_id_without_a_token_is_named) {
  const Outcome outcome = run("glmd-inspect detokenize " + model_, "<" + file("ids", "[99999]"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output,
            "glmd-inspect: id 99999: no token has it; left out, as the reference does\n");
}

TEST_F(ToolPrograms, lost_output_is_told) {
  const std::string ids = file("ids.json", "[1, 2, 3]");
  EXPECT_EQ(run(eval_ + "--ids " + ids + " --greedy 2", ">/dev/full").code, 74);
  EXPECT_EQ(run("glmd-inspect tensors " + model_, ">/dev/full").code, 74);
  EXPECT_EQ(run("glmd-inspect --help", ">/dev/full").code, 74);
  EXPECT_EQ(run("glmd-replay --synthetic --layers 1 --tokens 50", ">/dev/full").code, 74);
  EXPECT_EQ(run("glmd-inspect tensors /nonexistent", "2>/dev/full").code, 66);
}

}  // namespace
}  // namespace glmd
