#include "platform/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <array>
#include <thread>

#include "platform/clock.h"
#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::ElementsAre;

TEST(File, a_write_that_fails_leaves_nothing_beside_its_place) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkdir((folder / "taken").c_str(), 0700), 0);
  const Result<void> written = write_file_atomically(folder / "taken", "text");
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().message, testing::HasSubstr("rename"));
  EXPECT_THAT(list_directory(folder / ".").value(), ElementsAre("taken"));
}

TEST(File, what_lies_beside_a_place_is_neither_written_through_nor_kept) {
  const TemporaryFolder folder;
  ASSERT_TRUE(File::create(folder / "other").ok());
  ASSERT_EQ(symlink((folder / "other").c_str(), (folder / "linked.new").c_str()), 0);
  ASSERT_TRUE(File::create(folder / "cut-off.new", 0644).ok());
  ASSERT_EQ(mkfifo((folder / "piped.new").c_str(), 0644), 0);
  for (const std::string name : {"linked", "cut-off", "piped"}) {
    ASSERT_TRUE(write_file_atomically(folder / name, "text", 0600).ok());
    struct stat status;
    ASSERT_EQ(lstat((folder / name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode, mode_t{S_IFREG | 0600}) << name;
    EXPECT_EQ(read_file(folder / name, 10).value(), "text");
  }
  EXPECT_EQ(read_file(folder / "other", 10).value(), "");
  EXPECT_THAT(list_directory(folder / ".").value(),
              ElementsAre("cut-off", "linked", "other", "piped"));
}

TEST(File, what_is_not_there_is_missing_input_or_a_place_that_cannot_be_written) {
  const TemporaryFolder folder;
  EXPECT_EQ(File::open_read_only(folder / "none").error().kind, ErrorKind::not_found);
  EXPECT_EQ(read_input(folder / "none", 1).error().kind, ErrorKind::not_found);
  EXPECT_EQ(File::create(folder / "none/new").error().kind, ErrorKind::io);
  EXPECT_EQ(free_bytes(folder / "none").error().kind, ErrorKind::io);
}

TEST(File, a_git_lfs_pointer_is_no_file_that_was_downloaded) {
  const TemporaryFolder folder;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  ASSERT_TRUE(write_file_atomically(folder / "pointer", pointer).ok());
  const Result<std::string> read = read_file(folder / "pointer", 1000);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().kind, ErrorKind::bad_input);
  EXPECT_THAT(read.error().message,
              testing::EndsWith("pointer: a Git LFS pointer of 70 bytes: the file itself was never "
                                "downloaded (git lfs pull, or the hub's own program, does it)"));
  ASSERT_TRUE(write_file_atomically(folder / "text", "version https://git-lfs.github.com/").ok());
  EXPECT_TRUE(read_file(folder / "text", 1000).ok());
}

TEST(File, a_pipe_is_read_to_its_end_or_until_time_is_up) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_file(pipe, 10).error().kind, ErrorKind::bad_input) << "nothing waits here";
  EXPECT_EQ(read_input(pipe, 10, steady_ms()).error().kind, ErrorKind::timeout) << "no writer";
  File writer(::open(pipe.c_str(), O_RDWR | O_CLOEXEC), pipe);
  ASSERT_TRUE(writer.write(std::array<uint8_t, 3>{'a', 'b', 'c'}).ok());
  EXPECT_EQ(read_input(pipe, 10, steady_ms() + 10).error().kind, ErrorKind::timeout) << "no end";
  ASSERT_TRUE(writer.write(std::array<uint8_t, 3>{'d', 'e', 'f'}).ok());
  EXPECT_EQ(read_input(pipe, 2).error().message, pipe + ": wanted at most 2 bytes, got more");
  std::thread late([&] {
    ASSERT_TRUE(writer.write(std::array<uint8_t, 3>{'g', 'h', 'i'}).ok());
    int waiting_bytes = 3;
    while (waiting_bytes > 0) ::ioctl(writer.descriptor(), FIONREAD, &waiting_bytes);
    writer = File();
  });
  EXPECT_EQ(read_input(pipe, 10).value(), "ghi");
  late.join();
}

TEST(FreeSpace, a_reserve_is_left_free) {
  const TemporaryFolder folder;
  EXPECT_TRUE(check_free_space(folder / ".", 1).ok());
  const Result<void> full = check_free_space("/proc", 1);  // 0 bytes free
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().kind, ErrorKind::io);
  EXPECT_EQ(full.error().message, "/proc: free space: wanted 1 bytes, got 0");
  EXPECT_EQ(check_free_space("/proc", 1, INT64_MAX).error().message,
            "/proc: free space: wanted 1 bytes beside a reserve of 9223372036854775807, got 0");
  EXPECT_TRUE(check_free_space("/proc", 0).ok());
  EXPECT_FALSE(check_free_space("/proc", 0, 1).ok());
}

}  // namespace
}  // namespace glmd
