#include "settings/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "platform/file.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::HasSubstr;

Result<std::optional<Settings>> read(const std::vector<std::string>& arguments) {
  std::vector<const char*> words = {"glmd"};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  return read_settings(static_cast<int>(words.size()), words.data());
}

class SettingsFile : public testing::Test {
 protected:
  Result<std::optional<Settings>> read_with(const std::string& toml,
                                            std::vector<std::string> arguments = {}) {
    EXPECT_TRUE(write_file_atomically(path_, toml).ok());
    arguments.insert(arguments.end(), {"--config", path_});
    return read(arguments);
  }

  TemporaryFolder folder_;
  std::string path_ = folder_ / "glmd.toml";
};

TEST(Settings, bytes_are_powers_of_1024) {
  EXPECT_EQ(parse_bytes("4096").value(), 4096);
  EXPECT_EQ(parse_bytes("3K").value(), 3072);
  EXPECT_EQ(parse_bytes("3KiB").value(), 3072);
  EXPECT_EQ(parse_bytes("512M").value(), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("8G").value(), int64_t{8} << 30);
  for (const char* text : {"8GB", "8GiB", "8g", "8gb", "8gib"}) {
    EXPECT_EQ(parse_bytes(text).value(), int64_t{8} << 30) << text;
  }
}

