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

TEST(File, what_is_not_there_is_missing_input_or_a_place_that_cannot_be_written) {
  const TemporaryFolder folder;
  EXPECT_EQ(File::open_read_only(folder / "none").error().kind, ErrorKind::not_found);
  EXPECT_EQ(read_input(folder / "none", 1).error().kind, ErrorKind::not_found);
  EXPECT_EQ(File::create(folder / "none/new").error().kind, ErrorKind::io);
  EXPECT_EQ(free_bytes(folder / "none").error().kind, ErrorKind::io);
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
