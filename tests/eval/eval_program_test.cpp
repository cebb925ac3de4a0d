// The tools as programs: mistakes end in one line that names them, and lost output is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

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
    const std::string bin = command.starts_with("glmd-") ? GLMD_BINARY_DIR "/bin/" : "";
    const std::string line = bin + command + " >" + output + " 2>&1 " + redirection;
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
  EXPECT_THAT(run("glmd-bench kernels --kernels foo").output,
              HasSubstr("--kernels: this CPU has no table \"foo\""));
  EXPECT_THAT(run("glmd-replay").output, HasSubstr("glmd-replay: nothing to replay"));
}

TEST_F(ToolPrograms, numbers_that_are_none_are_refused) {
  const auto refuses = [&](const std::string& command, const std::string& wanted) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 64) << command;
    EXPECT_THAT(outcome.output, testing::EndsWith(": wanted " + wanted + "\n")) << command;
  };
  refuses("glmd-convert --latent-norm-eps nan a b", "1e-30 to 0.1, got \"nan\"");
  refuses("glmd-convert --threads 1e2 a b", "1 to 1024, got \"1e2\"");
  refuses("glmd-bench reads --folder /tmp --seconds nan", "0.05 to 3600, got \"nan\"");
  refuses("glmd-bench step --model x --threads 010x", "1 to 1024, got \"010x\"");
  refuses("glmd-bench stream --model x --cached nan", "0.001 to 1, got \"nan\"");
  refuses("glmd-bench stream --model x --recall nan", "0.6 to 0.88, got \"nan\"");
  refuses("glmd-make-model --seed -1 a", "0 to 18446744073709551615, got \"-1\"");
  refuses("glmd-replay --synthetic --seed -1", "0 to 18446744073709551615, got \"-1\"");
  refuses("glmd-mirror stage a b --bytes -1", "at least 0 bytes, as 8G or 512M, got \"-1\"");
  refuses("glmd-mirror stage a b --reserve -5G", "at least 0 bytes, as 8G or 512M, got \"-5G\"");
  refuses("glmd-bench reads --folder /tmp --size 99E",
          "at least 1 bytes, as 8G or 512M, got \"99E\"");
  EXPECT_THAT(run("glmd-replay --synthetic --layers 1 --tokens 040").output,
              HasSubstr("1 layer of 256 experts, 30 tokens"));
}

TEST_F(ToolPrograms, help_names_what_an_option_takes_and_nothing_inside) {
  EXPECT_THAT(
      run("glmd-bench stream --help").output,
      testing::AllOf(HasSubstr("ENUM:{auto,io_uring,threads}"), testing::Not(HasSubstr("->"))));
  EXPECT_THAT(run("glmd-bench stream --model x --look-ahead 2").output,
              HasSubstr("--look-ahead: 2 not in {on,off,auto}"));
}

TEST_F(ToolPrograms, a_step_beyond_the_models_context_is_refused) {
  const Outcome outcome = run("glmd-bench step --model " + model_ + " --context 8192");
  EXPECT_EQ(outcome.code, 64);
  EXPECT_EQ(outcome.output,
            "glmd-bench: --context: wanted at most 8191 of the 8192 tokens the model was made for, "
            "got 8192\n");
}

TEST_F(ToolPrograms, reads_of_a_size_that_no_disk_reads_are_refused) {
  const std::string reads = "glmd-bench reads --folder " + (folder_ / ".") + " ";
  const auto refuses = [&](const std::string& options, int code, const std::string& why) {
    const Outcome outcome = run(reads + options);
    EXPECT_EQ(outcome.code, code) << options;
    EXPECT_THAT(outcome.output, HasSubstr(why)) << options;
  };
  refuses("--size 64M --sizes 0", 64, "--sizes: wanted at least 1");
  refuses("--size 64M --sizes 3", 64, "--sizes: wanted a multiple of 4096");
  refuses("--size 64M --sizes 2G", 64, "--sizes: wanted a multiple of 4096 up to 1073741824");
  refuses("--size 64M --expert 5000", 64, "--expert: wanted a multiple of 4096");
  refuses("--size 20M", 64, "--size: wanted at least two experts");
  refuses("--size 99999T", 74, "free space: wanted 109950063265972224 bytes, got");
  EXPECT_EQ(run("glmd-bench reads --file /nonexistent").code, 66);
  EXPECT_EQ(run("glmd-bench reads --folder /nonexistent").code, 74);
}

TEST_F(ToolPrograms, a_bench_that_is_killed_leaves_no_file) {
  std::filesystem::create_directory(folder_ / "reads");
  const std::string reads = "glmd-bench reads --folder " + (folder_ / "reads") +
                            " --size 1G --expert 1M --seconds 60 & sleep 0.3; kill -KILL $!";
  run("sh -c '" GLMD_BINARY_DIR "/bin/" + reads + "'");
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "reads"));
}

TEST_F(ToolPrograms, sizes_to_replay_fit_the_model_of_the_trace) {
  const std::string ids = file("ids.json", "[1, 2, 3, 4, 5, 6, 7, 8]");
  const std::string trace = folder_ / "trace";
  ASSERT_EQ(run(eval_ + "--ids " + ids + " --greedy 4 --trace-routing " + trace).code, 0);
  const Outcome outcome = run("glmd-replay " + trace);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("\n   24 100.0%"));
  EXPECT_THAT(run("glmd-replay --slots 26 " + trace).output,
              HasSubstr("--slots: wanted 1 to 24, got 26"));
}

