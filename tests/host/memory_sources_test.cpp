#include "host/memory_sources.h"

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

TEST_F(MemorySources, every_finite_limit_up_the_path_counts_less_a_hundredth) {
  put("/proc/self/cgroup", "0::/system.slice/glmd.service\n");
  put("/sys/fs/cgroup/system.slice/glmd.service/memory.max", "max\n");
  put("/sys/fs/cgroup/system.slice/glmd.service/memory.high", "3000000000\n");
  put("/sys/fs/cgroup/system.slice/memory.max", "100000000\n");
  EXPECT_EQ(limits_text(),
            "/sys/fs/cgroup/system.slice/glmd.service/memory.high: 3000000000 bytes less 30000000 "
            "spared and 0 of others=2970000000\n"
            "/sys/fs/cgroup/system.slice/memory.max: 100000000 bytes less 8388608 spared and 0 of "
            "others=91611392\n");
}

TEST_F(MemorySources, what_others_hold_below_a_limit_is_not_ours) {
  put("/proc/self/status", "RssAnon:\t     1000 kB\n");
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/memory.max", "1000000000\n");
  put("/sys/fs/cgroup/a/memory.current", "900000000\n");
  put("/sys/fs/cgroup/a/memory.stat",
      "anon 5\ninactive_file 100000000\nactive_file 100000000\nslab_reclaimable 98976000\n");
  put("/sys/fs/cgroup/a/b/memory.max", "20000000\n");
  put("/sys/fs/cgroup/a/b/memory.current", "1000\n");
  EXPECT_EQ(limits_text(),
            "/sys/fs/cgroup/a/b/memory.max: 20000000 bytes less 8388608 spared and 0 of "
            "others=11611392\n"
            "/sys/fs/cgroup/a/memory.max: 1000000000 bytes less 10000000 spared and 600000000 of "
            "others=390000000\n");
  put("/sys/fs/cgroup/a/b/memory.max", "1000\n");
  EXPECT_THAT(limits_text(), HasSubstr("of others=0\n"));
}

// When the least is left it matters most.
TEST_F(MemorySources, nothing_left_is_a_number_too) {
  put("/proc/meminfo", "MemTotal:       8388608 kB\nMemAvailable:         0 kB\n");
  EXPECT_EQ(available_memory(root()).value().bytes, 0);
  put("/proc/self/cgroup", "0::/a\n");
  put("/sys/fs/cgroup/a/memory.high", "0\n");
  put("/sys/fs/cgroup/a/memory.current", "4096\n");
  EXPECT_THAT(limits_text(), HasSubstr("memory.high: 0 bytes"));
  const MemoryReadings readings = read_memory(1000, root());
  ASSERT_EQ(readings.rooms.size(), 2U);
  EXPECT_EQ(readings.rooms[0].free_bytes, 0);
  EXPECT_EQ(readings.rooms[1].free_bytes, -4096);
}

TEST_F(MemorySources, version_1_groups_count_and_its_huge_number_means_none) {
  put("/proc/self/cgroup", "5:cpu:/x\n3:memory:/jobs/a\n");
  put("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "700000000\n");
  put("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limits_text(),
            "/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes: 700000000 bytes less 8388608 "
            "spared and 0 of others=691611392\n");
}

TEST_F(MemorySources, without_groups_there_is_no_limit) {
  EXPECT_EQ(limits_text(), "");
  put("/proc/self/cgroup", "garbage\n::\n0::\n");
  EXPECT_EQ(limits_text(), "");
}

std::string rooms_text(const MemoryReadings& readings) {
  std::string text;
  for (const MemoryRoom& room : readings.rooms) {
    text += room.name + "=" + std::to_string(room.free_bytes) + "\n";
  }
  return text;
}

TEST_F(MemorySources, readings_tell_what_is_left_of_every_limit) {
  put("/proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable: 4000 kB\n");
  put("/proc/self/status", "VmRSS:\t 9999 kB\nRssAnon:\t     100 kB\n");
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/sys/fs/cgroup/a/memory.max", "1000000\n");
  put("/sys/fs/cgroup/a/memory.current", "900000\n");
  put("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 200000\nactive_file 100000\n");
  put("/sys/fs/cgroup/a/b/memory.max", "max\n");
  put("/sys/fs/cgroup/a/b/memory.high", "500000\n");
  put("/sys/fs/cgroup/a/b/memory.current", "600000\n");
  const MemoryReadings readings = read_memory(110 * 1024, root());
  EXPECT_EQ(rooms_text(readings),
            "MemAvailable=4096000\nthe plan=10240\n"
            "/sys/fs/cgroup/a/b/memory.high=-100000\n/sys/fs/cgroup/a/memory.max=400000\n");
  EXPECT_EQ(readings.anonymous_bytes, 100 * 1024);
  EXPECT_EQ(readings.some_percent, 0) << "a kernel without pressure stall information";
}

TEST_F(MemorySources, readings_of_version_1_groups_leave_the_page_cache_out_too) {
  put("/proc/self/cgroup", "4:memory:/a\n");
  put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n");
  put("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "800\n");
  put("/sys/fs/cgroup/memory/a/memory.stat",
      "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 0\n");
  EXPECT_EQ(rooms_text(read_memory(0, root())),
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes=500\n");
}

TEST_F(MemorySources, pressure_is_read) {
  put("/proc/pressure/memory",
      "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=3.25 avg60=0.00 total=1\n");
  const MemoryReadings readings = read_memory(0, root());
  EXPECT_EQ(readings.some_percent, 12.5);
  EXPECT_EQ(readings.full_percent, 3.25);
}

TEST_F(MemorySources, nothing_to_read_is_no_room_and_no_pressure) {
  const MemoryReadings readings = read_memory(0, root());
  EXPECT_TRUE(readings.rooms.empty());
  EXPECT_EQ(readings.full_percent, 0);
}

}  // namespace
}  // namespace glmd
