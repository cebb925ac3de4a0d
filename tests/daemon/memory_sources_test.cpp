#include "memory_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using testing::HasSubstr;

// A made-up /proc and /sys.
class MemorySources : public testing::Test {
 protected:
  void put(const std::string& path, const std::string& content) {
    const std::filesystem::path whole(root() + path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
  }
  std::string root() const { return folder_ / "root"; }
  std::string limits_text() const {
    std::string text;
    for (const MemoryLimit& limit : cgroup_limits(root())) {
      text += limit.name + "=" + std::to_string(limit.bytes) + "\n";
    }
    return text;
  }

  TemporaryFolder folder_;
};

TEST_F(MemorySources, available_memory_keeps_a_reserve) {
  put("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    400 kB\n");
  EXPECT_EQ(available_memory(root()).value().bytes, 400 * 1024 / 100 * 88);
}

TEST_F(MemorySources, unreadable_meminfo_says_what_to_do) {
  for (const char* content : {"", "MemTotal: 5 kB\n", "MemAvailable: lots\n", "MemAvailable:"}) {
    put("/proc/meminfo", content);
    const auto memory = available_memory(root());
    ASSERT_FALSE(memory.ok()) << content;
    EXPECT_THAT(memory.error().message, HasSubstr("--memory"));
  }
}

TEST_F(MemorySources, every_finite_limit_up_the_path_counts) {
  put("/proc/self/cgroup", "0::/system.slice/glmd.service\n");
  put("/sys/fs/cgroup/system.slice/glmd.service/memory.max", "max\n");
  put("/sys/fs/cgroup/system.slice/glmd.service/memory.high", "3000\n");
  put("/sys/fs/cgroup/system.slice/memory.max", "5000\n");
  EXPECT_EQ(limits_text(),
            "/sys/fs/cgroup/system.slice/glmd.service/memory.high=3000\n"
            "/sys/fs/cgroup/system.slice/memory.max=5000\n");
}

TEST_F(MemorySources, version_1_groups_count_and_its_huge_number_means_none) {
  put("/proc/self/cgroup", "5:cpu:/x\n3:memory:/jobs/a\n");
  put("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "7000\n");
  put("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limits_text(), "/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes=7000\n");
}

TEST_F(MemorySources, without_groups_there_is_no_limit) {
  EXPECT_EQ(limits_text(), "");
  put("/proc/self/cgroup", "garbage\n::\n0::\n");
  EXPECT_EQ(limits_text(), "");
}

}  // namespace
}  // namespace glmd
