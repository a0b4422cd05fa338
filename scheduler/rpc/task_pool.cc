#include "scheduler/rpc/task_pool.h"

#include <optional>
#include <utility>

namespace quire {

TaskPool::TaskPool(int num_threads, const TaskLimits& limits)
    : limits_(limits), queue_(limits.max_tasks, limits.num_reserved) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] {
      while (std::optional<Task> task = queue_.Pop()) {
        task->run();
        num_bytes_ -= task->num_bytes;
      }
    });
  }
}

TaskPool::~TaskPool() {
  queue_.Close();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool TaskPool::Submit(std::function<void()> task, size_t num_bytes) {
  if (!TakeBytes(num_bytes, limits_.max_bytes)) {
    return false;
  }
  const bool is_queued = queue_.Push({std::move(task), num_bytes});
  num_bytes_ -= is_queued ? 0 : num_bytes;
  return is_queued;
}

bool TaskPool::SubmitReserved(std::function<void()> task, size_t num_bytes) {
  if (!TakeBytes(num_bytes, 2 * limits_.max_bytes)) {
    return false;
  }
  const bool is_queued = queue_.PushReserved({std::move(task), num_bytes});
  num_bytes_ -= is_queued ? 0 : num_bytes;
  return is_queued;
}

bool TaskPool::TakeBytes(size_t num_bytes, size_t max_bytes) {
  size_t held = num_bytes_;
  do {
    if (num_bytes > 0 && held + num_bytes > max_bytes) {
      return false;
    }
  } while (!num_bytes_.compare_exchange_weak(held, held + num_bytes));
  return true;
}

}  // namespace quire
