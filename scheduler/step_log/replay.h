// Replay feeds the events of a step log to a fresh SchedulerCore, the production one, and compares
// every plan and all output with those in the log. The core is a function of its events, so a log
// of the same program replays to identical plans. A difference means that the core depended on
// something else, which is a bug, or that another program wrote the log.
//
// Thread safety: a free function, safe from any thread.
// Cost:          that of the core's calls, and O(size of the log).
// Source:        the log of a replicated state machine, as in Raft, Ongaro and Ousterhout 2014.
#ifndef QUIRE_SCHEDULER_STEP_LOG_REPLAY_H_
#define QUIRE_SCHEDULER_STEP_LOG_REPLAY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "scheduler/step_log/step_log_format.h"

namespace quire {

struct ReplayReport {
  // The counts cover the log up to the point where replay stopped: the end, damage or the first
  // difference.
  int64_t num_records = 0;
  int64_t num_epochs = 0;
  int64_t num_requests = 0;  // accepted requests
  int64_t num_steps = 0;     // plans made
  int64_t num_tokens = 0;    // committed tokens
  bool is_torn = false;      // the last record was cut short: the process or disk failed
  absl::Status damage;       // OK, or the first invalid record or impossible event
  std::string difference;    // empty, or the first outcome that differs

  bool is_identical() const { return damage.ok() && difference.empty(); }
};

ReplayReport Replay(StepLogReader& log);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_REPLAY_H_
