#include "platform/cpu.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace glmd {
namespace {

TEST(Cpu, a_quota_is_whole_processors) {
  EXPECT_EQ(quota_processors("max 100000"), 0);
  EXPECT_EQ(quota_processors("250000 100000"), 2);
  EXPECT_EQ(quota_processors("50000 100000"), 1);
  EXPECT_EQ(quota_processors(""), 0);
  EXPECT_EQ(quota_processors("-1 0"), 0);
}

TEST(Cpu, hyperthreads_of_a_core_count_once_and_a_quota_limits) {
  TemporaryFolder folder;
  const std::string root = folder / "root";
  const auto put = [&](const std::string& path, const std::string& content) {
    const std::filesystem::path whole(root + path);
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << content;
  };
  EXPECT_GE(physical_core_count(root), 1);
  for (int cpu = 0; cpu < 1024; ++cpu) {  // every processor this test may run on: one core
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    put(topology + "core_id", "0\n");
    put(topology + "physical_package_id", "0\n");
  }
  EXPECT_EQ(physical_core_count(root), 1);
}

}  // namespace
}  // namespace glmd
