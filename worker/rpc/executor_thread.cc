#include "worker/rpc/executor_thread.h"

#include <optional>
#include <utility>

namespace quire {

ExecutorThread::ExecutorThread(size_t capacity, WorkerProgress& progress)
    : progress_(progress), tasks_(capacity), thread_([this] { Loop(); }) {}

ExecutorThread::~ExecutorThread() { Stop(); }

bool ExecutorThread::Run(std::function<void()> task) {
  // Count the task before Push: a queued task can run immediately, and RemoveTask must not come
  // before AddTask.
  progress_.AddTask();
  const bool is_queued = tasks_.Push(std::move(task));
  if (!is_queued) {
    progress_.RemoveTask();
  }
  return is_queued;
}

void ExecutorThread::Stop() {
  tasks_.Close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void ExecutorThread::Loop() {
  while (std::optional<std::function<void()>> task = tasks_.Pop()) {
    progress_.Tick();
    (*task)();
    progress_.Tick();
    progress_.RemoveTask();
  }
}

}  // namespace quire
