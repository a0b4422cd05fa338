// Replay feeds the events of a step log to a new SchedulerCore, the class that serves requests. It
// compares every plan and all output with the summaries in the log. Plans and output depend only on
// the events, so the program that wrote the log gives the same summaries again. A difference means
// that another program wrote the log, or that the core has a bug: its plans depended on something
// else.
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
  absl::Status damage;       // OK, or why the first bad record is damaged or impossible
  std::string difference;    // empty, or the first outcome that differs

  bool is_identical() const { return damage.ok() && difference.empty(); }
};

ReplayReport Replay(StepLogReader& log);

}  // namespace quire

#endif  // QUIRE_SCHEDULER_STEP_LOG_REPLAY_H_
