#include "kernels/cpu/thread_team.h"

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(ThreadTeamTest, EveryTaskRunsExactlyOnce) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadTeam team(num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));

      team.ParallelFor(num_tasks, [&](int64_t task, int /*thread*/) {
        runs[static_cast<size_t>(task)].fetch_add(1, std::memory_order_relaxed);
      });

      for (const auto& count : runs) {
        EXPECT_EQ(count.load(), 1) << num_threads << " threads, " << num_tasks << " tasks";
      }
    }
  }
}

// Plain memory, so that a missing happens-before edge is a data race for the thread sanitizer.
TEST(ThreadTeamTest, JobsFollowEachOtherWithoutMixing) {
  ThreadTeam team(4);
  std::vector<int64_t> values(37, 0);

  for (int64_t job = 0; job < 3000; ++job) {
    const int64_t num_tasks = 1 + job % 37;
    team.ParallelFor(
        num_tasks, [&](int64_t task, int /*thread*/) { values[static_cast<size_t>(task)] += job; });
  }

  std::vector<int64_t> expected(37, 0);
  for (int64_t job = 0; job < 3000; ++job) {
    for (int64_t task = 0; task < 1 + job % 37; ++task) {
      expected[static_cast<size_t>(task)] += job;
    }
  }
  EXPECT_EQ(values, expected);
}

TEST(ThreadTeamTest, ThreadsThatFellAsleepWakeUpForTheNextJob) {
  ThreadTeam team(3);
  int64_t done = 0;

  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(4 * ThreadTeam::kSpinMicros));
    std::vector<int64_t> ones(16, 0);
    team.ParallelFor(16, [&](int64_t task, int /*thread*/) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      ones[static_cast<size_t>(task)] = 1;
    });
    for (const int64_t one : ones) {
      done += one;
    }
  }

  EXPECT_EQ(done, 5 * 16);
}

TEST(ThreadTeamTest, LongTasksAreSharedOut) {
  ThreadTeam team(3);
  std::atomic<int> inside{0};

  // Every task waits for the two others, so this ends only if three threads take one each.
  team.ParallelFor(3, [&](int64_t /*task*/, int /*thread*/) {
    inside.fetch_add(1);
    while (inside.load() < 3) {
      std::this_thread::yield();
    }
  });

  EXPECT_EQ(inside.load(), 3);
}

TEST(ThreadTeamTest, ThreadNumbersAreWithinTheTeamAndNeverSharedAtOneTime) {
  ThreadTeam team(4);
  std::vector<std::atomic<bool>> busy(4);
  std::atomic<int> collisions{0};

  team.ParallelFor(500, [&](int64_t /*task*/, int thread) {
    ASSERT_GE(thread, 0);
    ASSERT_LT(thread, 4);
    if (busy[static_cast<size_t>(thread)].exchange(true)) {
      collisions.fetch_add(1);
    }
    std::this_thread::yield();
    busy[static_cast<size_t>(thread)].store(false);
  });

  EXPECT_EQ(collisions.load(), 0);
}

TEST(ThreadTeamTest, ASingleTaskRunsOnTheCaller) {
  ThreadTeam team(4);
  std::thread::id ran_on;
  int number = -1;

  team.ParallelFor(1, [&](int64_t /*task*/, int thread) {
    ran_on = std::this_thread::get_id();
    number = thread;
  });

  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(number, 0);
}

TEST(ThreadTeamTest, ScratchIsAlignedOfItsOwnAndKeptWhenLargeEnough) {
  ThreadTeam team(2);

  void* const first = team.Scratch(0, 100);
  void* const other = team.Scratch(1, 100);
  void* const shared = team.SharedScratch(100);
  std::memset(first, 1, 100);

  EXPECT_EQ((std::set<void*>{first, other, shared}.size()), 3U);
  for (void* p : {first, other, shared}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0U);
  }
  EXPECT_EQ(team.Scratch(0, 50), first);
  void* const grown = team.Scratch(0, 1 << 20);
  std::memset(grown, 2, 1 << 20);
  EXPECT_EQ(team.Scratch(0, 1 << 20), grown);
}

TEST(ThreadTeamTest, ScratchThatWasReservedIsThereOnEveryThread) {
  ThreadTeam team(3);
  ASSERT_TRUE(team.ReserveScratch(1 << 20));
  for (int thread = 0; thread < 3; ++thread) {
    EXPECT_GE(::malloc_usable_size(team.Scratch(thread, 1)), 1U << 20) << thread;
  }
}

TEST(ThreadTeamTest, ATeamThatNeverWorkedEndsCleanly) {
  for (int i = 0; i < 50; ++i) {
    ThreadTeam team(1 + i % 4);
  }
}

TEST(ThreadTeamTest, ProgressGrowsWithEveryTaskAndStandsStillBetween) {
  for (const int num_threads : {1, 3}) {
    ThreadTeam team(num_threads);
    uint64_t before = team.progress();
    for (const int64_t num_tasks : {1, 5, 2, 1, 100}) {
      team.ParallelFor(num_tasks, [](int64_t /*task*/, int /*thread*/) {});

      EXPECT_GE(team.progress(), before + static_cast<uint64_t>(num_tasks)) << num_threads;
      before = team.progress();
      EXPECT_EQ(team.progress(), before);
    }
  }
}

// Hangs when it fails: the tasks wait until their progress was seen.
TEST(ThreadTeamTest, ProgressIsSeenFromOutsideWhileTasksRun) {
  constexpr int64_t kWaitingTask = 500;
  for (const int num_threads : {1, 2}) {
    ThreadTeam team(num_threads);
    const uint64_t begin = team.progress();
    std::atomic<bool> was_seen{false};
    std::thread caller([&] {
      team.ParallelFor(2 * kWaitingTask, [&](int64_t task, int /*thread*/) {
        while (task == kWaitingTask && !was_seen.load()) {
          std::this_thread::yield();
        }
      });
    });

    while (team.progress() < begin + kWaitingTask) {
      std::this_thread::yield();
    }
    was_seen.store(true);
    caller.join();
  }
}

}  // namespace
}  // namespace quire