TEST(Settings, what_is_no_size_is_refused) {
  for (const char* text : {"", "G", "-1", "0", "1.5G", "8g ", "8X", "9999999999G", "8 G", "0x10"}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
}

TEST(Settings, look_ahead_is_on_off_or_automatic) {
  EXPECT_EQ((*read({}).value()).look_ahead, LookAhead::automatic);
  EXPECT_EQ((*read({"--look-ahead", "off"}).value()).look_ahead, LookAhead::off);
  const auto wrong = read({"--look-ahead", "maybe"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "--look-ahead: wanted on, off or auto, got \"maybe\"");
}

TEST(Settings, experts_are_checked_at_the_first_read_or_always) {
  EXPECT_EQ((*read({}).value()).verify, Verify::first_read);
  EXPECT_EQ((*read({"--verify", "first"}).value()).verify, Verify::first_read);
  EXPECT_EQ((*read({"--verify", "always"}).value()).verify, Verify::always);
  const auto wrong = read({"--verify", "off"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "--verify: wanted first or always, got \"off\"");
}

TEST(Settings, keys_are_kept_in_f16_or_int8) {
  EXPECT_EQ((*read({}).value()).kv_format, KvFormat::f16);
  EXPECT_EQ((*read({"--kv-format", "int8"}).value()).kv_format, KvFormat::int8);
  const auto wrong = read({"--kv-format", "q8"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "--kv-format: wanted f16 or int8, got \"q8\"");
}

TEST(Settings, the_reader_is_one_of_three) {
  EXPECT_EQ((*read({"--reader", "threads"}).value()).reader, ReaderKind::threads);
  const auto wrong = read({"--reader", "mmap"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "--reader: wanted auto, io_uring or threads, got \"mmap\"");
}

TEST_F(SettingsFile, mirrors_are_a_list_and_the_command_line_wins) {
  EXPECT_THAT((*read_with("mirrors = [\"/a\", \"/b\"]").value()).mirrors,
              testing::ElementsAre("/a", "/b"));
  EXPECT_THAT((*read_with("mirrors = [\"/a\"]", {"--mirror", "/c"}).value()).mirrors,
              testing::ElementsAre("/c"));
  EXPECT_THAT(read_with("mirrors = \"/a\"").error().message,
              HasSubstr("line 1: mirrors: wanted a list of folders"));
}

TEST(Settings, defaults_serve_the_embedded_model) {
  const Settings settings = *read({}).value();
  EXPECT_FALSE(settings.model);
  EXPECT_FALSE(settings.memory_bytes);
  EXPECT_EQ(settings.action, Settings::Action::serve);
}

TEST(Settings, options_are_read) {
  const Settings settings =
      *read({"--model", "/m", "--socket", "/s", "--memory", "2G", "--context", "4096", "--sessions",
             "3", "--threads", "2", "--kernels", "scalar", "--log-level", "debug", "--plan"})
           .value();
  EXPECT_EQ(settings.model, "/m");
  EXPECT_EQ(settings.socket, "/s");
  EXPECT_EQ(settings.memory_bytes, int64_t{2} << 30);
  EXPECT_EQ(settings.context_tokens, 4096);
  EXPECT_EQ(settings.sessions, 3);
  EXPECT_EQ(settings.threads, 2);
  EXPECT_EQ(settings.kernels, "scalar");
  EXPECT_EQ(settings.log_level, LogLevel::debug);
  EXPECT_EQ(settings.action, Settings::Action::plan);
}

TEST(Settings, the_state_directory_is_the_given_one_else_the_first_of_systemds) {
  ASSERT_EQ(::setenv("STATE_DIRECTORY", "/var/lib/a:/var/lib/b", 1), 0);
  EXPECT_EQ(read({}).value()->state_directory, "/var/lib/a");
  EXPECT_EQ(read({"--state-directory", "/s"}).value()->state_directory, "/s");
  ASSERT_EQ(::setenv("STATE_DIRECTORY", "", 1), 0);
  EXPECT_FALSE(read({}).value()->state_directory);
  ASSERT_EQ(::unsetenv("STATE_DIRECTORY"), 0);
  EXPECT_FALSE(read({}).value()->state_directory);
}

TEST(Settings, the_usage_history_is_on_or_off) {
  EXPECT_TRUE(read({}).value()->keeps_usage_history);
  EXPECT_FALSE(read({"--usage-history", "off"}).value()->keeps_usage_history);
  const auto wrong = read({"--usage-history", "yes"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().message, "--usage-history: wanted on or off, got \"yes\"");
}

TEST(Settings, wrong_options_are_usage_errors) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--nonsense"},          {"--sessions", "0"},   {"--sessions", "two"},
      {"--threads", "-1"},     {"--memory", "lots"},  {"--context", "1"},
      {"--log-level", "loud"}, {"--plan", "--check"}, {"--context", "99999999999999999999"},
      {"--kernels", "foo"}};
  for (const auto& arguments : wrong) {
    const auto settings = read(arguments);
    ASSERT_FALSE(settings.ok()) << arguments[0];
    EXPECT_EQ(settings.error().kind, ErrorKind::usage) << arguments[0];
  }
}

TEST_F(SettingsFile, an_empty_path_is_named) {
  for (const char* name :
       {"model", "socket", "state-directory", "trace-routing", "mirror", "config"}) {
    const auto settings = read({std::string("--") + name, ""});
    ASSERT_FALSE(settings.ok()) << name;
    EXPECT_EQ(settings.error().kind, ErrorKind::usage) << name;
    EXPECT_EQ(settings.error().message,
              std::string("--") + name + ": wanted a path, got an empty one");
  }
  EXPECT_THAT(read_with("mirrors = [\"\"]").error().message,
              HasSubstr("line 1: mirrors: wanted a path"));
}

// TOML can write it, and the system would take what stands before it for the whole path.
TEST_F(SettingsFile, a_path_with_a_zero_byte_is_refused) {
  for (const char* toml : {R"(model = "/srv/a\u0000b")", R"(mirrors = ["/srv/a\u0000b"])"}) {
    const auto settings = read_with(toml);
    ASSERT_FALSE(settings.ok()) << toml;
    EXPECT_EQ(settings.error().kind, ErrorKind::config);
    EXPECT_THAT(settings.error().message, HasSubstr("line 1"));
    EXPECT_THAT(settings.error().message, HasSubstr("wanted a path, got one with a zero byte"));
  }
}

TEST(Settings, wrong_kernels_are_told_which_there_are) {
  EXPECT_EQ(read({"--kernels", "foo"}).error().message,
            "--kernels: wanted auto, scalar, avx2 or avx512, got \"foo\"");
}

TEST_F(SettingsFile, is_read_and_the_command_line_wins) {
  const Settings settings =
      *read_with("memory = \"3G\"\nsessions = 5\ncontext = 2048\n", {"--sessions", "2"}).value();
  EXPECT_EQ(settings.memory_bytes, int64_t{3} << 30);
  EXPECT_EQ(settings.context_tokens, 2048);
  EXPECT_EQ(settings.sessions, 2);
}

TEST_F(SettingsFile, an_unknown_key_is_named_with_its_line) {
  const auto settings = read_with("sessions = 5\n\nsesions = 6\n");
  ASSERT_FALSE(settings.ok());
  EXPECT_EQ(settings.error().kind, ErrorKind::config);
  EXPECT_THAT(settings.error().message, HasSubstr("line 3"));
  EXPECT_THAT(settings.error().message, HasSubstr("sesions"));
}

TEST_F(SettingsFile, a_wrong_value_is_named_with_its_line) {
  for (const char* toml : {"\nsessions = 0", "\nsessions = 1.5", "\nmemory = true", "\nmodel = [1]",
                           "\nsessions = = 1", "\nkernels.x = 1"}) {
    const auto settings = read_with(toml);
    ASSERT_FALSE(settings.ok()) << toml;
    EXPECT_EQ(settings.error().kind, ErrorKind::config) << toml;
    EXPECT_THAT(settings.error().message, HasSubstr("line 2")) << toml;
  }
}

TEST_F(SettingsFile, a_missing_file_is_a_configuration_error) {
  const auto settings = read({"--config", folder_ / "absent.toml"});
  ASSERT_FALSE(settings.ok());
  EXPECT_EQ(settings.error().kind, ErrorKind::config);
  EXPECT_THAT(settings.error().message, HasSubstr("absent.toml"));
}

}  // namespace
}  // namespace glmd
