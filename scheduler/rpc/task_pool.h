// TaskPool runs small tasks (tokenizing a prompt) on a few threads of its own, so that the threads
// of the library stay free for the network. What waits is bounded by its number, with places more
// that only SubmitReserved takes (BoundedQueue), and by the bytes of text that it holds.
//
// Thread safety: every method may be called from any thread.
#ifndef QUIRE_SCHEDULER_RPC_TASK_POOL_H_
#define QUIRE_SCHEDULER_RPC_TASK_POOL_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"

namespace quire {

struct TaskLimits {
  size_t max_tasks = 0;
  size_t max_bytes = 0;     // of tasks that wait or run; reserved ones may hold as much again
  size_t num_reserved = 0;  // places more
};

class TaskPool {
 public:
  TaskPool(int num_threads, const TaskLimits& limits);
  // Runs what is queued, then ends the threads.
  ~TaskPool();

  // False when the queue is full. num_bytes: of the text that the task holds until it has run.
  [[nodiscard]] bool Submit(std::function<void()> task, size_t num_bytes = 0);
  [[nodiscard]] bool SubmitReserved(std::function<void()> task, size_t num_bytes);

  // What all tasks hold now.
  size_t num_bytes() const { return num_bytes_; }

 private:
  struct Task {
    std::function<void()> run;
    size_t num_bytes;
  };

  // False, and nothing is taken, when there is no room.
  bool TakeBytes(size_t num_bytes, size_t max_bytes);

  const TaskLimits limits_;
  std::atomic<size_t> num_bytes_ = 0;
  BoundedQueue<Task> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_TASK_POOL_H_
