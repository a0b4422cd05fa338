#include "worker/rpc/executor_thread.h"

#include <optional>
#include <utility>

namespace quire {

ExecutorThread::ExecutorThread(size_t capacity) : tasks_(capacity), thread_([this] { Loop(); }) {}

ExecutorThread::~ExecutorThread() { Stop(); }

bool ExecutorThread::Run(std::function<void()> task) { return tasks_.Push(std::move(task)); }

void ExecutorThread::Stop() {
  tasks_.Close();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void ExecutorThread::Loop() {
  while (std::optional<std::function<void()>> task = tasks_.Pop()) {
    (*task)();
  }
}

}  // namespace quire
