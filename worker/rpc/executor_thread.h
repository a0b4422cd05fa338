// ExecutorThread runs tasks on one thread, one after another, in the order of the Run calls. Once
// the model is loaded, only this thread runs the model and touches the KV pool and the sequences.
// RPC threads queue tasks, and read only constant parts of the model, such as its configuration.
//
// WorkerProgress counts the tasks that are queued, begun and ended. So a hang between two tasks is
// detected too: the executor then has tasks but begins none.
//
// Thread safety: all methods may be called from any thread, except that a task must not call Stop.
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
  // capacity: upper bound on waiting tasks. The progress must outlive the object.
  ExecutorThread(size_t capacity, WorkerProgress& progress);
  // Calls Stop.
  ~ExecutorThread();
  ExecutorThread(const ExecutorThread&) = delete;
  ExecutorThread& operator=(const ExecutorThread&) = delete;

  // Queues the task. Returns false and drops the task if the queue is full or Stop was called.
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
