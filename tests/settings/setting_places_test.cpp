#include "settings/setting_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "platform/file.h"
#include "storage/mirror.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const std::string embedded_model = GLMD_BINARY_DIR "/share/glmd/models/mini";

class Places : public testing::Test {
 protected:
  std::vector<std::string> faults() const { return faults_that(false); }
  std::vector<std::string> warnings() const { return faults_that(true); }

 private:
  std::vector<std::string> faults_that(bool are_survived) const {
    std::vector<std::string> messages;
    for (const SettingPlace& place : places_of(settings_, &container_)) {
      EXPECT_FALSE(place.remedy.empty());
      if (!place.fault || place.is_survived != are_survived) continue;
      if (place.setting != "mirrors") {
        EXPECT_EQ(place.fault->kind, ErrorKind::config);
      }
      messages.push_back(place.fault->message);
    }
    return messages;
  }

 protected:
  TemporaryFolder folder_;
  Settings settings_;
  Container container_ = Container::open(embedded_model).value();
};

TEST_F(Places, what_can_be_used_is_no_fault_and_nothing_is_made) {
  EXPECT_THAT(faults(), ElementsAre());
  settings_.socket = folder_ / "s";
  settings_.state_directory = folder_ / ".";
  settings_.trace_routing = folder_ / "trace";
  EXPECT_THAT(faults(), ElementsAre());
  EXPECT_TRUE(list_directory(folder_ / ".").value().empty());
}

TEST_F(Places, an_abstract_socket_is_refused_and_a_file_of_such_a_name_is_not) {
  settings_.socket = "@glmd";
  EXPECT_THAT(faults(), ElementsAre(AllOf(StartsWith("socket: @glmd: wanted the path of a socket"),
                                          EndsWith("a file of that name is ./@glmd"))));
  settings_.socket = folder_ / "@glmd";
  EXPECT_THAT(faults(), ElementsAre());
}

TEST_F(Places, a_mirror_is_a_copy_and_named_once) {
  const std::string copy = folder_ / "copy", link = folder_ / "link";
  std::filesystem::copy(embedded_model, copy);
  settings_.mirrors = {copy};
  EXPECT_THAT(faults(), ElementsAre());
  std::filesystem::create_directory_symlink(embedded_model, link);
  settings_.mirrors = {embedded_model, copy, link, copy + "/."};
  const auto same = [](const std::string& folder, const std::string& other) {
    return "mirrors: mirror " + folder +
           ": experts-001.safetensors: wanted a copy, got the same file as in " + other;
  };
  EXPECT_THAT(faults(), ElementsAre(same(embedded_model, embedded_model),
                                    same(link, embedded_model), same(copy + "/.", copy)));
  const Result<Mirror> mirror = Mirror::open(link, container_);
  ASSERT_FALSE(mirror.ok());
  EXPECT_EQ(mirror.error().kind, ErrorKind::bad_input);
}

TEST_F(Places, all_that_is_not_there_is_named) {
  settings_.socket = "/nonexistent/s";
  settings_.state_directory = "/nonexistent";
  settings_.trace_routing = "/nonexistent/x";
  settings_.mirrors = {"/nonexistent"};
  EXPECT_THAT(faults(), ElementsAre("socket: /nonexistent: No such file or directory",
                                    "state-directory: /nonexistent: No such file or directory",
                                    "trace-routing: /nonexistent: No such file or directory"));
}

// As the start does: what of mirrors can be mended is no reason not to serve.
TEST_F(Places, mirrors_that_are_damaged_or_not_there_are_warned_of) {
  const std::string copy = folder_ / "copy", cut = folder_ / "cut";
  std::filesystem::copy(embedded_model, copy);
  std::filesystem::copy(embedded_model, cut);
  std::filesystem::resize_file(cut + "/experts-001.safetensors", 4096);
  settings_.mirrors = {copy, cut, "/nonexistent", embedded_model};
  EXPECT_THAT(faults(), ElementsAre(StartsWith("mirrors: mirror " + embedded_model)));
  const std::vector<std::string> lines = warnings();
  ASSERT_GE(lines.size(), 2U);
  const std::string left_out = "; glmd starts without it and tries it again while it serves";
  EXPECT_THAT(lines[lines.size() - 2],
              AllOf(StartsWith("mirrors: " + cut + "/experts-001.safetensors: size: wanted"),
                    EndsWith(left_out)));
  EXPECT_THAT(lines.back(),
              AllOf(StartsWith("mirrors: /nonexistent: no mirror"), EndsWith(left_out)));
  struct stat here {
  }, there{};
  ASSERT_EQ(::stat(copy.c_str(), &here), 0);
  ASSERT_EQ(::stat(embedded_model.c_str(), &there), 0);
  EXPECT_EQ(lines.size(), here.st_dev == there.st_dev ? 3U : 2U) << "or on another device";
}

TEST_F(Places, what_is_something_else_is_told) {
  const std::string file = folder_ / "file", pipe = folder_ / "pipe";
  ASSERT_TRUE(write_file_atomically(file, "x").ok());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  settings_.socket = file;
  settings_.state_directory = file;
  settings_.trace_routing = pipe;
  EXPECT_THAT(faults(), ElementsAre("socket: " + file + ": exists and is no socket",
                                    "state-directory: " + file + ": wanted a folder",
                                    "trace-routing: " + pipe +
                                        ": wanted a regular file, got a pipe, socket or device"));
  settings_ = Settings();
  settings_.trace_routing = file;
  EXPECT_THAT(faults(), ElementsAre("trace-routing: " + file +
                                    ": exists and is no routing trace, not touched"));
  settings_ = Settings();
  settings_.socket = "/" + std::string(200, 'x');
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("a socket path has 1 to 107 bytes")));
}

}  // namespace
}  // namespace glmd
