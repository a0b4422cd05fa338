// TaskPool runs small tasks (tokenizing a prompt) on a few threads of its own, so that the threads
// of the library stay free for the network. Its queue is bounded, with places more that only
// SubmitReserved takes (BoundedQueue).
//
// Thread safety: Submit may be called from any thread.
#ifndef QUIRE_SCHEDULER_RPC_TASK_POOL_H_
#define QUIRE_SCHEDULER_RPC_TASK_POOL_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/bounded_queue.h"

namespace quire {

class TaskPool {
 public:
  TaskPool(int num_threads, size_t capacity, size_t num_reserved = 0);
  // Runs what is queued, then ends the threads.
  ~TaskPool();

  // False when the queue is full.
  [[nodiscard]] bool Submit(std::function<void()> task);
  [[nodiscard]] bool SubmitReserved(std::function<void()> task);

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_TASK_POOL_H_
