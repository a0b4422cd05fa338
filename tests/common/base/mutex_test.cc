#include "common/base/mutex.h"

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace quire {
namespace {

constexpr int kNumThreads = 4;

void RunThreads(const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  threads.reserve(kNumThreads);
  for (int i = 0; i < kNumThreads; ++i) {
    threads.emplace_back(run, i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// Passed on from thread to thread.
class Turn {
 public:
  void WaitFor(int turn) {
    MutexLock lock(mutex_);
    while (turn_ != turn) {
      changed_.Wait(mutex_);
    }
  }

  void PassOn() {
    MutexLock lock(mutex_);
    ++turn_;
    changed_.NotifyAll();
  }

  // How far others get while the lock is given back.
  int PassOnElsewhere() {
    MutexLock lock(mutex_);
    const int before = turn_;
    lock.Unlock();
    std::thread([this] { PassOn(); }).join();
    lock.Lock();
    return turn_ - before;
  }

  // Another thread passes it on, not before this one waits. True: a wait ended in time.
  bool IsPassedOnUntil(Instant deadline) {
    MutexLock lock(mutex_);
    std::thread other([this] { PassOn(); });
    const int before = turn_;
    bool is_in_time = true;
    while (turn_ == before && is_in_time) {
      is_in_time = changed_.WaitUntil(mutex_, deadline);
    }
    lock.Unlock();
    other.join();
    return is_in_time;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int turn_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(MutexTest, OneThreadAtATimeIsInside) {
  constexpr int kNumAdditions = 100'000;
  Mutex mutex;
  int64_t sum = 0;
  RunThreads([&](int /*thread*/) {
    for (int k = 0; k < kNumAdditions; ++k) {
      const MutexLock lock(mutex);
      const volatile int64_t before = sum;  // so that it is no single instruction
      sum = before + 1;
    }
  });
  EXPECT_EQ(sum, int64_t{kNumThreads} * kNumAdditions);
}

TEST(MutexTest, ALockThatIsGivenBackLetsAnotherThreadIn) {
  Turn turn;
  EXPECT_EQ(turn.PassOnElsewhere(), 1);
  EXPECT_EQ(turn.PassOnElsewhere(), 1);
}

TEST(MutexTest, AScopeThatEndsUnlockedLeavesTheMutexFree) {
  Mutex mutex;
  {
    MutexLock lock(mutex);
    lock.Unlock();
  }
  const MutexLock lock(mutex);
}

TEST(CondVarTest, AThreadWaitsForItsTurn) {
  Turn turn;
  std::vector<int> order;  // guarded by the turn
  RunThreads([&](int thread) {
    const int mine = kNumThreads - 1 - thread;
    turn.WaitFor(mine);
    order.push_back(mine);
    turn.PassOn();
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(CondVarTest, ATimeThatHasPassedIsSaid) {
  Mutex mutex;
  CondVar never;
  const MutexLock lock(mutex);
  EXPECT_FALSE(never.WaitUntil(mutex, 0));
  const Instant deadline = SteadyNow() + kNanosPerMilli;
  while (never.WaitUntil(mutex, deadline)) {
  }
  EXPECT_GE(SteadyNow(), deadline);
}

TEST(CondVarTest, ANotificationComesBeforeTheDeadline) {
  Turn turn;
  EXPECT_TRUE(turn.IsPassedOnUntil(kInfiniteFuture));
}

}  // namespace
}  // namespace quire
