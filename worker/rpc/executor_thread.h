// ExecutorThread runs tasks one after another, in the order in which they were given. It is the one
// thread that touches the model, the KV pool and the sequences once it has started; RPC threads
// only hand it work.
//
// The progress hears of every task that is given, begun and ended: an executor that hangs between
// two tasks is one that has some and begins none.
//
// Thread safety: all methods may be called from any thread, Stop not from a task.
#ifndef QUIRE_WORKER_RPC_EXECUTOR_THREAD_H_
#define QUIRE_WORKER_RPC_EXECUTOR_THREAD_H_

#include <cstddef>
#include <functional>
#include <thread>

#include "common/base/bounded_queue.h"
#include "worker/rpc/worker_progress.h"

namespace quire {

class ExecutorThread {
 public:
  // At most this many tasks wait. The progress must outlive the object.
  ExecutorThread(size_t capacity, WorkerProgress& progress);
  // Stops.
  ~ExecutorThread();
  ExecutorThread(const ExecutorThread&) = delete;
  ExecutorThread& operator=(const ExecutorThread&) = delete;

  // False, and the task is dropped, when too many wait or Stop was called.
  [[nodiscard]] bool Run(std::function<void()> task);

  // Finishes the waiting tasks, then ends the thread. Later tasks are refused.
  void Stop();

 private:
  void Loop();

  WorkerProgress& progress_;
  BoundedQueue<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_WORKER_RPC_EXECUTOR_THREAD_H_
