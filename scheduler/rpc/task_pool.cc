#include "scheduler/rpc/task_pool.h"

#include <optional>
#include <utility>

namespace quire {

TaskPool::TaskPool(int num_threads, size_t capacity, size_t num_reserved)
    : queue_(capacity, num_reserved) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] {
      while (std::optional<std::function<void()>> task = queue_.Pop()) {
        (*task)();
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

bool TaskPool::Submit(std::function<void()> task) { return queue_.Push(std::move(task)); }

bool TaskPool::SubmitReserved(std::function<void()> task) {
  return queue_.PushReserved(std::move(task));
}

}  // namespace quire
