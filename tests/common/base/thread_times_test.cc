#include "common/base/thread_times.h"

#include <sched.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace quire {
namespace {

// The calling thread, and threads that it starts.
void UseOneCpu() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(::sched_getcpu(), &cpus);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(cpus), &cpus), 0);
}

TEST(ThreadTimesTest, AThreadThatComputesSpendsCpuTime) {
  const int64_t before = ThreadCpuNanos();

  while (ThreadCpuNanos() == before) {  // else the test never ends
  }
}

TEST(ThreadTimesTest, AThreadThatSharesItsCpuWaitsForIt) {
  const ThreadTimesReader reader;
  const ThreadTimes before = reader.Read();
  if (!before.cpu_wait_ns.has_value()) {
    GTEST_SKIP() << "the kernel does not report it";
  }
  UseOneCpu();
  std::atomic<bool> is_over = false;
  std::thread other([&is_over] {
    while (!is_over) {
    }
  });

  while (reader.Read().cpu_wait_ns == before.cpu_wait_ns) {  // else the test never ends
  }
  is_over = true;
  other.join();

  EXPECT_GT(reader.Read().cpu_ns, before.cpu_ns);
}

}  // namespace
}  // namespace quire
