// ThreadTeam is a set of persistent threads that share out the tasks of one kernel at a time.
//
// Tasks are handed out in order to the next idle thread, and the caller works too. A descheduled
// thread delays only its current task, and a thread that has not woken up yet is not waited for.
// Any thread may run a task, so a task may write only its own data, and results must not depend on
// the thread.
//
// Idle threads spin for kSpinMicros and then sleep; so does the caller while it waits for the last
// tasks. A server shares its cores with other processes, and longer spinning would take their time.
//
// Thread safety: one caller at a time, except for progress. ParallelFor returns when every task is
//                finished, and what tasks wrote is visible to the caller. No barriers or
//                ParallelFor inside a task.
// Cost:          ParallelFor allocates nothing; about 1 us while the threads spin, tens of us when
//                they sleep. A single task runs on the caller without waking anyone.
#ifndef QUIRE_KERNELS_CPU_THREAD_TEAM_H_
#define QUIRE_KERNELS_CPU_THREAD_TEAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/api/progress_counter.h"

namespace quire {

// Fields that several threads write have separate cache lines, hence the padding.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class ThreadTeam {
 public:
  static constexpr int kSpinMicros = 50;
  static constexpr int kMaxThreads = 1024;

  // REQUIRES: 1 <= num_threads <= kMaxThreads, the caller included.
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) for each task in [0, num_tasks), where thread in [0, num_threads) names
  // the thread it runs on (0: the caller), for scratch memory.
  template <typename Fn>
  void ParallelFor(int64_t num_tasks, const Fn& fn) {
    if (num_tasks <= 1 || num_threads_ == 1) {
      for (int64_t task = 0; task < num_tasks; ++task) {
        fn(task, 0);
        tasks_of_caller_.Add();
      }
      return;
    }
    RunTasks(num_tasks, &Invoke<Fn>, &fn);
  }

  // Grows with every task taken or, where the caller runs all tasks, finished. Any thread. It reads
  // the existing ticket, so several threads pay nothing for it.
  uint64_t progress() const {
    // A ticket counts one job's tasks down; with its low half inverted it grows through all jobs.
    return tasks_of_caller_.value() + (ticket_.load(std::memory_order_relaxed) ^ 0xFFFFFFFFU);
  }

  // Returns at least `bytes` of the thread's scratch memory, 64-byte aligned, valid until the next
  // call for that thread. It grows as needed and is kept: steady use allocates nothing.
  void* Scratch(int thread, size_t bytes);

  // The same, for memory that all tasks of a kernel share. Called outside tasks only.
  void* SharedScratch(size_t bytes) { return Scratch(num_threads_, bytes); }

  // Reserves `bytes` for each thread, so that Scratch up to that size allocates nothing. Returns
  // false if there is no memory. Called outside tasks only.
  bool ReserveScratch(size_t bytes);

 private:
  using TaskFunction = void (*)(const void* context, int64_t task, int thread);
  struct ScratchBuffer;

  template <typename Fn>
  static void Invoke(const void* context, int64_t task, int thread) {
    (*static_cast<const Fn*>(context))(task, thread);
  }

  void RunTasks(int64_t num_tasks, TaskFunction function, const void* context);
  void WorkerLoop(int thread);
  void WorkOnTasks(int thread);
  void WaitForTasks();

  const int num_threads_;

  // The current job. A thread may read its fields only between taking one of its tasks (by
  // compare-and-swap on ticket_) and finishing it: meanwhile the job cannot be replaced.
  TaskFunction function_ = nullptr;
  const void* context_ = nullptr;
  uint32_t num_tasks_ = 0;
  ProgressCounter tasks_of_caller_;              // of ParallelFors that ran on the caller alone
  alignas(64) std::atomic<uint64_t> ticket_{0};  // job number << 32 | tasks not yet taken
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> job_{0};  // job number: what idle threads watch
  std::atomic<bool> stopping_{false};

  std::unique_ptr<ScratchBuffer[]> scratch_;  // [num_threads + 1], the shared one last
  std::vector<std::thread> threads_;          // threads 1 to num_threads - 1
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_THREAD_TEAM_H_
