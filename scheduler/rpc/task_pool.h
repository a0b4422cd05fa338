// TaskPool runs small tasks (tokenizing a prompt) on a few threads of its own, so that the threads
// of the library stay free for the network. What waits is bounded by its number and by the bytes of
// text that it holds (TenantShares). Owners take turns: however much one of them has waiting, a new
// owner's first task waits for one task of each other owner.
//
// Thread safety: every method may be called from any thread.
// Cost:          O(log owners) a task, besides itself.
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
  // Whose a task is that no tenant has asked for. No tenant is called so.
  static constexpr char kOperator[] = "(operator)";
  static constexpr char kTokenizeCalls[] = "(tokenize)";

  struct Task {
    std::function<void()> run;
    std::string owner = kOperator;
    int64_t num_bytes = 0;  // of the text that it holds until it has run
    bool is_resumed = false;
  };

  // Bounds: requests that wait, bytes of those that wait or run. Without shares all tasks are of
  // one owner: first come, first served.
  TaskPool(int num_threads, const TenantShares::Bounds& bounds);
  // Runs what is queued, then ends the threads.
  ~TaskPool();

  // RESOURCE_EXHAUSTED where a bound says no: QUEUE_FULL, or TENANT_LIMIT.
  absl::Status Submit(Task task);

  // What all tasks hold now.
  int64_t num_bytes() const;

  // No task waits or runs.
  bool is_idle() const;

 private:
  void RunTasks();
  // The next one; waits for one. Nothing once the pool ends and nothing waits.
  std::optional<Task> Pop();

  const bool has_shares_;
  mutable Mutex mutex_;
  CondVar changed_;  // notified under mutex_
  TenantShares shares_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::deque<Task>> waiting_ ABSL_GUARDED_BY(mutex_);  // by owner; none empty
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // the owners that wait, each once
  int64_t num_tasks_ ABSL_GUARDED_BY(mutex_) = 0;          // that wait or run
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_SCHEDULER_RPC_TASK_POOL_H_
