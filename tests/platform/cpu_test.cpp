#include "platform/cpu.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

using Processors = std::vector<int>;

// A scripted /sys and /proc.
class Machine {
 public:
  void put(const std::string& path, const std::string& content) {
    const std::filesystem::path whole(root() + path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content << "\n";
  }
  void put_processor(int processor, int package, int core) {
    const std::string topology =
        "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/";
    put(topology + "core_id", std::to_string(core));
    put(topology + "physical_package_id", std::to_string(package));
  }
  std::string root() const { return folder_ / "root"; }
  Processors processors(Processors affinity) const {
    return compute_processors(root(), std::move(affinity));
  }

 private:
  TemporaryFolder folder_;
};

// Two packages of two cores of two threads, numbered as Linux does: first threads first.
struct TwoPackages : Machine {
  TwoPackages() {
    for (int processor = 0; processor < 8; ++processor)
      put_processor(processor, processor % 4 / 2, processor % 2);
  }
};

const Processors all_eight = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(Cpu, a_quota_is_whole_processors) {
  EXPECT_EQ(quota_processors("max 100000"), 0);
  EXPECT_EQ(quota_processors("250000 100000"), 2);
  EXPECT_EQ(quota_processors("50000 100000"), 1);
  EXPECT_EQ(quota_processors(""), 0);
  EXPECT_EQ(quota_processors("-1 0"), 0);
  EXPECT_EQ(quota_processors("-1 100000"), 0);
}

TEST(Cpu, a_processor_list_has_numbers_and_ranges) {
  EXPECT_EQ(parse_processor_list("0-2,8"), Processors({0, 1, 2, 8}));
  EXPECT_EQ(parse_processor_list("5"), Processors({5}));
  for (const char* bad : {"", "a", "1-", "3-1", "1,", "0-99999999", "1 2"})
    EXPECT_EQ(parse_processor_list(bad).size(), bad == std::string("1,") ? 1U : 0U) << bad;
}

TEST(Cpu, hyperthreads_of_a_core_count_once) {
  EXPECT_EQ(TwoPackages().processors(all_eight), Processors({0, 1, 2, 3}));
}

TEST(Cpu, affinity_decides_which_hyperthread_stands_for_a_core) {
  const TwoPackages machine;
  EXPECT_EQ(machine.processors({4, 5, 1}), Processors({4, 5}));
  EXPECT_EQ(machine.processors({7}), Processors({7}));
}

TEST(Cpu, a_machine_that_tells_nothing_has_a_core_for_each_processor) {
  const Machine machine;
  EXPECT_EQ(machine.processors({0, 1, 2}), Processors({0, 1, 2}));
  EXPECT_EQ(machine.processors({}), Processors({0}));
}

TEST(Cpu, the_smallest_quota_up_the_path_of_version_2_limits) {
  TwoPackages machine;
  machine.put("/proc/self/cgroup", "0::/system.slice/glmd.service");
  machine.put("/sys/fs/cgroup/system.slice/glmd.service/cpu.max", "350000 100000");
  EXPECT_EQ(machine.processors(all_eight), Processors({0, 1, 2}));
  machine.put("/sys/fs/cgroup/system.slice/cpu.max", "200000 100000");
  EXPECT_EQ(machine.processors(all_eight), Processors({0, 1}));
  machine.put("/sys/fs/cgroup/system.slice/cpu.max", "max 100000");
  machine.put("/sys/fs/cgroup/system.slice/glmd.service/cpu.max", "10000 100000");
  EXPECT_EQ(machine.processors(all_eight), Processors({0}));
}

TEST(Cpu, a_quota_of_version_1_limits_wherever_its_controller_is_mounted) {
  for (const char* mount : {"cpu", "cpu,cpuacct"}) {
    TwoPackages machine;
    machine.put("/proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a/b\n0::/");
    const std::string group = std::string("/sys/fs/cgroup/") + mount + "/a/";
    machine.put(group + "b/cpu.cfs_quota_us", "-1");
    machine.put(group + "b/cpu.cfs_period_us", "100000");
    EXPECT_EQ(machine.processors(all_eight).size(), 4U) << mount;
    machine.put(group + "cpu.cfs_quota_us", "250000");
    machine.put(group + "cpu.cfs_period_us", "100000");
    EXPECT_EQ(machine.processors(all_eight), Processors({0, 1})) << mount;
  }
}

TEST(Cpu, cpusets_of_both_versions_leave_out_processors) {
  TwoPackages version_2;
  version_2.put("/proc/self/cgroup", "0::/glmd");
  version_2.put("/sys/fs/cgroup/glmd/cpuset.cpus.effective", "2-3,6");
  EXPECT_EQ(version_2.processors(all_eight), Processors({2, 3}));

  TwoPackages version_1;
  version_1.put("/proc/self/cgroup", "3:cpuset:/glmd\n1:cpu:/glmd");
  version_1.put("/sys/fs/cgroup/cpuset/glmd/cpuset.effective_cpus", "5");
  EXPECT_EQ(version_1.processors(all_eight), Processors({5}));
}

TEST(Cpu, this_machine_has_a_core) {
  EXPECT_GE(physical_core_count(), 1);
}

}  // namespace
}  // namespace glmd
