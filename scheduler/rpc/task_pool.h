// TaskPool runs small tasks (tokenizing a prompt) on a few separate threads, so that gRPC's threads
// stay free for the network. TenantShares bounds the number of waiting tasks and the bytes of text
// that tasks hold. The owner of a task is a tenant, or one of the two constants of TaskPool. Owners
// take turns (round-robin), so a new owner's first task waits for at most one queued task of each
// other owner.
//
// Thread safety: every method may be called from any thread.
// Cost:          O(log owners) for each task, in addition to its own run time.
#ifndef QUIRE_SCHEDULER_RPC_TASK_POOL_H_
#define QUIRE_SCHEDULER_RPC_TASK_POOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "common/base/mutex.h"
#include "scheduler/loop/tenant_shares.h"

namespace quire {

class TaskPool {
 public:
  // Owners of tasks without a tenant. No tenant has such a name, since the name of a tenant
  // contains no parentheses.
  static constexpr char kOperator[] = "(operator)";
  static constexpr char kTokenizeCalls[] = "(tokenize)";

  struct Task {
    std::function<void()> run;
    std::string owner = kOperator;
    int64_t num_bytes = 0;  // bytes of text that the task holds until it has run
    bool is_resumed = false;
  };

  // `bounds` limits the number of waiting tasks, and the bytes of waiting and running tasks. If
  // bounds.has_shares is false, all tasks have the same owner and start in the order of Submit.
  TaskPool(int num_threads, const TenantShares::Bounds& bounds);
  // Runs the queued tasks, then joins the threads.
  ~TaskPool();

  // Errors: RESOURCE_EXHAUSTED QUEUE_FULL, or TENANT_LIMIT if only the tenant's share is full.
  absl::Status Submit(Task task);

  // Bytes that all tasks hold now.
  int64_t num_bytes() const;

  // Returns true if no task waits or runs.
  bool is_idle() const;

 private:
  void RunTasks();
  // Waits for the next task. Returns nullopt if the pool is closed and no task is left.
  std::optional<Task> Pop();

  const bool has_shares_;
  mutable Mutex mutex_;
  CondVar changed_;  // notified under mutex_
  TenantShares shares_ ABSL_GUARDED_BY(mutex_);
  // The queue of each owner that has waiting tasks.
  std::map<std::string, std::deque<Task>> waiting_ ABSL_GUARDED_BY(mutex_);
  // Owners of waiting tasks, each once, in the order of their turns.
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);
  int64_t num_tasks_ ABSL_GUARDED_BY(mutex_) = 0;  // number of waiting and running tasks
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_TASK_POOL_H_
