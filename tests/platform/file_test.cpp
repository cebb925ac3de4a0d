#include "platform/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

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

}  // namespace
}  // namespace glmd
