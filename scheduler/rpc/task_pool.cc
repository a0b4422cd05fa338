#include "scheduler/rpc/task_pool.h"

#include <utility>

#include "common/base/error.h"

namespace quire {

TaskPool::TaskPool(int num_threads, const TenantShares::Bounds& bounds)
    : has_shares_(bounds.has_shares), shares_(bounds) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { RunTasks(); });
  }
}

TaskPool::~TaskPool() {
  {
    const MutexLock lock(mutex_);
    is_closed_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

absl::Status TaskPool::Submit(Task task) {
  const MutexLock lock(mutex_);
  if (!has_shares_) {
    task.owner = kOperator;
  }
  switch (shares_.Take(task.owner, task.is_resumed, task.num_bytes)) {
    case TenantShares::Answer::kFull:
      return Error(absl::StatusCode::kResourceExhausted,
                   "QUEUE_FULL",
                   "server: too many prompts wait to be tokenized");
    case TenantShares::Answer::kTenantFull:
      return TenantLimitStatus();
    case TenantShares::Answer::kTaken:
      break;
  }
  std::deque<Task>& own = waiting_[task.owner];
  if (own.empty()) {
    turns_.push_back(task.owner);
  }
  own.push_back(std::move(task));
  ++num_tasks_;
  changed_.NotifyOne();
  return absl::OkStatus();
}

int64_t TaskPool::num_bytes() const {
  const MutexLock lock(mutex_);
  return shares_.num_bytes();
}

bool TaskPool::is_idle() const {
  const MutexLock lock(mutex_);
  return num_tasks_ == 0;
}

void TaskPool::RunTasks() {
  while (std::optional<Task> task = Pop()) {
    task->run();
    task->run = nullptr;  // frees the text before Release subtracts its bytes
    const MutexLock lock(mutex_);
    shares_.Release(task->owner, task->is_resumed, {.num_bytes = task->num_bytes});
    --num_tasks_;
  }
}

std::optional<TaskPool::Task> TaskPool::Pop() {
  const MutexLock lock(mutex_);
  while (turns_.empty() && !is_closed_) {
    changed_.Wait(mutex_);
  }
  if (turns_.empty()) {
    return std::nullopt;
  }
  const auto own = waiting_.find(turns_.front());
  turns_.pop_front();
  Task task = std::move(own->second.front());
  own->second.pop_front();
  if (own->second.empty()) {
    waiting_.erase(own);
  } else {
    turns_.push_back(task.owner);
  }
  shares_.Release(task.owner, task.is_resumed, {.num_requests = 1});
  return task;
}

}  // namespace quire
