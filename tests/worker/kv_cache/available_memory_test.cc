#include "worker/kv_cache/available_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr char kMachine[] =
    "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   24 kB\nBuffers: 7 kB\n";

// A folder with the files of a machine.
class AvailableMemoryTest : public testing::Test {
 public:
  AvailableMemoryTest() {
    std::string name = testing::TempDir() + "/memory-XXXXXX";
    root_ = ::mkdtemp(name.data());
    Write("/proc/meminfo", kMachine);
  }
  ~AvailableMemoryTest() override { std::filesystem::remove_all(root_); }

 protected:
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // Writes the files of a control group of version 2.
  void Group2(const std::string& path, const std::string& max, const std::string& current) {
    Write("/sys/fs/cgroup" + path + "/memory.max", max + "\n");
    Write("/sys/fs/cgroup" + path + "/memory.current", current + "\n");
  }
  std::optional<int64_t> Available() const { return AvailableMemoryBytes(root_); }
  std::optional<int64_t> Total() const { return TotalMemoryBytes(root_); }

 private:
  std::string root_;
};

TEST_F(AvailableMemoryTest, IsWhatTheMachineSaysWithoutControlGroups) {
  EXPECT_EQ(Available(), 24 * 1024);
  EXPECT_EQ(Total(), 100 * 1024);
}

TEST_F(AvailableMemoryTest, NothingIsSaidWhereTheMachineSaysNothing) {
  for (const char* text : {"",
                           "MemFree: 100 kB\n",
                           "MemTotal: many kB\nMemAvailable: many kB\n",
                           "MemTotal: -1 kB\nMemAvailable: -1 kB\n",
                           "MemTotal: 9223372036854775807 kB\n"}) {
    Write("/proc/meminfo", text);
    EXPECT_EQ(Available(), std::nullopt) << text;
    EXPECT_EQ(Total(), std::nullopt) << text;
  }
}

TEST_F(AvailableMemoryTest, AControlGroupLeavesWhatItDoesNotUse) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Group2("/pod/container", "10000", "4000");
  EXPECT_EQ(Available(), 6000);
  EXPECT_EQ(Total(), 10000);
  Write("/sys/fs/cgroup/pod/container/memory.stat", "anon 1000\ninactive_file 2500\n");
  EXPECT_EQ(Available(), 8500);
  // Model files that were read twice; they can be dropped as well.
  Write("/sys/fs/cgroup/pod/container/memory.stat", "inactive_file 2500\nactive_file 500\n");
  EXPECT_EQ(Available(), 9000);
  Group2("/pod/container", "10000", "20000");
  EXPECT_EQ(Available(), 0);
  Group2("/pod/container", "max", "4000");
  EXPECT_EQ(Available(), 24 * 1024);
  EXPECT_EQ(Total(), 100 * 1024);
}

TEST_F(AvailableMemoryTest, AGroupAroundItMayHaveLess) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Group2("/pod/container", "max", "100");
  Group2("/pod", "5000", "4000");
  EXPECT_EQ(Available(), 1000);
  EXPECT_EQ(Total(), 5000);
}

TEST_F(AvailableMemoryTest, AContainerSeesItsOwnGroupAtTheTop) {
  Write("/proc/self/cgroup", "0::/a/path/from/outside\n");
  Group2("", "5000", "4000");
  EXPECT_EQ(Available(), 1000);
  EXPECT_EQ(Total(), 5000);
}

TEST_F(AvailableMemoryTest, KnowsControlGroupsOfVersion1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/other\n4:memory:/docker/id\n0::/\n");
  const std::string group = "/sys/fs/cgroup/memory/docker/id";
  Write(group + "/memory.limit_in_bytes", "10000\n");
  Write(group + "/memory.usage_in_bytes", "4000\n");
  Write(group + "/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  EXPECT_EQ(Available(), 6500);
  EXPECT_EQ(Total(), 10000);
  Write(group + "/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(Available(), 24 * 1024);
  EXPECT_EQ(Total(), 100 * 1024);
}

TEST(ThisMachineTest, HasSomeMemoryAndMoreInAll) {
  EXPECT_GT(AvailableMemoryBytes().value_or(1), 0);
  EXPECT_GT(TotalMemoryBytes().value_or(2), AvailableMemoryBytes().value_or(1));
}

}  // namespace
}  // namespace quire
