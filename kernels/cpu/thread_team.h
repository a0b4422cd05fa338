// ThreadTeam is a set of persistent threads that run the tasks of one kernel at a time.
//
// Each idle thread takes the next task, in ascending order, and the caller takes tasks too. A
// descheduled thread delays only its current task. The other threads do not wait for a thread that
// is still asleep. Any thread can run a task, so a task must write only its own data, and its
// result must not depend on the thread.
//
// Idle threads spin for kSpinMicros and then sleep; so does the caller while it waits for the last
// tasks. Longer spinning would take time from other processes, with which a server shares its
// cores.
//
// Thread safety: one caller at a time, except for progress. ParallelFor returns when every task is
//                finished; the caller then sees all memory that tasks wrote. A task must not use
//                barriers or ParallelFor.
// Cost:          ParallelFor allocates nothing. It takes about 1 us if the threads still spin, tens
//                of us if they sleep. A single task runs on the caller without waking a thread.
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

  // `num_threads` includes the calling thread. REQUIRES: 1 <= num_threads <= kMaxThreads.
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, thread) for each task in [0, num_tasks). `thread` in [0, num_threads) is the
  // number of the thread that runs the task (0: the caller), for use with Scratch.
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

  // Returns a number that grows each time a thread takes a task. If the caller runs all tasks of a
  // ParallelFor alone, the number grows each time a task is finished. Safe from any thread.
  uint64_t progress() const {
    // The low half of ticket_ counts down the tasks of a job (one call of RunTasks). The high half
    // is the job's number. With its low half inverted, ticket_ grows with each task and each job.
    return tasks_of_caller_.value() + (ticket_.load(std::memory_order_relaxed) ^ 0xFFFFFFFFU);
  }

  // Returns at least `bytes` of the thread's scratch memory, 64-byte aligned, valid until the next
  // call for that thread. The memory grows as needed and is kept, so steady use allocates nothing.
  void* Scratch(int thread, size_t bytes);

  // Does what Scratch does, for memory that all tasks of a kernel share. REQUIRES: no task runs.
  void* SharedScratch(size_t bytes) { return Scratch(num_threads_, bytes); }

  // Reserves `bytes` for each thread, so that Scratch up to that size allocates nothing. Returns
  // false if memory is lacking. REQUIRES: no task runs.
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

  // The next three fields describe the current job. A thread must read them only after it has taken
  // a task of the job (by compare-and-swap on ticket_) and before it has finished the task. In that
  // time the fields do not change, because ParallelFor waits for the task.
  TaskFunction function_ = nullptr;
  const void* context_ = nullptr;
  uint32_t num_tasks_ = 0;
  // Counts the finished tasks of ParallelFor calls that run all tasks on the caller.
  ProgressCounter tasks_of_caller_;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // job number << 32 | tasks not yet taken
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> job_{0};  // number of the current job, which idle threads watch
  std::atomic<bool> stopping_{false};

  std::unique_ptr<ScratchBuffer[]> scratch_;  // [num_threads + 1], the shared buffer last
  std::vector<std::thread> threads_;          // threads 1 to num_threads - 1
};

}  // namespace quire

#endif  // QUIRE_KERNELS_CPU_THREAD_TEAM_H_