TEST_F(ToolPrograms, what_is_written_is_neither_read_nor_written_otherwise) {
  const std::string ids = file("ids.json", "[1, 2, 3]");
  const auto refuses = [&](const std::string& options, const std::string& why) {
    const Outcome outcome = run(eval_ + "--ids " + ids + " " + options);
    EXPECT_EQ(outcome.code, 64) << options;
    EXPECT_THAT(outcome.output, HasSubstr(why)) << options;
  };
  std::filesystem::create_hard_link(ids, folder_ / "other-name");
  refuses("--logits " + ids, "--logits " + ids + ": wanted a file of its own, got that of --ids");
  refuses("--draft-logits " + (folder_ / "other-name"), "got that of --ids");
  refuses("--greedy 1 --trace-routing " + (folder_ / "./ids.json"), "got that of --ids");
  const std::string out = folder_ / "out";
  refuses("--logits " + out + " --draft-logits " + (folder_ / "./out"),
          "got that of --draft-logits");
  EXPECT_EQ(read_file(ids, 100).value(), "[1, 2, 3]");
  EXPECT_EQ(run(eval_ + "--ids " + ids + " --logits /dev/null --draft-logits /dev/null").code, 0);
}

TEST_F(ToolPrograms, nothing_is_written_into_the_model) {
  const std::string ids = file("ids.json", "[1, 2, 3]");
  const std::string model = folder_ / "model", config = model + "/config.json";
  std::filesystem::copy(model_, model);
  std::filesystem::create_hard_link(config, folder_ / "hard");
  std::filesystem::create_symlink(config, folder_ / "soft");
  std::filesystem::create_directory_symlink(model, folder_ / "folder");
  const std::string before = read_file(config, 1 << 20).value();
  for (const std::string option : {"--logits", "--draft-logits", "--trace-routing"}) {
    for (const std::string& path :
         {config, model + "/new", folder_ / "hard", folder_ / "soft", folder_ / "folder/new"}) {
      const Outcome outcome = run("glmd-eval --model " + model + " --greedy 1 --ids " + ids + " " +
                                  option + " " + path);
      EXPECT_EQ(outcome.code, 64) << option << path;
      EXPECT_THAT(outcome.output,
                  HasSubstr(option + " " + path + ": wanted a file outside of --model " + model));
    }
  }
  EXPECT_EQ(read_file(config, 1 << 20).value(), before);
  EXPECT_FALSE(path_exists(model + "/new"));
}

TEST_F(ToolPrograms, a_trace_has_all_runs_and_takes_the_place_of_traces_only) {
  const std::string ids = file("ids.json", "[1, 2, 3]");
  const std::string trace = folder_ / "trace", text = file("text", "a few words");
  const std::string questions = file("q.jsonl", R"({"prompt_ids":[1],"answer_ids":[2]})");
  const std::string traced = eval_ + "--greedy 1 --ids " + ids + " --trace-routing ";
  ASSERT_EQ(run(traced + trace).code, 0);
  const std::string one = read_file(trace, 1 << 20).value();
  ASSERT_EQ(run(traced + trace + " --questions " + questions).code, 0);
  EXPECT_EQ(read_file(trace + ".1", 1 << 20).value(), one);
  EXPECT_THAT(read_file(trace, 1 << 20).value(), testing::StartsWith(one));
  EXPECT_GT(read_file(trace, 1 << 20).value().size(), one.size());
  const Outcome outcome = run(traced + text);
  EXPECT_EQ(outcome.code, 78);
  EXPECT_THAT(outcome.output, HasSubstr("text: exists and is no routing trace, not touched"));
  EXPECT_EQ(run(traced + trace + " --logits " + trace + ".1").code, 64);
  EXPECT_EQ(run("glmd-replay /dev/zero").code, 65);
}

TEST_F(ToolPrograms, what_a_file_says_stays_on_its_line) {
  const std::string questions =
      file("q.jsonl", R"({"prompt_ids":[1],"answer_ids":[2,3,4,5,6],"kind":"a\nglmd-eval: b"})"
                      "\n");
  EXPECT_THAT(run(eval_ + "--questions " + questions).output,
              HasSubstr(R"(item 0 ("a\nglmd-eval: b"): wanted)"));
}

TEST_F(ToolPrograms, input_that_cannot_be_read_is_not_empty) {
  for (const std::string command : {"tokenize", "detokenize --lines", "render"}) {
    const Outcome folder = run("glmd-inspect " + command + " " + model_, "</tmp");
    EXPECT_EQ(folder.code, 74) << command;
    EXPECT_THAT(folder.output, HasSubstr("glmd-inspect: standard input: read: Is a directory"));
    EXPECT_EQ(run("glmd-inspect " + command + " " + model_, "<&-").code, 74) << command;
  }
  EXPECT_EQ(run("glmd-inspect tokenize " + model_, "</dev/null").output, "[]\n");
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
