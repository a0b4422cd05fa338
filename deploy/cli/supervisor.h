// Supervisor keeps a scheduler, its workers and its gateway running until a signal asks it to stop.
// After the server was ready for the first time, no program that dies or hangs ends the supervisor:
//   - a program that ends is started again, after a pause (restart_policy.h); the scheduler gets
//     the ports that it had before; workers are restarted even while the server shuts down and the
//     scheduler still finishes accepted requests
//   - a worker that is started again gets the sizes of KV cache and swap space, and the HTTP port,
//     of the worker's first start
//   - a worker that reports nothing for 4 s is killed and started again; so is a worker that loads
//     without progress for 120 s, or a scheduler or gateway that does not answer for 10 s
// If another scheduler has taken over the workers, our scheduler becomes a standby. After a restart
// our scheduler is a standby again: otherwise it would take the workers back. The supervisor keeps
// the workers running for the other scheduler.
//
// Before the server was ready for the first time, the supervisor ends if a restart would not help:
// if a program's exit code says so, or if the scheduler refuses a worker.
//
// Thread safety: call Run from main, because the kernel kills the programs when the thread that
//                started them ends. Blocks only in poll(2), and for at most 5 s when it stops the
//                workers.
#ifndef QUIRE_DEPLOY_CLI_SUPERVISOR_H_
#define QUIRE_DEPLOY_CLI_SUPERVISOR_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/address.h"
#include "deploy/cli/gateway_child.h"
#include "deploy/cli/liveness_probe.h"
#include "deploy/cli/supervised_child.h"
#include "deploy/cli/watchdog.h"
#include "deploy/cli/worker_monitor.h"

namespace quire {

class Supervisor {
 public:
  struct Worker {
    std::vector<std::string> argv;
    Address address;  // address where the worker listens
  };

  // Upper bound on the time that a worker may load without progress. A disk that spins up, or a
  // network share, may keep a worker waiting this long.
  static constexpr int64_t kMaxLoadingPauseNs = 120 * kNanosPerSecond;

  // `signal_fd` delivers SIGCHLD, and the signals that stop the server.
  Supervisor(std::vector<std::string> scheduler_argv,
             std::vector<std::string> gateway_argv,
             std::vector<Worker> workers,
             int signal_fd,
             int64_t max_loading_pause_ns = kMaxLoadingPauseNs);

  // Supervises until the server has ended. Returns the exit code of `quire serve`; README.md in
  // this folder lists the codes.
  int Run();

 private:
  struct WorkerChild {
    WorkerChild(std::string name, Worker worker, int64_t max_loading_pause_ns);

    SupervisedChild child;
    Address address;
    std::optional<WorkerMonitor> monitor;  // of the running process; nullopt if none runs
    Watchdog loading;
    uint64_t progress = 0;
    bool was_heard = false;  // true if a process of this worker has accepted its flags and listened
    bool has_sizes = false;  // true if the arguments contain the sizes of the first start
    // HTTP address of the first start. Later starts get its port by a flag. Empty if the worker has
    // not printed an HTTP address.
    std::string http_address;
  };

  void MakeSocketFolder() const;
  void TendScheduler(Instant now);
  void OnSchedulerLine(std::string_view line);
  void OnListens(std::string_view addresses);
  void OnRefusal(std::string_view refusal);
  void OnSchedulerEnd(int wait_status);

  void TendWorkers(Instant now);
  void TendWorker(WorkerChild& worker, Instant now);
  static void ReadLines(WorkerChild& worker);
  static void OnWorkerLine(WorkerChild& worker, std::string_view line);
  void TendGateway(Instant now);
  // Prints the ready line as soon as scheduler and gateway are ready.
  void MaybeSayReady();
  void ReadReport(WorkerChild& worker, Instant now);

  // Starts the child if it is not running and the pause since its last end is over. Returns true if
  // this call started the child.
  bool Start(SupervisedChild& child, Instant now);
  // Returns true if a program's exit with this status ends the server: the server was never ready,
  // and the exit code says that a restart would not help.
  bool EndsServer(int wait_status) const;

  void SetStandby(bool stands_by);
  void Wait();
  void ReadSignals();
  void StopWorkers();

  const int signal_fd_;
  SupervisedChild scheduler_;
  // Address of the scheduler's HTTP port; nullopt until a scheduler has listened.
  std::optional<Address> scheduler_address_;
  std::optional<LivenessProbe> probe_;  // probes the running scheduler; nullopt until it listens
  std::string ready_line_;  // addresses of the scheduler's last ready line; empty: none yet
  GatewayChild gateway_;
  std::vector<std::unique_ptr<WorkerChild>> workers_;
  std::string last_refusal_;
  bool was_ready_ = false;   // the scheduler was ready
  bool said_ready_ = false;  // the ready line was printed
  // Value of --standby at the scheduler's next start. The flag's default is true.
  bool stands_by_ = true;
  bool is_stopping_ = false;
  std::optional<int> exit_code_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_SUPERVISOR_H_
